"""Runs programs for as long as you like: ``make fuzz ARGS="--minutes 180 --seed 7"``."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from pathlib import Path

from .compare import Finding, Jobs
from .planted import PLANTED
from .search import FoundError, search

EXAMPLES = 300  # programs of one search; the next has another seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="another one gives other programs")
    parser.add_argument("--ranks", default="1234", help="which numbers of ranks, e.g. 24")
    parser.add_argument("--keep", type=Path, help="a folder for a report of each finding")
    parser.add_argument("--planted", action="store_true", help="look for planted defects instead")
    arguments = parser.parse_args()
    if arguments.planted:
        return find_planted()
    end = time.monotonic() + 60 * arguments.minutes
    jobs, found, programs = Jobs(), Counter[str](), 0

    def ignored(finding: Finding) -> bool:
        if finding.signature in found:
            found[finding.signature] += 1
            return True
        return False

    sizes = [int(digit) for digit in arguments.ranks]
    try:
        for seed in itertools.count(1_000_000 * arguments.seed):
            if time.monotonic() > end:
                break
            try:
                programs += search(
                    jobs, EXAMPLES, seed, sizes, ignored, lambda: time.monotonic() > end
                )
            except FoundError as error:
                found[error.finding.signature] += 1
                report = f"seed {seed}: {error.finding.signature}\n\n{error}"
                print(report, flush=True)
                if arguments.keep:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    (arguments.keep / f"{len(found):03}.txt").write_text(report)
            left = max(0, end - time.monotonic()) / 60
            print(f"{programs} programs, {len(found)} findings, {left:.0f} min left", flush=True)
    finally:
        jobs.stop()
    for signature, times in found.items():
        print(f"{times} x {signature}")
    return int(bool(found))


def find_planted() -> int:
    """Look for each planted defect and print after how many programs it is found."""
    missed = 0
    for name in PLANTED:
        jobs, tried = Jobs((name,)), Counter[str]()
        try:
            search(jobs, EXAMPLES, 0, (2, 3), backends=("mpi4py",), tried=tried)
            missed += 1
            print(f"{name}: not found in {EXAMPLES} programs", flush=True)
        except FoundError as error:
            steps = len(error.program.steps)
            print(
                f"{name}: found by program {tried['found by']}, {steps} steps after "
                f"{tried['programs']} programs: {error.finding.signature}",
                flush=True,
            )
        finally:
            jobs.stop()
    return missed


if __name__ == "__main__":
    sys.exit(main())
