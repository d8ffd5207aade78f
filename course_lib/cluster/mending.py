"""What the notebook's handle on a cluster does about cells that hang or fail."""

from __future__ import annotations

import time
from pathlib import Path

from ipyparallel import error

from .errors import ClusterError
from .pulse import read_beat
from .recovery import recover
from .report import HangReport, collect
from .watching import DEFAULT_LIMIT_S, Limit

__all__ = ["Mending"]

_ANSWERED_WITHIN_S = 5.0  # by ranks that are free, on a busy machine
_SETTLED_WITHIN_S = 1.0  # a patient thread begins what is queued within 9 ms on a quiet machine
_LOOK_AGAIN_S = 0.01


class Mending:
    """The part of :class:`~course_lib.cluster.Cluster` that reports and recovers."""

    _limit = Limit(DEFAULT_LIMIT_S)
    _stuck: tuple[int, ...] = ()  # engines that could not be freed
    _owes_recovery = False
    _needs_restart = False

    @property
    def limit(self) -> Limit:
        """How long a ``%%px`` cell may take: 60 s. Set it to seconds, ``"60+"`` or ``None``.

        ``"60+"`` is 60 s without progress: something printed, or a call of communication
        ended. ``None`` is no limit. ``%%px --limit 5`` sets it for one cell.
        """
        return self._limit

    @limit.setter
    def limit(self, value) -> None:
        self._limit = Limit.of(value)

    @property
    def events_directory(self) -> Path:
        """Where the ranks keep their event boards and pulses."""
        return self._link.directory.events

    def report(self) -> HangReport:
        """What every rank is doing now, or was doing in the last cell; possible at any time."""
        return collect(
            self.events_directory,
            self.engine_ids,
            self.status()["dead"],
            lambda rank, signum: self.signal(signum, [rank]),
        )

    def report_after_the_cell(self) -> HangReport:
        """The report once what all ranks have called, but nobody waits for, has ended."""
        until = time.monotonic() + _SETTLED_WITHIN_S
        while (found := self.report()).is_settling and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)
        return found

    def after_freeing(self) -> str:
        """What can be said of the ranks once all have left a cell."""
        if self._needs_restart:
            return (
                "All ranks have left the cell, but they cannot communicate any more: "
                "cluster.restart() starts fresh ones."
            )
        return "All ranks are free again."

    @property
    def stuck(self) -> list[int]:
        """The ranks that could not be freed, as far as they have not come back since."""
        mine = [self.engine_ids.index(e) for e in self._stuck if e in self.engine_ids]
        return self._busy(mine)

    def _busy(self, ranks: list[int]) -> list[int]:
        """Which of the ranks are running a cell."""
        beats = {r: read_beat(self.events_directory, self.engine_ids[r]) for r in ranks}
        return [rank for rank, beat in beats.items() if beat.is_busy]

    def note_stuck(self, ranks: list[int]) -> str:
        """Remember ranks that could not be freed; return what can be done about them."""
        self._stuck = tuple(self.engine_ids[rank] for rank in ranks)
        one = len(ranks) == 1
        who = f"Rank {ranks[0]} does" if one else f"Ranks {', '.join(map(str, ranks))} do"
        back = f"{'it comes' if one else 'they come'} back by {'itself' if one else 'themselves'}"
        cannot = f"{who} not react to signals and could not be freed."
        if len(ranks) == self.n:
            return (
                f"{cannot} Wait until {back}, with all variables, or cluster.restart() for fresh "
                "ranks."
            )
        kills = ", ".join(f"cluster.kill({rank})" for rank in ranks)
        return (
            f"{cannot} All other ranks are free again. Wait until {back}, or "
            f"{kills} and cluster.shrink() to go on with the others and their variables, or "
            "cluster.restart() for fresh ranks."
        )

    def require_free(self) -> None:
        """Raise unless every rank that was stuck has come back; then mend what is to be mended.

        Raises:
            ClusterError: if a rank is still stuck; the message says what to do.
        """
        self._stuck = tuple(engine for engine in self._stuck if engine in self.engine_ids)
        if self.stuck:
            told = self.note_stuck(self.stuck)
            raise ClusterError(told.replace(" All other ranks are free again.", ""))
        if not self._stuck and not self._owes_recovery:
            return
        if self.client.outstanding:  # what they were asked while they were stuck
            self.client.wait(timeout=_ANSWERED_WITHIN_S)
        self.mend(out_of_step=bool(self._stuck))
        self._stuck = ()
        if not self._owes_recovery:  # nobody is busy
            self.know_ranks()

    def mend(self, out_of_step: bool = False) -> None:
        """Renew communication if it was lost, once all ranks are idle, and say so.

        Args:
            out_of_step: renew it in any case.
        """
        beats = [read_beat(self.events_directory, engine) for engine in self.engine_ids]
        if not out_of_step and not self._owes_recovery and not any(beat.flags for beat in beats):
            return
        if self.status()["dead"]:
            return  # shrink and restart make everything anew
        if any(beat.is_busy for beat in beats) or self.client.outstanding:
            self._owes_recovery = True
            return
        if self._owes_recovery:
            out_of_step |= self.report().is_out_of_step
        self._owes_recovery = True  # should this be ended half-way
        try:
            said, self._needs_restart = recover(self.view, out_of_step)
        except error.RemoteError as failure:  # it must not take the place of what is to be told
            said = (
                f"Communication could not be renewed ({failure.ename}: {failure.evalue}): "
                "cluster.restart() starts fresh ranks."
            )
            self._needs_restart = True
        self._owes_recovery = False
        if said:
            print(said)
