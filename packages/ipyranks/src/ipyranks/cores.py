"""Measures how long processes have waited for a core, and discounts those waits.

A start, or a cell, that waits for a core needs longer; one that is stuck does not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

_A_STEP_GIVES = 0.5  # of the usual time of a start, from the step on, if that ends later
_CROWDED = 0.5  # waits for a core for more than half of the time

WAITS_ARE_TOLD = Path("/proc/self/schedstat").exists()
"""Whether :func:`waited` works on this system, as it does on Linux."""


class Waited(NamedTuple):
    """How long a process's main thread has waited for a core.

    Attributes:
        seconds: in all, for which it could run but had no core.
        at: when this was read, by ``time.perf_counter()``. One who looks at several processes may
            itself wait for a core in between.
    """

    seconds: float
    at: float


def waited(pid: int) -> Waited | None:
    """Return how long a process has waited for a core, None if it has ended or this is unknown.

    If a group of processes has a limit of its own, as in a container, waits because of that count
    too.
    """
    try:
        with open(f"/proc/{pid}/schedstat", "rb", buffering=0) as file:
            text, at = file.read(), time.perf_counter()
    except OSError:
        return None
    return Waited(int(text.split()[1]) / 1e9, at)


def waits(processes: Iterable[int]) -> dict[int, Waited]:
    """Return :func:`waited` by process, for the processes for which it is known."""
    return {pid: found for pid in processes if (found := waited(pid)) is not None}


class OwnTime:
    """Counts the time of a piece of work, without its waits for a core.

    Args:
        began: when the work began, in seconds of the clock that ``now`` is from.
        least: the share of the time it has to wait before waits are discounted.

    Attributes:
        began: the same.
        seconds: the time that counts, up to the latest look.
        share: the share of its time that it waited for a core between the latest two looks.
    """

    def __init__(self, began: float, least: float = 0.0) -> None:
        self.began = began
        self.seconds = 0.0
        self.share = 0.0
        self._looked = began
        self._least = least
        self._waits: Mapping[int, Waited] = {}

    def look(
        self, now: float, waits: Mapping[int, Waited], needed: Collection[int] | None = None
    ) -> None:
        """Count the time since the last look.

        Args:
            now: the present time.
            waits: how long each working process has waited for a core.
            needed: those that the work waits for now, by default all. The longest wait among them
                counts.
        """
        before, passed = self._waits, now - self._looked
        self._looked, self._waits = now, waits
        shares = [
            (has.seconds - before[one].seconds) / (has.at - before[one].at)
            for one, has in waits.items()
            if one in before and has.at > before[one].at and (needed is None or one in needed)
        ]
        if passed > 0:
            self.count(passed, min(max(shares, default=0.0), 1.0))

    def count(self, passed: float, share: float) -> None:
        """Count some seconds, of which a share was spent waiting for a core."""
        self.share = share
        self.seconds += passed * (1 - share) if share >= self._least else passed

    def at(self, now: float) -> float:
        """The time that counts, if it has not waited since the latest look."""
        return self.seconds + now - self._looked


class StartClock(OwnTime):
    """The time that a start has taken, and its own share of that time.

    A start is some seconds of work. Where many people start at once far more processes want to run
    than there are cores, and the same work takes minutes with nothing wrong. So the deadline is for
    the start's own time: the seconds in which its processes waited for a core do not count. A start
    that is really stuck waits for something else, and ends when it always did.

    Args:
        began: when it began, in seconds of ``time.monotonic()``.
        usual: seconds of its own after which it has failed.
        most: seconds after which it has failed in any case.
    """

    def __init__(self, began: float, usual: float, most: float) -> None:
        super().__init__(began)
        self._usual, self._most = usual, most
        self._stepped = 0.0  # the own time that had passed at the latest step

    @property
    def crowded(self) -> bool:
        """Whether it mostly waits for a core now."""
        return self.share > _CROWDED

    def step(self) -> None:
        """Note that some process of the start has got further."""
        self._stepped = self.seconds

    def look(
        self, now: float, waits: Mapping[int, Waited], needed: Collection[int] | None = None
    ) -> None:
        """Count the time since the last look; see :meth:`.OwnTime.look`."""
        if WAITS_ARE_TOLD:
            super().look(now, waits, needed)
        elif now > self._looked:
            passed, self._looked = now - self._looked, now
            self.count(passed, _share_by_load())

    def is_over(self, now: float) -> bool:
        """Whether it has failed."""
        limit = max(self._usual, self._stepped + _A_STEP_GIVES * self._usual)
        return now - self.began >= self._most or self.at(now) >= limit


def _share_by_load() -> float:
    """The share of its time that a process waits for a core, if only the load is known."""
    wanted = os.getloadavg()[0] / (os.cpu_count() or 1)
    return 1 - 1 / max(1.0, wanted)
