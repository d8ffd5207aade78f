"""The one idea: every way a cluster can fail is one clear exception, raised once.

:class:`ClusterError` is about the cluster itself, :class:`RemoteCellError` about code that
ran on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipyparallel import error

__all__ = ["ClusterError", "RankFailure", "RemoteCellError", "StartError"]

# Raised on a rank only because something else went wrong elsewhere, the mildest cause last.
# Such an error is never shown first while some rank has a cause of its own.
_CONSEQUENCES = (
    "RankFailedError",
    "DeadlineError",
    "RevokedError",
    "KeyboardInterrupt",
    "TaskAborted",
)


class ClusterError(RuntimeError):
    """The cluster cannot do what was asked; the message says why and what to do."""

    def _render_traceback_(self) -> list[str]:
        """In a notebook the message is all there is to know: our own frames are left out."""
        return [f"{type(self).__name__}: {self}"]


class StartError(ClusterError):
    """The cluster did not start; the message names the cause and quotes the last log lines."""


@dataclass(frozen=True)
class RankFailure:
    """What one rank raised.

    Attributes:
        rank: who raised it.
        ename: class name of the exception, e.g. ``"ValueError"``.
        evalue: its message.
        traceback: the formatted traceback, possibly with ANSI colours.
    """

    rank: int
    ename: str
    evalue: str
    traceback: str = ""

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
    """

    def __init__(self, failures: list[RankFailure], finished: list[int] = ()):
        self.failures = sorted(failures, key=lambda failure: failure.urgency)
        self.finished = sorted(finished)
        first = self.failures[0]
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
            fates.setdefault(failure.title, []).append(failure.rank)
        lines = [f"{_ranks(ranks)}: {title}" for title, ranks in fates.items()]
        if self.finished:
            lines.append(f"{_ranks(self.finished)}: finished")
        return lines

    def render_traceback(self) -> list[str]:
        """The lines shown under a failed cell."""
        traceback = self.traceback or f"{self.ename}: {self.evalue}"
        return [f"rank {self.rank} raised:", *traceback.splitlines(), "", *self.summary()]


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, sorted(ranks)))}"
