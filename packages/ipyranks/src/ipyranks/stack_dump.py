"""Finds the position of a rank's main thread from outside, even while C code holds it.

:func:`ask` finds the line of its cell, :func:`ask_stack` the whole stack.

After a signal a rank writes the Python stack of its main thread into a file, ``stack-R``. A C
signal handler does that, which works even if no Python thread gets the interpreter's lock. A second
file, ``cells-R``, maps the file names in a stack to cells.
"""

from __future__ import annotations

import faulthandler
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import awaiting
from .tracebacks import CELL_FILE

SIGNAL = signal.SIGUSR1
"""Makes a rank write its stack."""

_WITHIN_S = 2.0  # a few ms, if there is a core for the rank
_IS_WHOLE_AFTER_S = 0.1
_TRIES = 3
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (.*)')
_asking = threading.Lock()  # one at a time: asking empties the rank's file


def answer(directory: Path, rank: int, shell: Any) -> None:
    """Write the stack of this rank from now on whenever it is asked for.

    Args:
        directory: where the files are.
        rank: the rank in their names.
        shell: the IPython that runs its cells.
    """
    cells = open(directory / f"cells-{rank}", "a", buffering=1)  # noqa: SIM115
    known: dict[str, int] = {}
    # The process that asks for the stack empties the file first.
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
    with _asking:
        for dump, _ in _dumps(directory, rank, send_signal):
            for name, line, _ in _FRAME.findall(dump):
                if CELL_FILE.search(name):
                    cell = _cell_of(name, directory, rank)
                    return f"{cell}, line {line}" if cell else f"line {line}"
    return ""


def ask_stack(directory: Path, rank: int, send_signal: Callable[[], None], site: str) -> list[str]:
    """The stack of the main thread of ``rank``, from its cell to the innermost call.

    Args:
        send_signal: as for :func:`ask`.
        site: the line in which its program is, also while it awaits and is on no stack.

    Returns:
        A line for each call, like ``"cell 5, line 2, in train"``; none if it does not answer.
    """
    with _asking:
        for dump, is_whole in _dumps(directory, rank, send_signal):
            frames = _FRAME.findall(dump)[::-1] if is_whole else []
            if frames:
                break
        else:
            return []
    of_cells = [position for position, frame in enumerate(frames) if CELL_FILE.search(frame[0])]
    if not of_cells and awaiting.__file__ in [name for name, *_ in frames]:
        return [f"{site}, awaiting"]
    return [
        f"{_cell_of(name, directory, rank) or _short(name)}, line {line}, in {function}"
        for name, line, function in frames[of_cells[0] if of_cells else 0 :]
    ]


def _dumps(
    directory: Path, rank: int, send_signal: Callable[[], None]
) -> Iterator[tuple[str, bool]]:
    """Yields the part of the stack that the rank has written so far, and whether it is complete."""
    path = directory / f"stack-{rank}"
    if not path.exists():
        return
    deadline = time.monotonic() + _WITHIN_S
    for _ in range(_TRIES):  # of a process that was stopped, another thread may get a signal
        os.truncate(path, 0)
        send_signal()
        text, since = "", math.inf
        while (now := time.monotonic()) < min(deadline, since + _IS_WHOLE_AFTER_S):
            time.sleep(0.01)
            before, text = text, path.read_text(errors="replace")
            yield text, False
            if text != before:
                since = now
        yield text, True


def _short(name: str) -> str:
    """The path of a module, without that of the environment in which it is installed."""
    return name.rpartition("site-packages/")[2]


def _cell_of(name: str, directory: Path, rank: int) -> str:
    """``"cell 5"`` for the file name of that cell's code; empty for any other, or if not known."""
    known = (directory / f"cells-{rank}").read_text().splitlines()
    numbers = dict(pair for one in known if len(pair := one.split()) == 2)
    number = numbers.get(os.path.basename(name)) if CELL_FILE.search(name) else None
    return f"cell {number}" if number else ""
