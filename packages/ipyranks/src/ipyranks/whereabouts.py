"""Where all ranks are at one moment, as :meth:`.Cluster.where` returns it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_mpi4py.board.hang_report import HangReport


@dataclass(frozen=True)
class Whereabouts:
    """What every rank was doing at one moment, and in which lines.

    Attributes:
        report: the same as data: a state for each rank, and what may be wrong.
        stacks: for each rank that was asked, a line for each call of its main thread, from its
            cell down to the call that it was in; none if it did not answer.
    """

    report: HangReport
    stacks: dict[int, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [str(self.report)]
        for rank, calls in self.stacks.items():
            lines = calls or ["(no answer, or its cell has just ended)"]
            parts.append("\n  ".join([f"rank {rank}, innermost call last:", *lines]))
        return "\n\n".join(parts)

    __repr__ = __str__
