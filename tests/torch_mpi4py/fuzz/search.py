"""Looks for a program that goes wrong, and shrinks it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pprint import pformat
from typing import Any

import hypothesis
import hypothesis.errors
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

from . import failures, printer
from .compare import BACKENDS, Finding, Jobs
from .program import Fail, Program
from .smaller import smallest

SHRINKING_SECONDS = 300.0

Check = Callable[[Program, Finding | None], Finding | None]
"""Runs a program and returns what is wrong; given what was found before, it may look for that."""


class FoundError(AssertionError):
    """A program that goes wrong; its text shows it as a script and as data."""

    def __init__(self, program: Program, finding: Finding) -> None:
        super().__init__(described(program, finding))
        self.program, self.finding = program, finding


def described(program: Program, finding: Finding) -> str:
    """Return a report: what is wrong, how to run it, and how to keep it."""
    fails = any(isinstance(step, Fail) for step in program.steps)
    script = failures.script(program) if fails else printer.standalone(program)
    return (
        f"{finding.text}\n\nRun it: mpiexec --with-ft ulfm -n {program.size} python SCRIPT, "
        f"where SCRIPT is\n\n{script}\n"
        f"Keep it in kept.py:\n\n{pformat(program, width=98)}\n"
    )


def on_jobs(jobs: Jobs, backends: tuple[str, ...] = BACKENDS) -> Check:
    """Return a check that compares backends; later only the one on which something was found."""

    def check(program: Program, before: Finding | None) -> Finding | None:
        return jobs.check(program, (before.backend,) if before else backends)

    return check


def in_a_job_of_its_own(program: Program, before: Finding | None) -> Finding | None:
    """Run a program in which something befalls a rank."""
    return failures.check(program)


def search(
    programs: SearchStrategy[Program],
    check: Check,
    examples: int,
    seed: int | None = None,
    ignored: Callable[[Finding], bool] = lambda finding: False,
    stop: Callable[[], bool] = lambda: False,
    tried: Counter[str] | None = None,
) -> int:
    """Run so many programs; return how many there were.

    Args:
        seed: what decides which programs; None gives the same ones in every run.
        ignored: whether a finding is one that need not be reported again.
        stop: whether there is no more time.
        tried: counts programs, and by which one something was found.

    Raises:
        FoundError: a program that goes wrong, shrunk.
    """
    tried = Counter() if tried is None else tried
    found: dict[Program, Finding] = {}
    first: list[Finding] = []
    begun = 0.0

    def goes_wrong(program: Program) -> bool:
        """Return whether a program goes wrong as the first did."""
        if time.monotonic() > begun + SHRINKING_SECONDS:
            return program in found
        finding = check(program, first[0])
        if finding is None or finding.signature != first[0].signature:
            return False
        found[program] = finding
        return True

    def is_first(program: Program) -> bool:
        nonlocal begun
        if stop():
            return False
        tried["programs"] += 1
        finding = check(program, None)
        if finding is None or ignored(finding):
            return False
        tried["found by"] = tried["programs"]
        begun = time.monotonic()
        first.append(finding)
        found[program] = finding
        return True

    def examine(program: Program) -> None:
        if goes_wrong(program) if first else is_first(program):
            # Hypothesis takes what is raised in another line for another defect.
            raise FoundError(program, found[program])

    test: Any = hypothesis.given(programs)(examine)
    test = settings(
        max_examples=examples,
        derandomize=seed is None,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )(test)
    if seed is not None:
        test = hypothesis.seed(seed)(test)
    try:
        test()
    except hypothesis.errors.Flaky:  # it fails only sometimes, so it can't be shrunk
        program = min(found, key=lambda program: len(program.steps))
        raise FoundError(program, found[program]) from None
    except FoundError as error:
        tested = {error.program}  # Hypothesis has run it last

        def still(program: Program) -> bool:
            new = program not in tested
            tested.add(program)
            return new and goes_wrong(program)

        program = smallest(error.program, still)
        raise FoundError(program, found[program]) from None
    return tried["programs"]
