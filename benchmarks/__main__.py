"""One command measures on real ranks and writes table, plot and JSON.

The backend is measured on 2 and 4 ranks. Every entry of PROGRAMS is a further program with a
part of the report of its own; :mod:`.rows` says which promise is whose.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks import (
    async_sgd_report,
    bucketed_sync_report,
    cold_calls_report,
    engines_report,
    event_log_report,
    failures_report,
    five_figures,
    gpu_report,
    hosts_report,
    lab_report,
    launchers_report,
    pages,
    peers_report,
    report,
    target_plot,
    throughput_report,
)
from benchmarks.rows import RARE
from benchmarks.run import ROOT, command_of, measure

RARE_SECONDS = 2400
RESULTS = ROOT / "benchmarks" / "results"


class Program(NamedTuple):
    """``python -m benchmarks.NAME FILE`` on so many ranks; an ordinary program for 0."""

    name: str
    ranks: int
    section: Callable[[dict], report.Section]


PROGRAMS = (
    Program("cold_calls", 2, cold_calls_report.section),
    Program("bucketed_sync", 2, bucketed_sync_report.section),
    Program("throughput", 2, throughput_report.section),
    Program("async_sgd", 5, async_sgd_report.section),
    Program("event_log", 2, event_log_report.section),
    Program("engines", 0, engines_report.section),
    Program("failures", 0, failures_report.section),
    Program("lab", 0, lab_report.section),
    Program("peers", 2, peers_report.section),
    Program("launchers", 0, launchers_report.section),
    Program("hosts", 0, hosts_report.section),
    Program("gpu", 0, gpu_report.section),
)


def told(name: str, ranks: int, folder: Path) -> dict:
    """Measure, and say on standard error how long that took."""
    print(f"{name}{f' on {ranks} ranks' if ranks else ''} ...", end="", file=sys.stderr, flush=True)
    start = time.monotonic()
    result = measure(ranks, folder, name)
    print(f" {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return result


def measure_rare(output: Path) -> None:
    """Measure and keep what is measured on demand only."""
    print(f"{RARE} (many minutes) ...", file=sys.stderr, flush=True)
    ended = command_of(RARE, 0, output / f"{RARE}.json", RARE_SECONDS)
    if ended.returncode != 0:
        raise RuntimeError(f"benchmarks.{RARE} failed:\n{ended.stdout}{ended.stderr}")


def write(result: dict, output: Path) -> str:
    """Write table, plots and JSON, with what was kept of the rare; return the table."""
    kept = output / f"{RARE}.json"
    seldom = json.loads(kept.read_text()) if kept.exists() else None
    sections = [each.section(result["programs"][each.name]) for each in PROGRAMS]
    sections.append(lab_report.rare_section(seldom))
    (output / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    text = report.markdown(result, sections)
    (output / "results.md").write_text(text)
    report.plot(result, output / "all_reduce.svg")
    targets = report.targets(result["runs"]) + [row for part in sections for row in part.targets]
    target_plot.plot(targets, output / "targets.svg")
    if output == RESULTS:
        if any(run["ranks"] == five_figures.RANKS for run in result["runs"]):
            five_figures.plot(result, ROOT / five_figures.PLOT)
            pages.renew(ROOT / pages.FRONT, five_figures.in_words(result))
        pages.renew(ROOT / pages.PAGE, pages.table_of(result, targets))
    return text


def only(names: list[str]) -> None:
    """Print the sections of some programs, and keep nothing."""
    with tempfile.TemporaryDirectory() as folder:
        for each in PROGRAMS:
            if each.name in names:
                found = each.section(told(each.name, each.ranks, Path(folder)))
                print("\n".join([*found.lines, *report.target_table(found.targets)]))


def main() -> None:
    """Measure and report; results go to benchmarks/results unless said otherwise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--all", action="store_true", help="also all lessons and a fresh clone (many minutes)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=[each.name for each in PROGRAMS],
        help="print what these programs measure, and keep nothing",
    )
    arguments = parser.parse_args()
    if arguments.only:
        only(arguments.only)
        return
    load = round(os.getloadavg()[0], 2)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [told("measure", ranks, folder) for ranks in arguments.ranks]
        programs = {each.name: told(each.name, each.ranks, folder) for each in PROGRAMS}
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "load": load,
        "python": platform.python_version(),
        "runs": runs,
        "programs": programs,
    }
    text = write(result, arguments.output)
    if arguments.all:
        measure_rare(arguments.output)
        text = write(result, arguments.output)
    print(text)


if __name__ == "__main__":
    main()
