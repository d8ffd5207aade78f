"""What every rank was doing is read from outside, and shown as one table.

The ranks' event boards (:mod:`torch_mpi4py.event_board`) say in which communication call each is,
or was when it was freed; their pulses (:mod:`.pulse`) say whether they compute, are stuck in C
code, or have ended their cell. No rank has to answer for this.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten

from torch_mpi4py.diagnosis import diagnose
from torch_mpi4py.event_board import Board
from torch_mpi4py.rank_states import WHOLE_GROUPS, RankState, operation_of

from .errors import LEFT_IN_VAIN
from .pulse import Beat, read_beat, read_stack, stack_signal

__all__ = ["HangReport", "collect", "last_movement", "waits_of"]

_MOST_PAST = 1000  # operations of one cell
_WIDEST = 90  # of what an error says
_TITLES = ("rank", "state", "what", "where", "for")


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


def collect(
    directory: Path, engines: list[int], dead: Iterable[int], send: Callable[[int, int], None]
) -> HangReport:
    """Look at all ranks and return what they were doing.

    Args:
        directory: where their boards and pulses are.
        engines: the engine of each rank, after which its files are called.
        dead: the ranks that have ended.
        send: ``send(rank, signal)`` sends a rank a signal.
    """
    beats = {rank: read_beat(directory, engine) for rank, engine in enumerate(engines)}
    numbers = {engine: rank for rank, engine in enumerate(engines)}
    cell = max((beat.cell for beat in beats.values()), default=0)
    dead = set(dead)
    states, still_open = [], []
    for rank, beat in beats.items():
        board = _board(directory, engines[rank])
        if rank in dead:
            states.append(RankState(rank, "dead", *_calls(beat, board, numbers)))
        elif beat.cell != cell or not beat.began:
            states.append(RankState(rank, "idle"))
        else:
            ask = partial(send, rank, stack_signal())
            where = partial(read_stack, directory, engines[rank], ask)
            calls = _calls(beat, board, numbers)
            states.append(_state_of(rank, beat, *calls, where))
            age = time.perf_counter() - beat.began
            mine = [op for op in states[-1].operations if op.group in WHOLE_GROUPS]
            still_open += [op for op in mine if op.seconds < age]
    forgotten = any(len(state.past) == _MOST_PAST for state in states)
    out_of_step = bool(still_open) or (not forgotten and _is_uneven(states))
    settling = bool(still_open) and all(op.is_collective and not op.waiting for op in still_open)
    return HangReport(tuple(states), diagnose(states), out_of_step, settling)


def last_movement(directory: Path, engines: Iterable[int]) -> float:
    """When (``time.perf_counter()``) some engine last ended a call of communication, or 0."""
    boards = (_board(directory, engine) for engine in engines)
    latest = (board.latest() for board in boards if board is not None)
    return max((event.end or 0.0 for event in latest if event is not None), default=0.0)


def _board(directory: Path, engine: int) -> Board | None:
    with contextlib.suppress(OSError, ValueError):  # it has not made one yet
        return Board.open(directory / str(engine))
    return None


def waits_of(directory: Path, engines: Iterable[int]) -> dict[int, int | None]:
    """The number of the call in which each engine waits; None for one that does not wait."""
    found: dict[int, int | None] = {}
    for engine in engines:
        beat, board = read_beat(directory, engine), _board(directory, engine)
        still_open = board.open_operations() if board is not None and beat.is_busy else []
        calls = [e.number for e in still_open if e.waiting and e.start > beat.renewed]
        found[engine] = calls[-1] if calls else None
    return found


def _is_uneven(states: list[RankState]) -> bool:
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


def _state_of(rank: int, beat: Beat, operations, past, where: Callable[[], str]) -> RankState:
    if not beat.is_busy:
        return _state_after_the_cell(rank, beat, operations, past)
    if any(op.waiting for op in operations):
        return RankState(rank, "waiting", operations, past)
    state = "stuck" if beat.is_stuck else "computing"
    return RankState(rank, state, operations, past, site=where())


def _state_after_the_cell(rank: int, beat: Beat, operations, past) -> RankState:
    if beat.outcome == "ok":
        return RankState(rank, "finished", operations, past)
    if beat.outcome.startswith(LEFT_IN_VAIN):
        freed = [op for op in past if op.outcome.startswith(LEFT_IN_VAIN) and op.waiting]
        if freed:
            return RankState(rank, "waiting", (*operations, freed[-1]), past)
    return RankState(rank, "raised", operations, past, error=_first_line(beat.outcome))


def _calls(beat: Beat, board: Board | None, numbers: dict[int, int]) -> tuple[tuple, tuple]:
    """The open operations, what is waited for last, and those of the cell that are over."""
    if board is None:
        return (), ()
    now = time.perf_counter()
    events = [e for e in board.events() if e.kind != "section"]
    still_open = [e for e in events if e.end is None and e.start > beat.renewed]
    still_open = [operation_of(event, now, numbers) for event in still_open]
    past = [e for e in events if e.end is not None and e.start >= beat.began]
    past = [operation_of(event, now, numbers) for event in past]
    return tuple(sorted(still_open, key=lambda op: op.waiting)), tuple(past[-_MOST_PAST:])


def _row(state: RankState) -> tuple[str, ...]:
    op = state.waits_in or next(reversed(state.operations), None)
    if state.state == "raised":
        return str(state.rank), "raised", shorten(state.error, _WIDEST, placeholder=" ..."), "", ""
    if state.state == "dead":
        what = f"in {op.text()}" if op is not None and op.waiting else ""
        return str(state.rank), "dead", what, op.site if what else "", ""
    if state.waits_in is not None:
        return str(state.rank), "waiting", op.text(), op.site, f"{op.seconds:.1f} s"
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


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
