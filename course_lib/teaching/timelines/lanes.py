"""Collects every rank's events and works out what each rank did at each moment.

A rank computes, computes while messages travel, sends, or waits. It waits while the program is
blocked in a receive or a collective, and sends while it is blocked in a send. Everything else
between its first and its last event is computing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch_mpi4py.board.event_board import Event

COMPUTING = "computing"
OVERLAPPING = "computing while messages are under way"
SENDING = "sending"
WAITING = "waiting"

Ended = Any  # an Event that has an end: one that is still open ends with the last of all

_CELL = re.compile(r"cell (\d+), line")


class RankEvents(NamedTuple):
    """One rank's contribution: its events, their clock's offset and its uncertainty (s)."""

    rank: int
    events: list[Event]
    offset: float
    residual: float


class ProgramState(NamedTuple):
    """The program was in ``state`` from ``start`` to ``end`` (seconds), because of ``label``."""

    state: str
    start: float
    end: float
    label: str


@dataclass(frozen=True)
class Lane:
    """The activity of one rank.

    Attributes:
        rank: its number.
        program: what the program did, without gaps or overlaps.
        operations: its messages and collectives, in order of their calls.
        sections: the parts of the program that it named.
    """

    rank: int
    program: list[ProgramState]
    operations: list[Ended]
    sections: list[Ended]

    @property
    def end(self) -> float:
        """When its last event ended."""
        return self.program[-1].end if self.program else 0.0


def lanes_of(records: Iterable[RankEvents]) -> list[Lane]:
    """Return a lane for each record, all on rank 0's clock, from 0 on."""
    records = sorted(records)
    moved = [[_moved(event, -one.offset) for event in one.events] for one in records]
    first = min((event.start for events in moved for event in events), default=0.0)
    moved = [[_moved(event, -first) for event in events] for events in moved]
    last = max((event.end or event.start for events in moved for event in events), default=0.0)
    lanes = []
    for one, events in zip(records, moved, strict=True):
        closed = [event if event.end is not None else event._replace(end=last) for event in events]
        sections = [event for event in closed if event.kind == "section"]
        operations = [event for event in closed if event.kind != "section"]
        lanes.append(Lane(one.rank, _program(closed, operations), operations, sections))
    return lanes


def describe(event: Event) -> str:
    """Return e.g. ``send to 3`` or ``all_reduce``."""
    kind = event.kind.rpartition(": ")[2]
    peer = event.world_peer
    if event.sends:
        return f"{kind} to {peer}" if peer >= 0 else kind
    if event.receives:
        return f"{kind} from {peer}" if peer >= 0 else kind
    return kind


def _moved(event: Event, by: float) -> Event:
    times = {name: getattr(event, name) for name in ("start", "end", "waited_from")}
    moved: dict[str, Any] = {n: None if t is None else t + by for n, t in times.items()}
    return event._replace(**moved)


def _program(events: list[Ended], operations: list[Ended]) -> list[ProgramState]:
    """Go through all moments at which something begins or ends."""
    changes: list[tuple[float, int, int, Ended]] = []
    for event in operations:
        changes += [(event.start, 1, 0, event), (event.end, -1, 0, event)]
        if event.waited_from is not None and event.waited_from < event.end:
            blocked = 1 if event.sends else 2
            changes += [(event.waited_from, 1, blocked, event), (event.end, -1, blocked, event)]
    for event in events:
        changes += [(event.start, 0, 0, event), (event.end, 0, 0, event)]
    changes.sort(key=lambda change: change[:2])
    on: tuple[list[Event], ...] = ([], [], [])  # under way, sending, waiting
    spans: list[ProgramState] = []
    before = changes[0][0] if changes else 0.0
    for moment, step, which, event in changes:
        if moment > before:
            _extend(spans, _state(on), before, moment)
            before = moment
        if step > 0:
            on[which].append(event)
        elif step < 0:
            on[which].remove(event)
    return spans


def _state(on: tuple[list[Event], ...]) -> tuple[str, str]:
    under_way, sending, waiting = on
    if waiting:
        return WAITING, describe(waiting[-1])
    if sending:
        return SENDING, describe(sending[-1])
    if under_way:
        return OVERLAPPING, ", ".join(dict.fromkeys(map(describe, under_way)))
    return COMPUTING, ""


def _extend(spans: list[ProgramState], state: tuple[str, str], start: float, end: float) -> None:
    name, label = state
    if spans and spans[-1].state == name and spans[-1].label == label:
        spans[-1] = spans[-1]._replace(end=end)
    else:
        spans.append(ProgramState(name, start, end, label))


# --- collecting ---------------------------------------------------------------------------


def record(since: int | Sequence[int]) -> tuple:
    """Return this rank's record, as a plain tuple; every rank must call this."""
    from torch_mpi4py import world
    from torch_mpi4py.log import events
    from torch_mpi4py.tools import clocks

    comm = world()
    rank = comm.Get_rank()
    first = since if isinstance(since, int) else since[rank]
    recorded = events.events(first)
    offset = clocks.clock_offsets(comm)[rank]
    return rank, recorded, offset.offset, offset.residual


def from_ranks(since: int) -> list[RankEvents]:
    """Return the records of all ranks, on each rank."""
    from torch_mpi4py import world

    return [RankEvents(*one) for one in world().allgather(record(since))]


def from_view(view: Any, since: str | int | None) -> list[RankEvents]:
    """Return the records of all ranks of an ipyparallel view."""
    first = view[since] if isinstance(since, str) else since or 0
    records = [RankEvents(*one) for one in view.apply_sync(record, first)]
    return records if since is not None else _latest_cell(records)


def _latest_cell(records: list[RankEvents]) -> list[RankEvents]:
    """Keep the records of the latest cell that has any, and of its threads after it."""
    cells = [
        int(found[1])
        for one in records
        for event in one.events
        if (found := _CELL.match(event.site))
    ]
    if not cells:
        return records
    prefix = f"cell {max(cells)}, "
    kept = []
    for one in records:
        starts = [event.start for event in one.events if event.site.startswith(prefix)]
        begin = min(starts, default=float("inf"))
        kept.append(one._replace(events=[event for event in one.events if event.start >= begin]))
    return kept
