"""Looks for a program that goes wrong, and shrinks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pprint import pformat
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings

from . import printer
from .compare import BACKENDS, Finding, Jobs
from .program import Program
from .smaller import smallest
from .strategy import programs


class FoundError(AssertionError):
    """A program that goes wrong; its text shows it as a script and as data."""

    def __init__(self, program: Program, finding: Finding) -> None:
        super().__init__(described(program, finding))
        self.program, self.finding = program, finding


def described(program: Program, finding: Finding) -> str:
    """Return a report: what is wrong, how to run it, and how to keep it."""
    return (
        f"{finding.text}\n\nRun it: mpiexec --with-ft ulfm -n {program.size} python SCRIPT, "
        f"where SCRIPT is\n\n{printer.standalone(program)}\n"
        f"Keep it in kept.py:\n\n{pformat(program, width=98)}\n"
    )


def _made_smaller(error: FoundError, jobs: Jobs) -> FoundError:
    """Return the same finding in a program of which no step can be left out."""
    findings = {error.program: error.finding}

    def goes_wrong(program: Program) -> bool:
        if program in findings:
            return False
        finding = jobs.check(program, (error.finding.backend,))
        if finding is None or finding.signature != error.finding.signature:
            return False
        findings[program] = finding
        return True

    program = smallest(error.program, goes_wrong)
    return FoundError(program, findings[program])


def search(
    jobs: Jobs,
    examples: int,
    seed: int | None = None,
    sizes: Sequence[int] = (1, 2, 3, 4),
    ignored: Callable[[Finding], bool] = lambda finding: False,
    stop: Callable[[], bool] = lambda: False,
    backends: tuple[str, ...] = BACKENDS,
    tried: Counter[str] | None = None,
) -> int:
    """Run so many programs; return how many there were.

    Args:
        seed: what decides which programs; None gives the same ones in every run.
        ignored: whether a finding is one that need not be reported again.
        tried: counts programs, and by which one something was found.
        stop: whether there is no more time.

    Raises:
        FoundError: a program that goes wrong, shrunk.
    """
    tried = Counter() if tried is None else tried
    first: list[Finding] = []

    def check(program: Program) -> None:
        if stop() and not first:
            return
        tried["programs"] += 1
        # While it is shrunk, only the backend matters on which it went wrong.
        finding = jobs.check(program, (first[0].backend,) if first else backends)
        if finding is None or ignored(finding):
            return
        if first and first[0].signature != finding.signature:
            return  # shrink what was found, not what else there is
        tried["found by"] = tried["found by"] or tried["programs"]
        first.append(finding)
        raise FoundError(program, finding)

    test: Any = hypothesis.given(programs(sizes))(check)
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
    except FoundError as error:
        raise _made_smaller(error, jobs) from None
    return tried["programs"]
