"""The doctor on the command line; its exit status says whether anything failed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from . import FAIL, WITHIN_S, findings
from .examination import text


def main(arguments: list[str] | None = None) -> int:
    """Examine this machine, or hosts; return 1 if anything is a FAIL, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="rank-by-rank doctor",
        description="Report what would keep the lessons from running on this machine, and how to "
        "fix it.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--within",
        type=float,
        default=WITHIN_S,
        metavar="SECONDS",
        help="time allowed for all the programs that it asks (default: %(default)g)",
    )
    parser.add_argument(
        "--hosts",
        metavar="HOSTS",
        help='examine these hosts over ssh: "node1:4,node2:4", or a hostfile',
    )
    parser.add_argument("--for-another-host", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.hosts:
        from .hosts import host_findings

        try:
            found = host_findings(given.hosts, given.within)
        except ValueError as error:
            parser.error(str(error))
    else:
        found = findings(given.within)
    if given.for_another_host:
        from .hosts import what_this_host_is

        print(what_this_host_is(found))
        return 0
    if given.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
    else:
        print(text(found))
    return int(any(finding.status == FAIL for finding in found))


if __name__ == "__main__":
    sys.exit(main())
