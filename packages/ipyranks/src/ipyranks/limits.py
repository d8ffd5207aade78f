"""Judges a cell by the state of its ranks: whether it is over its limit, and whether it can go on.

Everything here is a function of plain views of the ranks (:class:`.RankView`, by engine) and of
times, all by one clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from .boards import Views, same_waits, wait_for_others
from .cores import OwnTime, Waited
from .errors import ClusterError

DEFAULT_LIMIT_S = 60.0

# Ranks that wait for a core for a larger share of the time are kept from it by other programs.
_CROWDED = 0.8
_AT_MOST_TIMES = 10  # the limit, in a crowd
# How long nothing has moved, after a rank that is needed has failed. MPI reports a death to the
# ranks, in 0.2 s on a quiet machine; and a rank whose call is over may have no core to show it.
_HOPELESS_AFTER_S = 0.5
_HOPELESS_FOR_CERTAIN_S = 3.0
_MOVES_WITHIN_S = 0.5
_BEGUN_WITHIN_S = 5.0  # by all ranks; some milliseconds on a quiet machine


@dataclass(frozen=True)
class Limit:
    """How long a cell may take.

    Attributes:
        seconds: the limit; infinite for none.
        without_progress: count from the latest sign of progress (something printed, a call of
            communication ended) instead of from the start.
    """

    seconds: float
    without_progress: bool = False

    @classmethod
    def of(cls, value: Any) -> Limit:
        """Read ``5``, ``"5"``, ``"60+"`` (60 s without progress), ``None`` (no limit).

        Raises:
            ClusterError: if it is none of these.
        """
        if isinstance(value, Limit):
            return value
        if value is None or str(value).lower() in ("none", "inf"):
            return cls(math.inf)
        text = str(value)
        try:
            seconds = float(text.removesuffix("+"))
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise ClusterError(
                f"limit {text}: give seconds, like 5; or 60+, for 60 s without progress; or none"
            )
        return cls(seconds, text.endswith("+"))

    def __str__(self) -> str:
        if math.isinf(self.seconds):
            return "none"
        return f"{self.seconds:g} s" + (" without progress" if self.without_progress else "")


class Watch:
    """Watches one run of a cell.

    In its methods ``views`` are of all ranks of the cell, and ``late`` are those of them that have
    not ended it.

    Args:
        limit: how long it may take.
        run: the identity of the run.
        now: when it began.
        views: at that time.
    """

    def __init__(self, limit: Limit, run: str, now: float, views: Views) -> None:
        self.began = self.looked_at_cores = now
        self._limit = limit
        self._run = run
        self._printed, self._printed_at = 0, now
        self._at_rest: Views = {}
        self._at_rest_since = now
        self._first = views
        self._left_out = 0.0
        self._own = OwnTime(now, _CROWDED)
        self.look_at_cores(now, views, views.keys())

    def note_printed(self, now: float, printed: int) -> None:
        """Record how many characters the ranks have printed so far."""
        if printed != self._printed:
            self._printed, self._printed_at = printed, now

    def leave_out(self, seconds: float, now: float) -> None:
        """Leave out the time in which a user looked at ranks that stopped at breakpoints."""
        self._left_out += seconds
        self._printed_at = now

    def last_sign(self, views: Views) -> float:
        """When something was last printed or a call of communication ended."""
        return max(self._printed_at, last_movement(views))

    @property
    def soonest(self) -> float:
        """When the limit will have passed at the earliest."""
        return self.began + self._left_out + self._limit.seconds

    def over_at(self, views: Views, late: Collection[int]) -> float:
        """When the limit will have passed, by current knowledge."""
        begun = self._begun_by_all(views, late)
        # What ranks that compute waited for a core in a crowd does not count, nor what they idled
        # before all had begun.
        own = max(self._own.seconds - (begun - self.began), 0.0)
        excused = min(
            self.looked_at_cores - self.began - own, (_AT_MOST_TIMES - 1) * self._limit.seconds
        )
        excused += self._left_out
        since = self.last_sign(views) if self._limit.without_progress else self.began + excused
        return max(since, begun) + self._limit.seconds

    def _begun_by_all(self, views: Views, late: Collection[int]) -> float:
        """When the last of the ranks that are in the cell began, from which the limit counts.

        On a busy machine an engine may get its cell late, and shows nothing of it before that.
        """
        at_most = self.began + _BEGUN_WITHIN_S
        if any(views[engine].run != self._run for engine in late):
            return at_most
        return min(max((views[engine].began for engine in late), default=self.began), at_most)

    def look_at_cores(self, now: float, views: Views, late: Collection[int]) -> None:
        """Count the time, without the waits of computing ranks for a core on a crowded machine."""
        self.looked_at_cores = now
        waits = {
            engine: Waited(view.waited, view.waited_at)
            for engine, view in views.items()
            if view.waited is not None
        }
        self._own.look(now, waits, computing(views, late))

    def starved(self, views: Views, late: Collection[int]) -> dict[int, float]:
        """How long each rank that computes has waited for a core since the cell began."""
        return {
            engine: now - before
            for engine in computing(views, late)
            if (before := self._first[engine].waited) is not None
            and (now := views[engine].waited) is not None
        }

    def is_hopeless(self, now: float, views: Views, late: Collection[int], died: bool) -> bool:
        """Whether all others wait for something that never comes because a rank has failed.

        Args:
            died: whether it has died.
        """
        of_late = {engine: views[engine] for engine in late}
        if not same_waits(self._at_rest, of_late):
            self._at_rest, self._at_rest_since = of_late, now
        rested = now - self._at_rest_since
        if rested >= _HOPELESS_FOR_CERTAIN_S:
            return all(view.wait is not None for view in of_late.values())
        return rested >= _HOPELESS_AFTER_S and not died and wait_for_others(self._at_rest, of_late)


class ShortWaits:
    """Finds out whether each wait of the ranks is soon over, as in a loop of messages.

    Args:
        now: when the question is asked.
    """

    def __init__(self, now: float) -> None:
        self._until = now + _MOVES_WITHIN_S
        self._left: dict[int, int] = {}

    def are_over(self, now: float, views: Views) -> bool | None:
        """Look at the ranks again; return the answer once it is known, and None before that."""
        if last_movement(views) <= self._until - 2 * _MOVES_WITHIN_S:
            return False
        if self._left:
            self._left = {e: wait for e, wait in self._left.items() if views[e].wait == wait}
            if not self._left:
                return True
        else:  # at one look, each rank of a loop may be between two of its calls
            self._left = {e: view.wait for e, view in views.items() if view.wait is not None}
        return False if now > self._until else None


def computing(views: Views, late: Collection[int]) -> list[int]:
    """The ranks that have not ended the cell and do not wait for another."""
    return [engine for engine in late if views[engine].wait is None]


def last_movement(views: Views) -> float:
    """When some rank last ended a call of communication, or 0."""
    return max((view.moved for view in views.values()), default=0.0)
