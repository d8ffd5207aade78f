"""The one idea: what may hang, crash or change this process is asked of another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "ask_python", "run"]


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
    """Run ``command`` for at most ``limit`` seconds; ``variables`` is its whole environment."""
    try:
        ended = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as late:
        return Answer(None, (late.stdout or b"").decode(errors="replace"))
    except OSError as error:
        return Answer(127, str(error))
    return Answer(ended.returncode, ended.stdout)


def ask_python(program: str, *, limit: float) -> tuple[Any, Answer]:
    """Return what ``program``, run by this Python, prints as JSON in its last line.

    The first is None if it failed; the second says how.
    """
    answer = run([sys.executable, "-c", program], limit=limit)
    lines = answer.output.splitlines()
    if answer.code != 0 or not lines:
        return None, answer
    return json.loads(lines[-1]), answer
