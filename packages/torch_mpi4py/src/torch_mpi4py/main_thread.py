"""A silent rank is stuck in C code only if its main thread has computed meanwhile.

A Python thread of every rank gives signs of life. They stop while C code on the main thread keeps
the interpreter's lock, but also while the machine has no core for the rank. The difference shows
in how long the main thread has really run since the last sign.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

__all__ = ["SILENT_S", "is_stuck", "own_cpu_seconds"]

SILENT_S = 1.0
"""Signs come ten times a second; a rank without one for so long may be stuck."""
_COMPUTED_S = 0.25  # handing over the lock takes 5 ms of it
_SILENT_ASLEEP_S = 2.0  # C code that keeps the lock may wait for something
_SILENT_FOR_CERTAIN_S = 5.0


def own_cpu_seconds() -> float:
    """Return how long the main thread of this process has run on a core; 0 if nobody knows."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident))


def is_stuck(silent: float, pid: int, cpu: float) -> bool:
    """Return whether the main thread of a rank keeps the interpreter's lock.

    Args:
        silent: seconds since its last sign of life.
        pid: its process.
        cpu: what :func:`own_cpu_seconds` was there at that sign.
    """
    if silent <= SILENT_S:
        return False
    if silent > _SILENT_FOR_CERTAIN_S:
        return True
    state, now = _state_of(pid)
    return now - cpu > _COMPUTED_S or (state in "SD" and silent > _SILENT_ASLEEP_S)


def _state_of(pid: int) -> tuple[str, float]:
    """Return the main thread's state and its seconds on a core, in hundredths, if known."""
    with contextlib.suppress(OSError):  # it has ended, or the system has no such files
        text = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
        state, *fields = text.rpartition(")")[2].split()
        user, system = fields[10:12]
        return state, (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return "unknown", 0.0
