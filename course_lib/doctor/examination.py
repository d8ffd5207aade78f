"""The doctor's findings and their table, and the programs it runs, each with a time limit.

Checks that may hang, crash or change this process run in another process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.places import CHECKOUT

__all__ = [
    "FAIL",
    "INSTALL",
    "OK",
    "WARN",
    "Answer",
    "Finding",
    "OutOfTime",
    "all_within",
    "ask_python",
    "examine",
    "fail",
    "ok",
    "run",
    "text",
    "warn",
]

OK, WARN, FAIL = "OK", "WARN", "FAIL"
INSTALL = (
    "Run `make setup`."
    if CHECKOUT
    else "Install the course's wheels into a new environment: python3 -m venv NAME, then "
    "NAME/bin/python -m pip install dist/*.whl"
)
"""How to install the course, from a checkout or without one."""
_END_WITHIN_S = 0.5  # after a request to end
_all_until = math.inf


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        status: ``"OK"``; ``"WARN"``, the lessons run but not as well as they could; or
            ``"FAIL"``, some lesson will not run.
        seen: the observation, in one sentence.
        fix: the remedy, empty if none is needed.
        item: the thing examined, e.g. ``"mpiexec"``; :func:`examine` sets it.
    """

    status: str
    seen: str
    fix: str = ""
    item: str = ""


def ok(seen: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(OK, seen)


def warn(seen: str, fix: str) -> Finding:
    """Return the finding that the lessons run, but not as well as they could."""
    return Finding(WARN, seen, fix)


def fail(seen: str, fix: str) -> Finding:
    """Return the finding that some lesson will not run."""
    return Finding(FAIL, seen, fix)


def examine(item: str, check: Callable[[], Finding]) -> Finding:
    """Return the findings of ``check``; a check that itself fails is a finding too."""
    again = 'make doctor ARGS="--within 60"' if CHECKOUT else "rank-by-rank doctor --within 60"
    try:
        found = check()
    except OutOfTime:
        found = warn(
            "gave no answer in time; the machine is busy, or very slow",
            f"See what else is running (top), then allow more time: {again}",
        )
    except Exception as error:
        found = fail(
            f"could not be examined: {type(error).__name__}: {error}",
            "Please report this, with the whole output of the doctor.",
        )
    return dataclasses.replace(found, item=item)


def text(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, each fix below its item, and one line of summary."""
    width = max(len(finding.item) for finding in findings)
    lines = []
    for finding in findings:
        lines += _paragraph(f"{finding.status:4}  {finding.item:{width}}  ", finding.seen)
        if finding.fix:
            lines += _paragraph(" " * (width + 8) + "-> ", finding.fix)
    return "\n".join([*lines, "", _summary(findings)])


def _paragraph(head: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        100,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.status for finding in findings)
    verdict = "Everything is as it should be."
    if counts[WARN]:
        verdict = "The lessons will run; the warnings above say what could be better."
    if counts[FAIL]:
        verdict = "Do what each FAIL says, then run the doctor again."
    return f"{counts[OK]} OK, {counts[WARN]} WARN, {counts[FAIL]} FAIL. {verdict}"


# --- programs -------------------------------------------------------------------------------------


class OutOfTime(Exception):
    """The time for all programs together is over."""


@contextlib.contextmanager
def all_within(seconds: float) -> Iterator[None]:
    """Let no program run longer than until ``seconds`` from now, in the block, in any thread."""
    global _all_until
    _all_until = time.monotonic() + seconds
    try:
        yield
    finally:
        _all_until = math.inf


@dataclass(frozen=True)
class Answer:
    """How a program ended: exit status (None if it ran past its limit) and output."""

    code: int | None
    output: str

    @property
    def last_lines(self) -> str:
        """The end of its output, in one line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip(" -=*")]
        return " | ".join(lines[-4:])[-400:]


def run(
    command: Sequence[str], *, limit: float, variables: Mapping[str, str] | None = None
) -> Answer:
    """Run ``command`` for at most ``limit`` seconds; ``variables`` is its whole environment.

    Raises:
        OutOfTime: if the time of :func:`all_within` is over sooner.
    """
    left = _all_until - time.monotonic()
    if left <= 0:
        raise OutOfTime
    try:
        program = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        return Answer(127, str(error))
    with program:
        try:
            output, _ = program.communicate(timeout=min(limit, left))
        except subprocess.TimeoutExpired as late:
            _end(program)
            if left < limit:
                raise OutOfTime from None
            return Answer(None, (late.stdout or b"").decode(errors="replace"))
    return Answer(program.returncode, output.decode(errors="replace"))


def _end(program: subprocess.Popen) -> None:
    """End a program; mpiexec takes its ranks along if it is asked."""
    program.terminate()
    try:
        program.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def ask_python(program: str, *, limit: float) -> tuple[Any, Answer]:
    """Return the JSON in the last line that ``program``, run by this Python, prints.

    The first is None if it failed; the second describes the failure.
    """
    answer = run([sys.executable, "-c", program], limit=limit)
    lines = answer.output.splitlines()
    if answer.code != 0 or not lines:
        return None, answer
    return json.loads(lines[-1]), answer
