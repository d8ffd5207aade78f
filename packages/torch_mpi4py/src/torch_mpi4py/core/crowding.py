"""Finds out whether other programs take this program's core.

Linux counts for each thread how long it has run, and how long it was ready to run and had no core.
The watcher compares the two for the main thread, which computes. If other programs take the core,
a rank does better to sleep at once than to look around for others: a thread that sleeps often gets
a core as soon as it is woken, and one that has used up its share has to wait for those of others.
For the same reason a thread that only communicates, and does so in the background, is served at
once. Two ranks on two cores, each beside a busy loop of another session, medians: an all_reduce of
4 bytes takes 270 us in place of 470, one of 1 MiB 660 in place of 1,090. A DDP step of an MLP takes
2.6 to 3.9 ms in place of 12 to 25 (gloo: 6 to 7) if each rank is bound to a core; with ranks that
are not, 9 to 10 ms either way.

A rank that sleeps often and uses the background looks crowded to itself. So what was found holds
for a while, and is then looked for again as though there were no crowd.

Source: "Documentation/scheduler/sched-stats.rst" of the kernel. Other systems do not count this.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

_CROWDED = 0.2  # of the time in which it wanted a core
_LEAST_WANTED = 0.05  # of all time: less tells nothing
_HOLDS_SECONDS = 2.0


class _Reading(NamedTuple):
    """When it was read, for how long the thread had run by then, and waited, all in seconds."""

    when: float
    ran: float
    waited: float


others_take_the_core = False
"""Whether they did when this was last looked at."""
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


def _took(before: _Reading | None, after: _Reading | None) -> bool:
    if before is None or after is None:
        return False
    waited = after.waited - before.waited
    wanted = waited + after.ran - before.ran
    return waited > _CROWDED * wanted and wanted > _LEAST_WANTED * (after.when - before.when)


def _read(now: float) -> _Reading | None:
    main_thread = os.getpid()
    try:
        with open(f"/proc/self/task/{main_thread}/schedstat", "rb") as file:
            ran, waited, _ = file.read().split()
    except (OSError, ValueError):  # not Linux, or a kernel that does not count
        return None
    return _Reading(now, 1e-9 * int(ran), 1e-9 * int(waited))
