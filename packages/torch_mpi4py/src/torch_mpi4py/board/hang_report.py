"""A report on all ranks: what each was doing, and what is wrong, as data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten

from .diagnosis import diagnose
from .event_board import WHOLE_GROUPS
from .rank_states import MOST_PAST, RankState, classify, describe, name_ranks, what_and_where

_WIDEST = 90  # of what an error says
_TITLES = ("rank", "state", "what", "where", "for")
_MOST_LINES = 16
# A rank that has not ended at a signal, by the interrupts that have reached its Python code: while
# it handles the first, it may yet end.
_UNENDED = {-1: "ignoring", 0: "stuck", 1: "computing", 2: "catching"}


@dataclass(frozen=True)
class HangReport:
    """What every rank was doing at one moment.

    Attributes:
        ranks: a :class:`~torch_mpi4py.board.rank_states.RankState` for each rank.
        diagnosis: what is wrong, in a sentence.
        is_out_of_step: whether, among all ranks, messages of the cell have no receiver or calls of
            it have not ended (a sub-group is lost alone).
        is_settling: whether the only unfinished operations are collectives that no rank waits for
            any more: they end by themselves, if all ranks have called them.
    """

    ranks: tuple[RankState, ...]
    diagnosis: str
    is_out_of_step: bool = False
    is_settling: bool = False

    @classmethod
    def of(cls, seen: Iterable[RankState]) -> HangReport:
        """The report on all ranks, from the observed state of each."""
        seen = list(seen)
        states = classify(seen)
        still_open = [
            op
            for one, state in zip(seen, states, strict=True)
            if state.state not in ("dead", "idle") and one.seconds is not None
            for op in state.operations
            if op.group in WHOLE_GROUPS and op.seconds < one.seconds
        ]
        forgotten = any(len(state.past) == MOST_PAST for state in states)
        out_of_step = bool(still_open) or (not forgotten and _is_uneven(states))
        settling = bool(still_open) and all(op.collective and not op.waiting for op in still_open)
        return cls(tuple(states), diagnose(states), out_of_step, settling)

    @property
    def waiting(self) -> list[int]:
        """The ranks that wait in communication."""
        return [state.rank for state in self.ranks if state.state == "waiting"]

    def with_stuck(self, ranks: Mapping[int, int]) -> HangReport:
        """The same, knowing that some ranks did not end at a signal.

        Args:
            ranks: how many interrupts have reached the Python code of each of them; -1 if it has
                replaced the handler of SIGINT.
        """
        states = [
            replace(state, state=_UNENDED[min(ranks[state.rank], 2)])
            if state.rank in ranks and state.state == "computing"
            else state
            for state in self.ranks
        ]
        return replace(self, ranks=tuple(states), diagnosis=diagnose(states))

    def table(self) -> str:
        """The ranks as an aligned table."""
        return _aligned([_TITLES, *map(_row, self.ranks)])

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.diagnosis}"

    __repr__ = __str__

    def text(self) -> str:
        """A line for each rank, and the diagnosis, for the message of an error."""
        lines = [_line(state) for state in self.ranks]
        if len(lines) > _MOST_LINES:
            lines = _summary(self.ranks)
        return "\n".join(["What every rank was doing:", *lines, self.diagnosis])


def _is_uneven(states: Sequence[RankState]) -> bool:
    """Whether some message was sent and not received, or a collective called by only some."""
    messages: Counter = Counter()
    calls: dict[tuple[str, tuple[int, ...]], Counter] = {}
    for state in states:
        for op in state.past:
            if op.group not in WHOLE_GROUPS or op.kind == "monitored_barrier":
                continue  # the group is lost alone, and this barrier takes no part of MPI
            if op.collective:
                calls.setdefault((op.group, op.ranks), Counter())[state.rank] += 1
            elif op.outcome == "ok" and op.sends:
                messages[op.group, state.rank, op.world_peer] += 1
            elif op.outcome == "ok" and op.receives:
                messages[op.group, op.world_peer, state.rank] -= 1
    uneven = any(len({count[r] for r in key[1]}) > 1 for key, count in calls.items())
    return uneven or any(messages.values())


# ---- as text ---------------------------------------------------------------------------------


def _row(state: RankState) -> tuple[str, ...]:
    what, site = what_and_where(state)
    if state.waits_in is not None:
        return str(state.rank), state.state, what, site, f"{state.waits_in.seconds:.1f} s"
    if state.operations and state.state not in ("dead", "raised"):
        still_open = state.operations[-1]
        what = "; ".join(filter(None, (what, f"open: {still_open.text()}")))
        site = site or still_open.site
    what = shorten(what, _WIDEST, placeholder=" ...") if state.state == "raised" else what
    return str(state.rank), state.state, what, site, ""


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def _line(state: RankState) -> str:
    unattended = "".join(f"; not waited for: {op.text()}" for op in state.unattended[:3])
    return f"  rank {state.rank}: {describe(state)}{unattended}"


def _summary(states: Sequence[RankState]) -> list[str]:
    alike: dict[str, list[int]] = {}
    for state in states:
        alike.setdefault(describe(state, seconds=False), []).append(state.rank)
    lines = [f"  {_some_ranks(ranks)}: {text}" for text, ranks in alike.items()]
    rest = len(lines) - _MOST_LINES
    return lines if rest <= 0 else [*lines[:_MOST_LINES], f"  ... and {rest} more lines"]


def _some_ranks(ranks: list[int]) -> str:
    if len(ranks) <= 8:
        return name_ranks(ranks)
    return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:6]))}, ..., {ranks[-1]})"
