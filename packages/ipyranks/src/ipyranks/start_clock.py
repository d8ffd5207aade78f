"""Decides when a start has failed: one that waits for a core needs longer, one that is stuck not.

A start is some seconds of work. Where many people start at once far more processes want to run
than there are cores, and the same work takes minutes with nothing wrong. So the deadline is for the
start's own time: the seconds in which its processes waited for a core do not count. A start that is
really stuck waits for something else, and ends when it always did.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from .cores import WAITS_ARE_TOLD, OwnTime

_A_STEP_GIVES = 0.5  # of the usual time, should that be over sooner
_CROWDED = 0.5  # waits for a core for more than half of the time


class StartClock(OwnTime):
    """The time a start has taken, and how much of it was its own.

    Args:
        began: when it began, in seconds of ``time.monotonic()``.
        usual: seconds of its own after which it has failed.
        most: seconds after which it has failed in any case.
    """

    def __init__(self, began: float, usual: float, most: float) -> None:
        super().__init__(began)
        self._usual, self._most = usual, most
        self._stepped = 0.0  # what of its own time had passed at the latest step

    @property
    def crowded(self) -> bool:
        """Whether it mostly waits for a core now."""
        return self.share > _CROWDED

    def step(self) -> None:
        """Note that some process of the start has got further."""
        self._stepped = self.seconds

    def look(
        self, now: float, processes: Iterable[int], needed: Collection[int] | None = None
    ) -> None:
        """Count the time since the last look; see :meth:`.OwnTime.look`."""
        if WAITS_ARE_TOLD:
            super().look(now, processes, needed)
        elif now > self._looked:
            passed, self._looked = now - self._looked, now
            self.count(passed, _share_by_load())

    def is_over(self, now: float) -> bool:
        """Whether it has failed."""
        limit = max(self._usual, self._stepped + _A_STEP_GIVES * self._usual)
        return now - self.began >= self._most or self.at(now) >= limit


def _share_by_load() -> float:
    """What share of its time a process waits for a core, where only the load is known."""
    wanted = os.getloadavg()[0] / (os.cpu_count() or 1)
    return 1 - 1 / max(1.0, wanted)
