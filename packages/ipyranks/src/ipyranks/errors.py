"""The exceptions of a cluster, and of code that ran on it.

:class:`ClusterError` is about the cluster itself, :class:`RemoteCellError` about a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipyparallel import error
from torch_mpi4py.board.hang_report import HangReport
from torch_mpi4py.board.rank_states import ENDED_WAITS, describe, rank_list

# Raised on a rank only because something else went wrong elsewhere, the mildest cause last.
# Such an error is never shown first while some rank has a cause of its own.
_CONSEQUENCES = (
    "RankFailedError",
    "DeadlineError",
    "RevokedError",
    "KeyboardInterrupt",
    "TaskAborted",
)


DIED = "EngineError"  # ipyparallel's name for it
_ON_DEATH = "its process ended in the middle of the cell"
_ON_DEATHS = "their processes ended in the middle of the cell"
WHY_DEAD = (
    "If you did not kill it yourself, the most common cause is memory: when the machine has none "
    "left, the system kills the process that uses most (SIGKILL)."
)
MEMORY_ADVICE = (
    "Smaller batches or fewer ranks need less. `free -h` shows how much memory there is; `sudo "
    "dmesg | grep -i 'killed process'` lists the processes that the system has killed."
)


class ClusterError(RuntimeError):
    """The cluster cannot do what was asked; the message says why and what to do."""

    def _render_traceback_(self) -> list[str]:
        """A notebook shows only the message, without our own frames."""
        return [f"{type(self).__name__}: {self}"]


class StartError(ClusterError):
    """The cluster did not start; the message names the cause and quotes the last log lines."""


@dataclass(frozen=True)
class RankFailure:
    """What one rank raised.

    Attributes:
        rank: the rank that raised it.
        ename: class name of the exception, e.g. ``"ValueError"``.
        evalue: its message.
        traceback: the formatted traceback, possibly with ANSI colours.
    """

    rank: int
    ename: str
    evalue: str
    traceback: str = ""

    @classmethod
    def death(cls, rank: int, advice: str) -> RankFailure:
        """The failure of a rank whose process has ended, with the remedies."""
        return cls(rank, DIED, f"{_ON_DEATH}. {WHY_DEAD} {advice}")

    @property
    def title(self) -> str:
        """``ValueError: the first line of the message``."""
        first_line = self.evalue.strip().partition("\n")[0]
        return f"{self.ename}: {first_line}" if first_line else self.ename

    @property
    def urgency(self) -> tuple[int, int]:
        """Sort key: causes before consequences, then by rank."""
        if self.ename in _CONSEQUENCES:
            return 1 + _CONSEQUENCES.index(self.ename), self.rank
        return 0, self.rank


class RemoteCellError(error.RemoteError):
    """A cell failed on one or more ranks.

    The rank whose error caused the others comes first, with its own traceback; every other
    rank has one line. It is an ``ipyparallel.error.RemoteError``, so ``except`` clauses
    written for ipyparallel catch it.

    Attributes:
        rank: the rank shown first.
        ename: the class name of its exception.
        evalue: the message of its exception.
        failures: a :class:`RankFailure` for each rank that failed, in the order shown.
        finished: the ranks that finished without an error.
        report: the :class:`~torch_mpi4py.board.hang_report.HangReport` of what ranks were doing.
    """

    def __init__(
        self,
        failures: list[RankFailure],
        finished: Sequence[int] = (),
        report: HangReport | None = None,
        first: RankFailure | None = None,
    ) -> None:
        self.report = report
        self.failures = sorted(failures, key=lambda failure: failure.urgency)
        self.finished = sorted(finished)
        first = first or self.failures[0]  # what is shown first
        self.rank = first.rank
        super().__init__(first.ename, first.evalue, first.traceback, {"engine_id": first.rank})

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.ename}: {self.evalue}"

    def __repr__(self) -> str:
        failed = ", ".join(f"rank {f.rank}: {f.ename}" for f in self.failures)
        return f"<RemoteCellError({failed})>"

    def summary(self) -> list[str]:
        """One line for each rank but the one shown first; ranks with the same fate share one."""
        fates: dict[str, list[int]] = {}
        for failure in self.failures[1:]:
            fates.setdefault(self._fate(failure), []).append(failure.rank)
        lines = [f"{rank_list(ranks)}: {title}" for title, ranks in fates.items()]
        if self.finished:
            lines.append(f"{rank_list(self.finished)}: finished")
        return lines

    def _fate(self, failure: RankFailure) -> str:
        """The fate of a rank; for one that was freed, also the operation that it waited for."""
        if self.report is not None and failure.ename in ENDED_WAITS:
            state = self.report.ranks[failure.rank]
            if state.state == "waiting":
                return f"{describe(state, seconds=False)}; freed"
        return failure.title

    def render_traceback(self) -> list[str]:
        """The lines shown under a failed cell."""
        dead = [failure.rank for failure in self.failures if failure.ename == DIED]
        if dead and self.report is not None:
            title = f"{rank_list(dead)} died: {_ON_DEATH if len(dead) == 1 else _ON_DEATHS}."
            told = [f.rank for f in self.failures if f.ename == "RankFailedError"]
            errors = [f"RankFailedError was raised on {rank_list(told)}."] if told else []
            advice = next(f.evalue for f in self.failures if f.ename == DIED).partition(". ")[2]
            return [title, "", *str(self.report).splitlines(), *errors, "", advice]
        traceback = self.traceback or f"{self.ename}: {self.evalue}"
        return [f"rank {self.rank} raised:", *traceback.splitlines(), "", *self.summary()]


class HangError(RemoteCellError):
    """A cell did not end: its limit passed, or the deadline of an operation in it.

    The ranks were freed before it is raised, except those in ``stuck``.

    Attributes:
        report: what every rank was doing, a :class:`~torch_mpi4py.board.hang_report.HangReport`.
        reason: which limit or deadline passed.
        stuck: ranks that could not be freed.
        advice: what to do now.
    """

    report: HangReport

    def __init__(
        self,
        reason: str,
        report: HangReport,
        failures: list[RankFailure],
        finished: list[int],
        stuck: list[int],
        advice: str,
    ):
        self.reason = reason
        self.stuck = sorted(stuck)
        self.advice = advice
        rank = next(iter([*report.waiting, *self.stuck]), 0)
        itself = RankFailure(rank, "HangError", f"{reason}. {report.diagnosis}")
        super().__init__(failures, finished, report, itself)

    def __str__(self) -> str:
        return f"{self.reason}. {self.report.diagnosis}"

    def __repr__(self) -> str:
        return f"<HangError({self})>"

    def render_traceback(self) -> list[str]:
        """The lines shown under the cell."""
        title = f"HangError: {self.reason}."
        return [title, "", *str(self.report).splitlines(), "", self.advice]
