"""Finds out from outside where the main thread of a rank is, even while C code holds it.

After a signal a rank writes the Python stack of its main thread into a file, ``stack-R``. A C
signal handler does that, which works also where no Python thread gets the interpreter's lock. A
second file, ``cells-R``, says which file name in a stack belongs to which cell.
"""

from __future__ import annotations

import faulthandler
import math
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .tracebacks import CELL_FILE

SIGNAL = signal.SIGUSR1
"""Makes a rank write its stack."""

_WITHIN_S = 2.0  # a few ms, where there is a core for the rank
_IS_WHOLE_AFTER_S = 0.1
_TRIES = 3
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in ')


def answer(directory: Path, rank: int, shell: Any) -> None:
    """Write the stack of this rank from now on whenever it is asked for.

    Args:
        directory: where the files are.
        rank: after whom they are called.
        shell: the IPython that runs its cells.
    """
    cells = open(directory / f"cells-{rank}", "a", buffering=1)  # noqa: SIM115
    known: dict[str, int] = {}
    # Whoever asks for the stack empties the file first.
    stack = os.open(directory / f"stack-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(SIGNAL, file=stack, all_threads=False)
    cache = shell.compile.cache

    def cache_and_note(code: str, number: int = 0, raw_code: str | None = None) -> str:
        name = cache(code, number, raw_code)
        short = os.path.basename(name)
        if known.get(short) != number:
            known[short] = number
            cells.write(f"{short} {number}\n")
        return name

    shell.compile.cache = cache_and_note


def ask(directory: Path, rank: int, send_signal: Callable[[], None]) -> str:
    """Where the main thread of ``rank`` is, as ``"cell 5, line 2"``; empty if not in a cell.

    Args:
        send_signal: called without arguments, sends the rank :data:`SIGNAL`.
    """
    path = directory / f"stack-{rank}"
    if not path.exists():
        return ""
    deadline = time.monotonic() + _WITHIN_S
    for _ in range(_TRIES):  # of a process that was stopped, another thread may get a signal
        os.truncate(path, 0)
        send_signal()
        text, since = "", math.inf
        while (now := time.monotonic()) < min(deadline, since + _IS_WHOLE_AFTER_S):
            time.sleep(0.01)
            before, text = text, path.read_text(errors="replace")
            site = _site_in(text, directory, rank)
            if site:
                return site
            if text != before:
                since = now
    return ""


def _site_in(stack: str, directory: Path, rank: int) -> str:
    for name, line in _FRAME.findall(stack):
        if CELL_FILE.search(name):
            known = (directory / f"cells-{rank}").read_text().splitlines()
            numbers = dict(pair for one in known if len(pair := one.split()) == 2)
            number = numbers.get(os.path.basename(name))
            return f"cell {number}, line {line}" if number else f"line {line}"
    return ""
