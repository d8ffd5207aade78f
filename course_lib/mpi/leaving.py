"""The one idea: a rank leaves cleanly, however it leaves, and takes nobody down with it.

Threads are joined before Python's exit, or the interpreter aborts. A rank that ends by an
uncaught exception frees the others, which would otherwise wait for it until their deadline.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import sys
import termios
import time
from types import TracebackType
from typing import TextIO

from . import guard
from .group import live_groups
from .runtime import MPI

__all__ = ["install"]

_READING_SECONDS = 1.0
_must_abort = False
_failed = False


def install() -> None:
    """Arrange for a clean exit of this process."""
    atexit.register(_leave)
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        global _failed
        _failed = True
        previous(kind, error, traceback)
        _free_the_others()

    sys.excepthook = excepthook


def _free_the_others() -> None:
    """After an uncaught exception, end what other ranks may be waiting for."""
    global _must_abort
    # Nothing but an abort frees ranks that are stuck in an MPI without fault tolerance. It
    # has to wait: PyTorch calls this hook with stderr held back, to put "[rank1]:" before it.
    _must_abort = not guard.has_ulfm() and bool(live_groups) and MPI.COMM_WORLD.Get_size() > 1
    for group in list(live_groups):
        group.abort()


def _leave() -> None:
    if _must_abort:
        _let_the_launcher_read()
        MPI.COMM_WORLD.Abort(1)
    for group in sorted(live_groups, key=lambda group: group.group_name, reverse=True):
        group.shutdown()
    if guard.is_stuck():
        # A thread of this process will never come out of MPI, so MPI_Finalize would not
        # return either. An error was raised when that happened.
        _end_without_mpi(1)
    if guard.failed_ranks(MPI.COMM_WORLD):
        # Open MPI 5.0.11's MPI_Finalize waits at a fence of all ranks, and sometimes (3 of 8
        # watched runs) for the dead one, for ever.
        _end_without_mpi(int(_failed))


def _end_without_mpi(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _let_the_launcher_read() -> None:
    """Wait until the launcher has taken what this rank printed, at most a second.

    MPICH's launcher kills a job that aborts without emptying its pipes first, and the
    traceback that says why would be lost.
    """
    deadline = time.monotonic() + _READING_SECONDS
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        while _unread(stream) and time.monotonic() < deadline:
            time.sleep(0.001)


def _unread(stream: TextIO) -> int:
    """Return the number of bytes in the pipe behind ``stream``, 0 where there is none."""
    answer = bytearray(4)
    try:
        fcntl.ioctl(stream.fileno(), termios.FIONREAD, answer)
    except OSError:  # a file, a notebook's stream, or a system that does not say
        return 0
    return int.from_bytes(answer, sys.byteorder)
