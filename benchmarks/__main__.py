"""One command measures on real ranks, and writes a text with all tables and what pages show.

Every entry of PROGRAMS is a program, on which ranks it runs, and what says its tables and targets.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import (
    async_sgd,
    backend,
    bucketed_sync,
    engines,
    failures,
    gpu,
    hosts,
    lab,
    pages,
    peers,
    single_calls,
    throughput,
)
from benchmarks.report import Section, render, target_table
from benchmarks.running import LIMIT_SECONDS, QUICK, ROOT, run

RESULTS = ROOT / "benchmarks" / "results"


class Program(NamedTuple):
    """A program and its section of the report, one for each number of ranks.

    Attributes:
        name: under which the results are kept.
        ranks: numbers of ranks; 0 for an ordinary program.
        measure: what runs, see :func:`.running.run`.
        section: makes title, tables and targets of what it returned.
        limit_seconds: after these it is killed.
    """

    name: str
    ranks: tuple[int, ...]
    measure: Callable[[], dict]
    section: Callable[[Any], Section]
    limit_seconds: float = LIMIT_SECONDS


PROGRAMS = (
    Program("backend", (2, 4), backend.measure, backend.section),
    Program("cold_calls", (2,), single_calls.cold, single_calls.cold_section),
    Program("bucketed_sync", (2,), bucketed_sync.measure, bucketed_sync.section),
    Program("throughput", (2,), throughput.ranks, throughput.ranks_section),
    Program("async_sgd", (5,), async_sgd.measure, async_sgd.section),
    Program("event_log", (2,), single_calls.event_log, single_calls.event_section),
    Program("engines", (0,), engines.measure, engines.section),
    Program("failures", (0,), failures.measure, failures.section),
    Program("lab", (0,), lab.measure, lab.section),
    Program("peers", (2,), peers.measure, peers.section),
    Program("launchers", (0,), throughput.launchers, throughput.launchers_section),
    Program("hosts", (0,), hosts.measure, hosts.section),
    Program("gpu", (0,), gpu.measure, gpu.section),
)
RARE = Program("rare", (0,), lab.rare, lab.rare_section, 2400)


def told(program: Program) -> list[dict]:
    """Measure on every number of ranks, and say on standard error how long that took."""
    found = []
    for ranks in program.ranks:
        where = f" on {ranks} ranks" if ranks else ""
        print(f"{program.name}{where} ...", end="", file=sys.stderr, flush=True)
        start = time.monotonic()
        found.append(run(program.measure, ranks, limit_seconds=program.limit_seconds))
        print(f" {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return found


def sections_of(found: dict[str, list]) -> list[Section]:
    """Return the sections of these programs' results; those of RARE may never have been there."""
    found = {RARE.name: [None], **found}
    programs = (program for program in (*PROGRAMS, RARE) if program.name in found)
    return [program.section(one) for program in programs for one in found[program.name]]


def markdown(result: dict) -> str:
    """Return the whole report."""
    sections = sections_of(result["programs"])
    lines = [
        "# Benchmarks",
        "",
        f"{result['date']}. {pages.software(result)}, Python {result['python']}, one thread per "
        "rank. Milliseconds: median (quartiles) of samples taken in turns in the same ranks. Load "
        f"average at the start: {result['load']}. Made by `make bench`.",
        "",
        "![Time of an all_reduce over its size](all_reduce.svg)",
        "",
        *(line for section in sections for line in render(section)),
        "## Targets",
        "",
        "Targets are about medians. Other load on the machine slows gloo more than MPI, so the "
        "ratio of the fastest samples stands beside: where it tells another story, trust neither.",
        "",
        *target_table(target for section in sections for target in section.targets),
    ]
    return "\n".join(lines)


def write(result: dict, output: Path) -> str:
    """Write text, plot and samples, and pages if it goes to RESULTS; return the text."""
    output.mkdir(parents=True, exist_ok=True)
    write_samples(result, output)
    text = markdown(result)
    (output / "results.md").write_text(text)
    runs = result["programs"]["backend"]
    pages.plot(runs, output / "all_reduce.svg")
    if output == RESULTS:
        if any(run["ranks"] == pages.RANKS for run in runs):
            pages.plot_five(result, ROOT / pages.PLOT)
            pages.renew(ROOT / pages.FRONT, pages.in_words(result))
        targets = [row for section in sections_of(result["programs"]) for row in section.targets]
        pages.renew(ROOT / pages.PAGE, pages.table_of(result, targets))
    return text


def write_samples(result: dict, output: Path) -> None:
    """Keep everything that was measured, with five digits."""
    exact = json.dumps(result)
    short = json.loads(exact, parse_float=lambda text: float(f"{float(text):.5g}"))
    with lzma.open(output / "samples.json.xz", "wt") as file:
        json.dump(short, file, separators=(",", ":"))


def kept(output: Path) -> dict:
    """Return the measurement that was written there."""
    with lzma.open(output / "samples.json.xz", "rt") as file:
        return json.load(file)


def main() -> None:
    """Measure and report; results go to benchmarks/results unless said otherwise."""
    names = [program.name for program in PROGRAMS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", help="instead of 2 and 4")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--all", action="store_true", help="also all lessons and a fresh clone (many minutes)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=names,
        help="print what these programs measure, and keep nothing",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few rounds only, to try: give --only or --output"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure nothing, write the kept results again"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        if not arguments.only and arguments.output == RESULTS:
            parser.error("--quick is no measurement to keep: give --only or --output as well")
        os.environ[QUICK] = "1"
    if arguments.again:
        print(write(kept(arguments.output), arguments.output))
        return
    programs = [
        program._replace(ranks=tuple(arguments.ranks or program.ranks))
        if len(program.ranks) > 1
        else program
        for program in PROGRAMS
        if not arguments.only or program.name in arguments.only
    ]
    if arguments.only:
        for program in programs:
            sections = [program.section(found) for found in told(program)]
            lines = [line for section in sections for line in render(section)]
            rows = [row for section in sections for row in section.targets]
            print("\n".join([*lines, *(target_table(rows) if rows else [])]), flush=True)
        return
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    result["programs"] = {program.name: told(program) for program in programs}
    if arguments.all:
        result["programs"][RARE.name] = told(RARE)
    elif (arguments.output / "samples.json.xz").exists():
        rare = kept(arguments.output)["programs"].get(RARE.name)
        result["programs"] |= {RARE.name: rare} if rare else {}
    print(write(result, arguments.output))


if __name__ == "__main__":
    main()
