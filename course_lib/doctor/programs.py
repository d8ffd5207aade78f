"""What may hang, crash or change this process is asked of another process."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "OutOfTime", "all_within", "ask_python", "run"]

_END_WITHIN_S = 0.5  # after a request to end
_all_until = math.inf


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
    """How a program ended: exit status (None if it ran past its limit) and what it wrote."""

    code: int | None
    output: str

    @property
    def last_lines(self) -> str:
        """The end of what it wrote, in one line."""
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
    with program.stdout:
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
    """Return what ``program``, run by this Python, prints as JSON in its last line.

    The first is None if it failed; the second says how.
    """
    answer = run([sys.executable, "-c", program], limit=limit)
    lines = answer.output.splitlines()
    if answer.code != 0 or not lines:
        return None, answer
    return json.loads(lines[-1]), answer
