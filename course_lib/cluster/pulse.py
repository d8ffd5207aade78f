"""A rank shows from outside that it lives, what it runs, and where it is.

Three small files for each rank, in the cluster's runtime directory:

- ``pulse-R``: a heartbeat, written by a Python thread (so it stops while C code keeps the
  interpreter's lock), the number of the running cell, and how the last one
  ended;
- ``stack-R``: after SIGUSR1 the Python stack of its main thread, written by a C signal handler,
  which works even then;
- ``cells-R``: which file name in a stack belongs to which cell.

Any process of the same user on this machine can read them, also after the rank was killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import mmap
import os
import re
import signal
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple

from torch_mpi4py import main_thread

from .tracebacks import CELL_FILE, shorten

__all__ = ["Beat", "Pulse", "read_beat", "read_stack", "stack_signal"]

_LAYOUT = struct.Struct("<ddddqqdq256s")
_BEAT_S = 0.1
_STACK_WITHIN_S = 2.0  # a few ms, where there is a core for the rank
_STACK_IS_WHOLE_AFTER_S = 0.1
_STACK_TRIES = 3
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in ')


class Beat(NamedTuple):
    """What a rank showed last; times are of ``time.perf_counter()``.

    Attributes:
        at: its last heartbeat.
        began: when the running cell, or else the last one, began.
        ended: when it ended, 0 while it runs.
        renewed: when communication was last made anew; what is older is over.
        cell: its number in the notebook, 0 if there was none or cells are not counted there
            (as under nbval, which keeps no history).
        flags: see the constants of :mod:`.rank_functions`.
        cpu: seconds its main thread had run on a core at its last heartbeat.
        pid: its process.
        outcome: ``"ok"`` or e.g. ``"ValueError: wrong"``.
    """

    at: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    renewed: float = 0.0
    cell: int = 0
    flags: int = 0
    cpu: float = 0.0
    pid: int = 0
    outcome: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether a cell is running."""
        return self.began > 0 and self.ended == 0

    @property
    def age(self) -> float:
        """Seconds since the last heartbeat."""
        return time.perf_counter() - self.at

    @property
    def is_stuck(self) -> bool:
        """Whether the heart stands still because C code keeps the interpreter's lock."""
        return main_thread.is_stuck(self.age, self.pid, self.cpu)


mine: Pulse | None = None
"""The pulse of this process."""


class Pulse:
    """The rank's own end; made once in every engine.

    Args:
        directory: where the files are.
        rank: whose they are.
        condition: called at the end of a cell for its flags.
        progress: called at every beat.
    """

    def __init__(self, directory: Path, rank: int, condition, progress):
        global mine
        mine = self
        directory.mkdir(mode=0o700, exist_ok=True)
        self._condition = condition
        self._progress = progress
        self._beat = Beat(pid=os.getpid())
        self._lock = threading.Lock()
        with open(directory / f"pulse-{rank}", "wb+") as file:
            file.truncate(_LAYOUT.size)
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._cells = open(directory / f"cells-{rank}", "a", buffering=1)  # noqa: SIM115
        self._known: dict[str, int] = {}
        # Whoever asks for the stack empties the file first.
        stack = os.open(directory / f"stack-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        faulthandler.register(stack_signal(), file=stack, all_threads=False)
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._write()
            self._progress()
            time.sleep(_BEAT_S)

    def _write(self, **changes) -> None:
        with self._lock:
            cpu = main_thread.own_cpu_seconds()
            beat = self._beat._replace(at=time.perf_counter(), cpu=cpu, **changes)
            self._beat = beat
            *numbers, outcome = beat
            _LAYOUT.pack_into(self._memory, 0, *numbers, outcome.encode()[:256])

    def follow(self, kernel) -> None:
        """Show from now on which file names belong to which cell of ``kernel``."""
        cache = kernel.shell.compile.cache

        def cache_and_note(code, number=0, raw_code=None):
            name = cache(code, number, raw_code)
            self._note(os.path.basename(name), number)
            return name

        kernel.shell.compile.cache = cache_and_note
        shorten(kernel.shell.InteractiveTB)

    def begin(self, number: int) -> None:
        """Show that a cell begins."""
        self._write(began=time.perf_counter(), ended=0.0, cell=number, outcome="", flags=0)

    def end(self, outcome: str) -> None:
        """Show how the cell has ended."""
        flags = self._condition()
        self._write(ended=time.perf_counter(), outcome=outcome, flags=flags)

    def note_renewal(self) -> None:
        """Show that communication is new."""
        self._write(renewed=time.perf_counter())

    def _note(self, name: str, number: int) -> None:
        if self._known.get(name) != number:
            self._known[name] = number
            self._cells.write(f"{name} {number}\n")


def stack_signal() -> int:
    """The signal that makes a rank write its stack."""
    return signal.SIGUSR1


def read_beat(directory: Path, rank: int) -> Beat:
    """What ``rank`` showed last; an empty :class:`Beat` if it never showed anything."""
    with contextlib.suppress(FileNotFoundError, struct.error):
        data = (directory / f"pulse-{rank}").read_bytes()
        *numbers, outcome = _LAYOUT.unpack(data)
        text = outcome.rstrip(b"\0").decode(errors="replace")
        return Beat(*numbers, text)
    return Beat()


def read_stack(directory: Path, rank: int, send_signal) -> str:
    """Where the main thread of ``rank`` is, as ``"cell 5, line 2"``; empty if not in a cell.

    Args:
        send_signal: called without arguments, sends the rank its :func:`stack_signal`.
    """
    path = directory / f"stack-{rank}"
    if not path.exists():
        return ""
    deadline = time.monotonic() + _STACK_WITHIN_S
    for _ in range(_STACK_TRIES):  # of a process that was stopped, another thread may get a signal
        os.truncate(path, 0)
        send_signal()
        text, since = "", math.inf
        while (now := time.monotonic()) < min(deadline, since + _STACK_IS_WHOLE_AFTER_S):
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
            number = _cells(directory, rank).get(os.path.basename(name))
            return f"cell {number}, line {line}" if number else f"line {line}"
    return ""


def _cells(directory: Path, rank: int) -> dict[str, int]:
    pairs = (line.split() for line in (directory / f"cells-{rank}").read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
