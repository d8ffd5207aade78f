"""Decides when a start has failed: one that waits for a core needs longer, one that is stuck not.

A start is some seconds of work. Where many learners start at once far more processes want to run
than there are cores, and the same work takes minutes with nothing wrong. So the deadline is for the
start's own time: the seconds in which its processes waited for a core do not count. A start that is
really stuck waits for something else, and ends when it always did.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from .cores import WAITS_ARE_TOLD, waited

_A_STEP_GIVES = 0.5  # of the usual time, should that be over sooner
_CROWDED = 0.5  # waits for a core for more than half of the time


class StartClock:
    """The time a start has taken, and how much of it was its own.

    Args:
        began: when it began, in seconds of ``time.monotonic()``.
        usual: seconds of its own after which it has failed.
        most: seconds after which it has failed in any case.

    Attributes:
        own: seconds in which it did not wait for a core.
        crowded: whether it mostly waits for one now.
    """

    def __init__(self, began: float, usual: float, most: float) -> None:
        self.own = 0.0
        self.crowded = False
        self._began = self._looked = began
        self._usual, self._most = usual, most
        self._stepped = 0.0  # what of its own time had passed at the latest step
        self._waited: dict[int, float] = {}

    def step(self) -> None:
        """Note that some process of the start has got further."""
        self._stepped = self.own

    def look(self, now: float, processes: Iterable[int]) -> None:
        """Count the time since the last look.

        Args:
            now: the present time.
            processes: those of the start on this machine.
        """
        passed = now - self._looked
        if passed <= 0:
            return
        before, self._looked = self._waited, now
        self._waited = {pid: has for pid in processes if (has := waited(pid)) is not None}
        # Of processes that wait together the longest wait counts: the start needs all of them.
        waits = [has - before[pid] for pid, has in self._waited.items() if pid in before]
        share = min(max(waits, default=0.0) / passed, 1.0) if WAITS_ARE_TOLD else _share_by_load()
        self.own += passed * (1 - share)
        self.crowded = share > _CROWDED

    def seconds(self, now: float) -> float:
        """All the time it has taken."""
        return now - self._began

    def is_over(self, now: float) -> bool:
        """Whether it has failed."""
        own = self.own + now - self._looked
        limit = max(self._usual, self._stepped + _A_STEP_GIVES * self._usual)
        return self.seconds(now) >= self._most or own >= limit


def _share_by_load() -> float:
    """What share of its time a process waits for a core, where only the load is known."""
    wanted = os.getloadavg()[0] / (os.cpu_count() or 1)
    return 1 - 1 / max(1.0, wanted)
