"""Tell a rank that is stuck in C code from one that only has no core.

A Python thread of every rank gives signs of life. They stop while C code on the main thread keeps
the interpreter's lock, but also while the machine has no core for the rank. The difference shows
in how long the main thread has actually run since the last sign. (Under MPICH, freed ranks leave
spinning threads behind, and on a busy machine one rank got no core for a second.)
"""

from __future__ import annotations

import contextlib
import threading
import time

SILENT_S = 1.0
"""Signs come ten times a second; a rank without one for so long may be stuck."""
_COMPUTED_S = 0.25  # handing over the lock takes 5 ms of it
_SILENT_ASLEEP_S = 2.0  # C code that keeps the lock may wait for something
_SILENT_FOR_CERTAIN_S = 5.0


def own_cpu_seconds() -> float:
    """Return how long the main thread of this process has run on a core; 0 if unknown."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    ident = threading.main_thread().ident
    return 0.0 if ident is None else time.clock_gettime(time.pthread_getcpuclockid(ident))


def keeps_the_lock(silent: float, computed: float, asleep: bool) -> bool:
    """Return whether the main thread of a rank keeps the interpreter's lock.

    Args:
        silent: seconds since its last sign of life.
        computed: seconds for which it has run on a core since then.
        asleep: whether it waits for something in the system.
    """
    if silent <= SILENT_S:
        return False
    return (
        silent > _SILENT_FOR_CERTAIN_S
        or computed > _COMPUTED_S
        or (asleep and silent > _SILENT_ASLEEP_S)
    )


def seen_since(pid: int, cpu: float) -> tuple[float, bool]:
    """Return how long the main thread of a process has run since a sign, and whether it sleeps.

    Args:
        pid: the process, on this machine.
        cpu: the value of :func:`own_cpu_seconds` in that process at that sign.
    """
    import psutil

    with contextlib.suppress(psutil.Error):  # it has ended, or the system does not report it
        process = psutil.Process(pid)
        asleep = process.status() in (psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP)
        main = [thread for thread in process.threads() if thread.id == pid]
        computed = sum(thread.user_time + thread.system_time for thread in main) - cpu
        return (computed if main else 0.0), asleep
    return 0.0, False
