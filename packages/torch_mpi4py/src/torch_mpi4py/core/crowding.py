"""Finds out whether other programs take this program's core.

Linux counts for each thread how long it has run, and how long it was ready to run and had no core.
The watcher compares the two for the main thread, which computes. If other programs take the core, a
thread that has used up its share has to wait for the shares of others, and one that has slept is
served as soon as it is woken. So the progress thread then runs a collective, also one that its
caller waits for, if the caller has computed since the last one, or if the collective itself is a
long computation. Two ranks, each bound to one of two cores, beside two busy loops, medians in ms of
several seconds of each way in random order:

                                         loops of other sessions    of the same session
                                         caller  progress  gloo     caller  progress  gloo
5 ms of computing, all_reduce of 64 KiB    14.0       5.6   8.0       11.6      11.8  13.0
0.5 ms of it, all_reduce of 64 KiB          2.5       0.8   3.4        1.8       2.0   3.5
a DDP step of an MLP                       12.5       6.2   9.4       14.5      12.9  15.4
a DDP step of LeNet                        27.6       9.5  11.6       17.9      20.3  17.4
all_reduce of 4 MiB in a loop               1.7       0.6   5.1        2.5       3.6  10.0

Linux gives each session an equal part of the cores (``sched_autogroup_enabled``). Ranks that are
not bound to cores gain nearly as much, 6.2 ms in the first row, because their progress threads keep
to different ones (:mod:`~torch_mpi4py.group.progress`).

More ranks than cores take the cores from each other. Only what a rank loses beyond that counts.
Nor do threads of the rank's own process count, such as those of gloo in a second group: what they
ran is taken off what the main thread waited.

A rank that sleeps often and uses the background looks crowded to itself. So what was found holds
for a while, and is then looked for again as though there were no crowd.

Source: "Documentation/scheduler/sched-stats.rst" of the kernel. Other systems do not count this.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

_CROWDED = 0.2  # of the time in which it wanted a core and its own ranks left it one
_LEAST_WANTED = 0.05  # of all time: less tells nothing
_HOLDS_SECONDS = 2.0
_COMPUTES_SECONDS = 2e-4  # more than a program takes between two collectives without computing
COMPUTES_BYTES = 1 << 21
"""A sum of so many bytes takes longer than that, and so is itself a computation."""


class _Reading(NamedTuple):
    """When it was read, and what the threads of this process had done by then, all in seconds.

    Attributes:
        ran: for how long the main thread had run.
        waited: for how long it had been ready to run and had no core.
        beside: for how long all other threads together had run.
    """

    when: float
    ran: float
    waited: float
    beside: float


ranks_leave = 1.0
"""How much of a core the ranks of this program leave to each of them; a channel sets it."""
others_take_the_core = False
"""Whether they did when this was last looked at."""
collective_ended = 0.0
"""When the latest collective of this rank ended, if others took the core; written by its caller."""
_before: _Reading | None = None


def look() -> None:
    """Compare with the last look, a tenth of a second ago; the watcher calls this."""
    global others_take_the_core, _before
    now = time.perf_counter()
    if others_take_the_core and _before is not None and now < _before.when + _HOLDS_SECONDS:
        return
    reading = _read(now)
    others_take_the_core = not others_take_the_core and _took(_before, reading)
    _before = reading


def has_computed(now: float) -> bool:
    """Return whether the caller of a collective has computed, or slept, since the latest one."""
    # The thread's CPU time would tell which, but Linux ends an expired time slice when it is asked
    # for it: beside loops of the same session, an all_reduce of 64 KiB took 350 us in place of 200.
    return now > collective_ended + _COMPUTES_SECONDS


def _took(before: _Reading | None, after: _Reading | None) -> bool:
    if before is None or after is None:
        return False
    ran = after.ran - before.ran
    waited = after.waited - before.waited - (after.beside - before.beside)
    wanted = ran + max(waited, 0.0)
    enough = (1 - _CROWDED) * ranks_leave * wanted
    return ran < enough and wanted > _LEAST_WANTED * (after.when - before.when)


def _read(now: float) -> _Reading | None:
    main_thread = os.getpid()
    try:
        with open(f"/proc/self/task/{main_thread}/schedstat", "rb") as file:
            ran, waited, _ = file.read().split()
    except (OSError, ValueError):  # not Linux, or a kernel that does not count
        return None
    main_ran = 1e-9 * int(ran)
    return _Reading(now, main_ran, 1e-9 * int(waited), time.process_time() - main_ran)
