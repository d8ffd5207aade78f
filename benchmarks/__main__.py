"""Measures on real ranks, and writes a text with all tables and the parts for other pages.

Every entry of PROGRAMS is a program, its numbers of ranks, and the function for its tables and
targets.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import subprocess
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
    busy,
    crowd,
    engines,
    failures,
    gpu,
    hosts,
    lab,
    pages,
    single_calls,
    throughput,
)
from benchmarks.report import Section, Target, render, target_table
from benchmarks.running import LIMIT_SECONDS, QUICK, ROOT, run

RESULTS = ROOT / "benchmarks" / "results"
SAMPLES = "samples.json.xz"
FAILED = "failed"  # which programs have, in a result; none, in one of before


class Program(NamedTuple):
    """A program and its section of the report, one for each number of ranks.

    Attributes:
        name: under which the results are kept.
        ranks: numbers of ranks; 0 for an ordinary program.
        measure: the function that runs, see :func:`.running.run`.
        section: makes title, tables and targets from its result.
        limit_seconds: after this time it is killed.
    """

    name: str
    ranks: tuple[int, ...]
    measure: Callable[[], dict]
    section: Callable[[Any], Section]
    limit_seconds: float = LIMIT_SECONDS


PROGRAMS = (
    Program("backend", (2, 4), backend.measure, backend.section),
    Program("busy", (2, 4), busy.measure, busy.section),
    Program("cold_calls", (2,), single_calls.cold, single_calls.cold_section),
    Program("bucketed_sync", (2,), bucketed_sync.measure, bucketed_sync.section),
    Program("throughput", (2,), throughput.ranks, throughput.ranks_section),
    Program("async_sgd", (5,), async_sgd.measure, async_sgd.section),
    Program("event_log", (2,), single_calls.event_log, single_calls.event_section),
    Program("engines", (0,), engines.measure, engines.section),
    Program("failures", (0,), failures.measure, failures.section),
    Program("crowd", (0,), crowd.measure, crowd.section),
    Program("lab", (0,), lab.measure, lab.section),
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
    """Return the sections of these programs' results."""
    programs = (program for program in (*PROGRAMS, RARE) if program.name in found)
    return [program.section(one) for program in programs for one in found[program.name]]


def tables(sections: list[Section]) -> str:
    """Return sections in Markdown."""
    return "\n".join(line for section in sections for line in render(section))


def targets_of(sections: list[Section]) -> list[Target]:
    """Return all targets of sections."""
    return [target for section in sections for target in section.targets]


def markdown(result: dict) -> str:
    """Return the whole report."""
    sections = sections_of(result["programs"])
    targets = "\n".join(target_table(targets_of(sections)))
    return f"""# Benchmarks

Measured with `make bench` on {result["date"]}: {pages.software(result)}, \
Python {result["python"]}, one thread per rank, and a load average of {result["load"]} at the \
start. Unless stated otherwise, times are in milliseconds and given as median (quartiles), and \
the variants take turns on the same ranks.

{tables(sections)}
## Targets

Medians decide whether a target is met. Other load on the machine slows gloo down more than MPI, \
so the table also gives the ratio of the fastest samples; if the two ratios disagree, trust neither.

{targets}"""


def write(result: dict, output: Path) -> str:
    """Keep all samples and write the text, and pages if it goes to RESULTS; return the text."""
    output.mkdir(parents=True, exist_ok=True)
    exact = json.dumps(result)
    short = json.loads(exact, parse_float=lambda text: float(f"{float(text):.8g}"))
    with lzma.open(output / SAMPLES, "wt") as file:
        json.dump(short, file, separators=(",", ":"))
    text = markdown(short)
    (output / "results.md").write_text(text)
    if output == RESULTS and not result.get(FAILED):
        if any(run["ranks"] == pages.RANKS for run in short["programs"]["backend"]):
            pages.plot_five(short, ROOT / pages.PLOT)
            pages.renew(ROOT / pages.FRONT, pages.in_words(short))
        targets = targets_of(sections_of(short["programs"]))
        pages.renew(ROOT / pages.PAGE, pages.table_of(short, targets))
    return text


def kept(output: Path) -> dict:
    """Return the measurement that was written there."""
    with lzma.open(output / SAMPLES, "rt") as file:
        return json.load(file)


def measure_all(programs: list[Program], output: Path, with_rare: bool) -> dict:
    """Return all programs' measurements; otherwise rare ones come from ``output``.

    A program that fails does not spoil the others' measurements.
    """
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    result["programs"] = {}
    measure_into(result, programs)
    before = kept(output)["programs"] if (output / SAMPLES).exists() else {}
    rare = told(RARE) if with_rare else before.get(RARE.name, [None])
    result["programs"][RARE.name] = rare
    return result


def measure_into(result: dict, programs: list[Program]) -> None:
    """Put programs' measurements or failures into ``result``; the reasons are printed."""
    failed = set(result.get(FAILED, ()))
    for program in programs:
        result["programs"].pop(program.name, None)
        try:
            result["programs"][program.name] = told(program)
            failed.discard(program.name)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed.add(program.name)
            print(f" failed: {error}", file=sys.stderr, flush=True)
    result[FAILED] = sorted(failed)


def keep(result: dict, output: Path) -> None:
    """Write and print a result; exit with an error if a program has failed."""
    print(write(result, output), flush=True)
    if failed := result.get(FAILED):
        sys.exit(
            f"failed, so the pages are as before: {', '.join(failed)}. The rest is kept: "
            f'make bench ARGS="--again {" ".join(failed)}" measures what is missing.'
        )


def main() -> None:
    """Measure and report; results go to benchmarks/results unless said otherwise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    option = parser.add_argument
    option("--ranks", type=int, nargs="+", help="instead of 2 and 4")
    option("--output", type=Path, default=RESULTS)
    option("--all", action="store_true", help="also all lessons and a fresh clone (many minutes)")
    names = [program.name for program in PROGRAMS]
    text = "print what these programs measure, and keep nothing"
    option("--only", nargs="+", metavar="NAME", choices=names, help=text)
    text = "a few rounds only, to try: with --only or --output"
    option("--quick", action="store_true", help=text)
    text = "measure only these, if any, and write them with the rest of the kept results"
    option("--again", nargs="*", metavar="NAME", choices=names, help=text)
    given = parser.parse_args()
    if given.quick:
        if not given.only and given.output == RESULTS:
            parser.error("--quick is no measurement to keep: give --only or --output as well")
        os.environ[QUICK] = "1"
    if given.again is not None:
        result = kept(given.output)
        measure_into(result, [program for program in PROGRAMS if program.name in given.again])
        keep(result, given.output)
        return
    programs = [
        program._replace(ranks=tuple(given.ranks or program.ranks))
        if len(program.ranks) > 1
        else program
        for program in PROGRAMS
        if program.name in (given.only or names)
    ]
    if not given.only:
        keep(measure_all(programs, given.output, given.all), given.output)
        return
    for program in programs:
        sections = [program.section(found) for found in told(program)]
        print(tables(sections))
        if targets := targets_of(sections):
            print("\n".join(target_table(targets)), flush=True)


if __name__ == "__main__":
    main()
