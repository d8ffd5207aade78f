"""The one idea: a rank leaves cleanly, however it leaves, and takes nobody down with it.

Threads are joined before Python's exit, or the interpreter aborts. A rank that ends by an
uncaught exception frees the others, which would otherwise wait for it until their deadline.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType

from . import guard
from .group import live_groups
from .runtime import MPI

__all__ = ["install"]

_failed = False


def install() -> None:
    """Arrange for a clean exit of this process."""
    atexit.register(_leave)
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        previous(kind, error, traceback)
        _free_the_others()

    sys.excepthook = excepthook


def _free_the_others() -> None:
    """After an uncaught exception, end what other ranks may be waiting for."""
    global _failed
    _failed = True
    for group in list(live_groups):
        group.abort()
    if not guard.has_ulfm() and live_groups and MPI.COMM_WORLD.Get_size() > 1:
        # Nothing else frees ranks that are stuck in this MPI.
        sys.stdout.flush()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)


def _leave() -> None:
    for group in sorted(live_groups, key=lambda group: group.group_name, reverse=True):
        group.shutdown()
    if guard.is_stuck():
        # A thread of this process will never come out of MPI, so MPI_Finalize would not
        # return either. An error was raised when that happened.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
