"""From what was seen of every rank to what each was doing, and what is wrong.

Everything here is a function of plain data. Who has looked at the ranks, and on which host, does
not matter: see :mod:`.observing` for those of this machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

from .diagnosis import diagnose
from .main_thread import is_stuck
from .rank_states import LEFT_IN_VAIN, WHOLE_GROUPS, Operation, RankState, describe, name_ranks

__all__ = ["HangReport", "Observation", "classify"]

MOST_PAST = 1000  # operations of one cell, of each rank
_WIDEST = 90  # of what an error says
_TITLES = ("rank", "state", "what", "where", "for")
_MOST_LINES = 16


@dataclass(frozen=True)
class Observation:
    """What was seen of one rank at one moment; ``dataclasses.asdict`` makes JSON of it.

    Attributes:
        rank: which one.
        visible: whether anything of it could be seen.
        alive: whether its process lived.
        notebook: whether it runs cells, so that it does not end by itself.
        cell: number of its latest cell; 0 where cells are not counted.
        running: whether its cell, or program, was running.
        outcome: how its latest cell, or the program, ended: "" if well, or the error.
        seconds: since when its cell or program has begun; None if none has.
        silent: seconds since its last sign of life.
        computed: seconds for which its main thread has run on a core since then.
        asleep: whether its main thread waits for something in the system.
        site: the line of the program in which its main thread was.
        operations: calls of communication that were open, the one it waits in last.
        past: those of the cell that were over, oldest first.
    """

    rank: int
    visible: bool = True
    alive: bool = True
    notebook: bool = False
    cell: int = 0
    running: bool = True
    outcome: str = ""
    seconds: float | None = None
    silent: float = 0.0
    computed: float = 0.0
    asleep: bool = False
    site: str = ""
    operations: tuple[Operation, ...] = ()
    past: tuple[Operation, ...] = ()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Observation:
        """Make one again of what ``dataclasses.asdict`` has made of it, also by way of JSON."""
        calls = {
            name: tuple(
                Operation(**(op | {"members": tuple(op["members"])})) for op in fields[name]
            )
            for name in ("operations", "past")
        }
        return cls(**{**fields, **calls})


# ---- what each was doing ---------------------------------------------------------------------


def classify(seen: Iterable[Observation]) -> list[RankState]:
    """Return what every rank was doing."""
    seen = list(seen)
    latest = max((one.cell for one in seen), default=0)
    return [_state_of(one, latest) for one in seen]


def _state_of(one: Observation, latest_cell: int) -> RankState:
    calls = (one.operations, one.past)
    if not one.alive and (one.running or one.notebook):
        return RankState(one.rank, "dead", *calls)
    if not one.visible:
        return RankState(one.rank, "on another host, or its board cannot be read")
    if one.notebook and not one.running and (one.seconds is None or one.cell != latest_cell):
        return RankState(one.rank, "idle")
    if not one.running:
        return _state_after_the_end(one)
    if any(op.waiting for op in one.operations):
        return RankState(one.rank, "waiting", *calls)
    stuck = is_stuck(one.silent, one.computed, one.asleep)
    return RankState(one.rank, "stuck" if stuck else "computing", *calls, site=one.site)


def _state_after_the_end(one: Observation) -> RankState:
    calls = (one.operations, one.past)
    if not one.outcome:
        state = "finished" if one.notebook or one.past else "idle"
        return RankState(one.rank, state, *calls)
    if one.notebook and one.outcome.startswith(LEFT_IN_VAIN):
        freed = [op for op in one.past if op.outcome.startswith(LEFT_IN_VAIN) and op.waiting]
        if freed:  # what it did was to wait, until it was freed
            return RankState(one.rank, "waiting", (*one.operations, freed[-1]), one.past)
    return RankState(one.rank, "raised", *calls, error=one.outcome)


# ---- what is wrong ---------------------------------------------------------------------------


@dataclass(frozen=True)
class HangReport:
    """What every rank was doing at one moment.

    Attributes:
        ranks: a :class:`~torch_mpi4py.rank_states.RankState` for each rank.
        diagnosis: what is wrong, in a sentence.
        is_out_of_step: whether messages of the cell are under way to nobody, or calls of it
            have not ended, among all ranks (a sub-group is lost alone).
        is_settling: whether all that has not ended are collectives which nobody waits for any
            more: they end by themselves, if all ranks have called them.
    """

    ranks: tuple[RankState, ...]
    diagnosis: str
    is_out_of_step: bool = False
    is_settling: bool = False

    @classmethod
    def of(cls, seen: Iterable[Observation]) -> HangReport:
        """The report on all ranks, from what was seen of each."""
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
        settling = bool(still_open) and all(
            op.is_collective and not op.waiting for op in still_open
        )
        return cls(tuple(states), diagnose(states), out_of_step, settling)

    @property
    def waiting(self) -> list[int]:
        """The ranks that wait in communication."""
        return [state.rank for state in self.ranks if state.state == "waiting"]

    def with_stuck(self, ranks: Iterable[int]) -> HangReport:
        """The same, knowing that ``ranks`` did not react to a signal."""
        states = [
            replace(state, state="stuck")
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
            if op.group not in WHOLE_GROUPS:
                continue  # it is lost alone
            if op.is_collective:
                calls.setdefault((op.group, op.members), Counter())[state.rank] += 1
            elif op.outcome == "ok" and op.is_send:
                messages[op.group, state.rank, op.peer] += 1
            elif op.outcome == "ok" and op.is_receive:
                messages[op.group, op.peer, state.rank] -= 1
    uneven = any(len({count[r] for r in key[1]}) > 1 for key, count in calls.items())
    return uneven or any(messages.values())


# ---- as text ---------------------------------------------------------------------------------


def _row(state: RankState) -> tuple[str, ...]:
    op = state.waits_in or next(reversed(state.operations), None)
    if state.state == "raised":
        return str(state.rank), "raised", shorten(state.error, _WIDEST, placeholder=" ..."), "", ""
    if state.state == "dead":
        what = f"in {op.text()}" if op is not None and op.waiting else ""
        return str(state.rank), "dead", what, op.site if what and op else "", ""
    if (waits := state.waits_in) is not None:
        return str(state.rank), "waiting", waits.text(), waits.site, f"{waits.seconds:.1f} s"
    what = {"stuck": "in C code, where no signal reaches it"}.get(state.state, "")
    if op is not None:
        what = f"{what}; " if what else ""
        what += f"open: {op.text()}"
    return str(state.rank), state.state, what, state.site or (op.site if op else ""), ""


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
