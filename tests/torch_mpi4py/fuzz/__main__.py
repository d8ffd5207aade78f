"""Runs programs for as long as you like: ``make fuzz ARGS="--minutes 180 --seed 7"``."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from pathlib import Path

from .compare import Finding, Jobs
from .failures import failing_programs
from .planted import PLANTED
from .search import FoundError, in_a_job_of_its_own, on_jobs, search
from .strategy import programs

EXAMPLES = 300  # programs of one search; the next has another seed
FAILING_EXAMPLES = 6  # programs in which something befalls a rank, after each search


def main() -> int:
    """Search until the time is over; return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="another one gives other programs")
    parser.add_argument("--ranks", default="1234", help="which numbers of ranks, e.g. 24")
    parser.add_argument("--only", choices=("values", "failures"), help="one sort of programs")
    parser.add_argument("--keep", type=Path, help="a folder for a report of each finding")
    parser.add_argument("--planted", action="store_true", help="look for planted defects instead")
    arguments = parser.parse_args()
    if arguments.planted:
        return find_planted()
    end = time.monotonic() + 60 * arguments.minutes
    jobs, found, count = Jobs(), Counter[str](), Counter[str]()
    sizes = [int(digit) for digit in arguments.ranks]
    several = [size for size in sizes if size > 1]
    sorts = {
        "values": (programs(sizes), on_jobs(jobs), EXAMPLES),
        "failures": (failing_programs(several), in_a_job_of_its_own, FAILING_EXAMPLES),
    }

    def ignored(finding: Finding) -> bool:
        if finding.signature in found:
            found[finding.signature] += 1
            return True
        return False

    def over() -> bool:
        return time.monotonic() > end

    try:
        for seed in itertools.count(1_000_000 * arguments.seed):
            for sort, (strategy, check, examples) in sorts.items():
                if over() or arguments.only not in (None, sort):
                    continue
                tried: Counter[str] = Counter()
                try:
                    search(strategy, check, examples, seed, ignored, over, tried)
                except FoundError as error:
                    found[error.finding.signature] += 1
                    report = f"{sort}, seed {seed}: {error.finding.signature}\n\n{error}"
                    print(report, flush=True)
                    if arguments.keep:
                        arguments.keep.mkdir(parents=True, exist_ok=True)
                        (arguments.keep / f"{len(found):03}.txt").write_text(report)
                count[sort] += tried["programs"]
            if over():
                break
            left = max(0.0, end - time.monotonic()) / 60
            print(f"{dict(count)}, {len(found)} findings, {left:.0f} min left", flush=True)
    finally:
        jobs.stop()
    print(f"{dict(count)}, {len(found)} findings")
    print(f"gloo stalled once: {jobs.stalled_once} programs")
    for signature, times in found.items():
        print(f"{times} x {signature}")
    return int(bool(found))


def find_planted() -> int:
    """Look for each planted defect and print after how many programs it is found."""
    missed = 0
    for name in PLANTED:
        jobs, tried = Jobs((name,)), Counter[str]()
        try:
            search(programs((2, 3)), on_jobs(jobs, ("mpi4py",)), EXAMPLES, 0, tried=tried)
            missed += 1
            print(f"{name}: not found in {EXAMPLES} programs", flush=True)
        except FoundError as error:
            steps = len(error.program.steps)
            print(
                f"{name}: found by program {tried['found by']}, left are {steps} steps: "
                f"{error.finding.signature}",
                flush=True,
            )
        finally:
            jobs.stop()
    return missed


if __name__ == "__main__":
    sys.exit(main())
