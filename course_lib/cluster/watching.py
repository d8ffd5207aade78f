"""No cell holds the notebook for ever.

A :class:`CellWatch` waits for a cell until all ranks have ended it, its limit has passed, or
ranks wait in vain for one that raised an error; :func:`free` then gets the ranks out of it.
"""

from __future__ import annotations

import math
import re
import signal
import time
from dataclasses import dataclass

from .errors import DIED, ClusterError
from .pulse import read_beat
from .report import last_movement, waits_of

__all__ = ["DEFAULT_LIMIT_S", "CellWatch", "Limit", "free", "take_limit"]

DEFAULT_LIMIT_S = 60.0

_LIVE_AFTER_S = 0.3
_LOOK_EVERY_S = 0.25
_ASK_EVERY_S = 0.5  # the keeper, whether the cluster still lives
_IN_VAIN_AFTER_S = 0.5  # nothing has moved for so long, and a rank that is needed has failed
_DEATH_HEARD_WITHIN_S = 3.0  # of which MPI tells the ranks, in 0.2 s on a quiet machine
_FREE_WITHIN_S = 6.0  # 0.7 s on a quiet machine
_STUCK_AFTER_S = 1.5
_LOOK_AGAIN_S = 0.1
_OPTION = re.compile(r"(?:^|\s)--limit(?:=|\s+)(\S+)")
_FIRST_OPTION = re.compile(r"^\s*--limit(?:=|\s+)(\S+)\s*")


@dataclass(frozen=True)
class Limit:
    """How long a cell may take.

    Attributes:
        seconds: so long; infinite for no limit.
        without_progress: count from the latest sign of progress (something printed, a call of
            communication ended) instead of from the start.
    """

    seconds: float
    without_progress: bool = False

    @classmethod
    def of(cls, value) -> Limit:
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


def take_limit(line: str, first: bool = False) -> tuple[str | None, str]:
    """Return the value of ``--limit`` in the options of a magic, and the line without it.

    Args:
        first: only at the beginning, where code follows.
    """
    pattern = _FIRST_OPTION if first else _OPTION
    found = pattern.search(line)
    return (found[1], pattern.sub("", line, count=1)) if found else (None, line)


class CellWatch:
    """Waits for one cell.

    Args:
        cluster: where it runs.
        result: its ``AsyncResult``.
        ranks: of the children of ``result``.
        output: the :class:`~course_lib.cluster.output.CellOutput` of it.
        limit: how long it may take.
    """

    def __init__(self, cluster, result, ranks: list[int], output, limit: Limit):
        self._cluster = cluster
        self._result = result
        self._ranks = ranks
        self._output = output
        self._limit = limit
        self._began = time.perf_counter()
        self._printed = 0
        self._printed_at = self._began
        self._waits: dict[int, int] = {}
        self._waits_since = self._began

    def wait(self, live: bool = False, progress_after: float = -1) -> str:
        """Wait, and return why it is over: ``"done"``, ``"limit"`` or ``"in vain"``.

        Args:
            live: show output as it comes.
            progress_after: show a bar after so many seconds; -1 for never.

        Raises:
            ClusterError: if the cluster ends.
        """
        interval = 0.2 if live else _LOOK_EVERY_S
        asked = self._began
        pause = _LIVE_AFTER_S
        while True:
            left = self._began + self._limit.seconds - time.perf_counter()
            if self._result.wait(min(pause, left) if left > 0 else pause):
                return "done"
            pause = interval
            now = time.perf_counter()
            self._note_printed(now)
            if live:
                waited = now - self._began
                self._output.show_live(progress=0 <= progress_after <= waited)
            if now - asked >= _ASK_EVERY_S:
                asked = now
                self._cluster.status()
            if self._in_vain(now):
                return "in vain"
            if now >= self._began + self._limit.seconds and self._is_over(now):
                return "limit"

    @property
    def moved_lately(self) -> bool:
        """Whether the ranks have shown progress in the second half of the limit."""
        return time.perf_counter() - self._last_sign() < self._limit.seconds / 2

    def _is_over(self, now: float) -> bool:
        if not self._limit.without_progress:
            return True
        return now >= self._last_sign() + self._limit.seconds

    def _last_sign(self) -> float:
        """When something was last printed or a call of communication ended."""
        moved = last_movement(self._cluster.events_directory, self._engines())
        return max(self._printed_at, moved)

    def _note_printed(self, now: float) -> None:
        printed = self._output.printed()
        if printed != self._printed:
            self._printed, self._printed_at = printed, now

    def _engines(self) -> list[int]:
        return [self._cluster.engine_ids[rank] for rank in self._ranks]

    def _in_vain(self, now: float) -> bool:
        """Whether a rank has failed and all that go on wait for something that does not come."""
        pairs = list(zip(self._ranks, self._result._children, strict=True))
        going_on = [rank for rank, child in pairs if not child.done()]
        answers = [child.result() for _, child in pairs if child.done()]
        failed = [answer for answer in answers if _is_error(answer)]
        if not failed or not going_on:
            return False
        engines = [self._cluster.engine_ids[rank] for rank in going_on]
        waits = waits_of(self._cluster.events_directory, engines)
        if waits != self._waits:
            self._waits, self._waits_since = waits, now
        died = any(getattr(answer, "ename", "") == DIED for answer in failed)
        patience = _DEATH_HEARD_WITHIN_S if died else _IN_VAIN_AFTER_S
        return None not in waits.values() and now - self._waits_since >= patience


def _is_error(answer) -> bool:
    return isinstance(answer, BaseException)


def unfinished(result, ranks: list[int]) -> list[int]:
    """The ranks that have not ended the cell."""
    return [rank for rank, child in zip(ranks, result._children, strict=True) if not child.done()]


def free(
    cluster, result, ranks: list[int], within: float = _FREE_WITHIN_S, signum: int = signal.SIGINT
) -> list[int]:
    """Get all ranks out of a cell; return those that do not come.

    One whose heart has stopped, in C code that keeps the interpreter's lock, is not waited for
    as long as the others.
    """
    signalled: dict[int, float] = {}
    began = time.perf_counter()
    while time.perf_counter() < began + within:
        # Before its cell begins, a rank does not notice a signal.
        going_on = unfinished(result, ranks)
        beats = {
            rank: read_beat(cluster.events_directory, cluster.engine_ids[rank]) for rank in going_on
        }
        for rank, beat in beats.items():
            if beat.is_busy and beat.began > signalled.get(rank, 0.0):
                signalled[rank] = time.perf_counter()
                cluster.signal(signum, [rank])
        waited = time.perf_counter() - began
        if waited > _STUCK_AFTER_S and all(beat.is_stuck for beat in beats.values()):
            break
        if result.wait(_LOOK_AGAIN_S):
            break
    return unfinished(result, ranks)
