"""Every rank hands over its events and how far its clock is off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch_mpi4py.event_board import Event

__all__ = ["Record", "from_ranks", "from_view", "record"]

_CELL = re.compile(r"cell (\d+), line")


class Record(NamedTuple):
    """What one rank hands over: its events, their clock's offset and its uncertainty (s)."""

    rank: int
    events: list[Event]
    offset: float
    residual: float


def record(since: int | Sequence[int]) -> tuple:
    """Return this rank's record, as a plain tuple; every rank must call this."""
    from torch_mpi4py import clocks, events, world

    comm = world()
    rank = comm.Get_rank()
    first = since if isinstance(since, int) else since[rank]
    recorded = events.events(first)
    offset = clocks.clock_offsets(comm)[rank]
    return rank, recorded, offset.offset, offset.residual


def from_ranks(since: int) -> list[Record]:
    """Return the records of all ranks, on each rank."""
    from torch_mpi4py import world

    return [Record(*one) for one in world().allgather(record(since))]


def from_view(view: Any, since: str | int | None) -> list[Record]:
    """Return the records of all ranks of an ipyparallel view."""
    first = view[since] if isinstance(since, str) else since or 0
    records = [Record(*one) for one in view.apply_sync(record, first)]
    return records if since is not None else _latest_cell(records)


def _latest_cell(records: list[Record]) -> list[Record]:
    """Keep what the latest cell did that did anything, and what its threads did after it."""
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
