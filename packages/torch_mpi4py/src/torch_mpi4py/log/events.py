"""The event log: every operation of this rank, recorded once.

>>> from . import events
>>> begin = events.mark()
>>> with events.section("forward"): ...
>>> events.events(since=begin)

Traffic counts, timelines and hang reports read this log. It is bounded, on by default
(``events.log.enabled = False`` switches it off), and takes under two microseconds an event.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from ..board.call_site import call_site
from ..board.event_board import ANY, NEVER_WAITS, BoardWriter, Event, Token, group_text
from ..board.rank_states import name_ranks
from ..core.base_comm import numbers_in
from ..core.call import Call
from ..core.runtime import MPI

_MOST_DESCRIBED = 20_000

__all__ = ["ANY", "Event", "EventLog", "Token", "events", "log", "making", "mark", "section"]


class GroupName(NamedTuple):
    """The name of a communicator in the log.

    Attributes:
        name: e.g. "default".
        ranks: its ranks in the world, in its order.
        place: where the board keeps the name.
        born: when it was made, in seconds of ``time.perf_counter()``.
    """

    name: str
    ranks: tuple[int, ...]
    place: int
    born: float


class EventLog(BoardWriter):
    """The log of this process: its board, and the names of what is written there."""

    def __init__(self, rank: int, size: int) -> None:
        directory = os.environ.get("TORCH_MPI4PY_EVENTS_DIR")
        super().__init__(rank, size, Path(directory) / str(rank) if directory else None)
        # By a communicator's handle, a dtype and a shape. Any thread may write them: what two
        # write for one key is equally right.
        self._groups: dict[int, GroupName] = {}
        self._dtypes: dict[Any, int] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._described: list[Call] = []  # those that hold places

    def _places_in_use(self) -> set[int]:
        return super()._places_in_use() | {group.place for group in self._groups.copy().values()}

    def _forget_places(self) -> None:
        self._shapes.clear()
        described, self._described = self._described, []
        for call in described:
            call.places = None

    # --- names ----------------------------------------------------------------------------

    def name_group(self, comm: MPI.Comm, name: str) -> GroupName:
        """Remember the name of ``comm`` and its ranks."""
        ranks = tuple(numbers_in(MPI.COMM_WORLD, comm.Get_group()))
        place = self.passing_string(group_text(name, ranks))  # it stays while it is among these
        made = GroupName(name, ranks, place, perf_counter())
        if comm.Get_attr(_named) is None:
            comm.Set_attr(_named, comm.handle)
        self._groups[comm.handle] = made
        return made

    def group_of(self, comm: MPI.Comm) -> GroupName:
        """Return the name of ``comm``."""
        known = self._groups.get(comm.handle)
        return known if known is not None else self.name_group(comm, comm.Get_name() or "comm")

    def part_of(self, comm: MPI.Comm, ranks: Iterable[int]) -> int:
        """Return the place of the name of some ``ranks`` of ``comm``, for making a group."""
        whole = self.group_of(comm)
        members = tuple(whole.ranks[rank] for rank in ranks if 0 <= rank < len(whole.ranks))
        if len(members) == len(whole.ranks):
            return whole.place
        return self.passing_string(group_text(f"the group of {name_ranks(members)}", members))

    def forget_name(self, handle: int) -> None:
        """Forget the name of a communicator, before another gets its handle."""
        self._groups.pop(handle, None)

    def dtype(self, dtype: Any) -> int:
        """Return the place of a dtype's name."""
        place = self._dtypes.get(dtype)
        if place is None:
            place = self._dtypes[dtype] = self.string(str(dtype).removeprefix("torch."))
        return place

    def shape(self, shape: tuple[int, ...]) -> int:
        """Return the place of a shape's text."""
        place = self._shapes.get(shape)
        if place is None:
            place = self.passing_string(str(tuple(shape)))
            if place:  # 0 once the strings are full: do not keep more
                self._shapes[shape] = place
        return place

    def describe(self, call: Call) -> tuple[int, int, int, int]:
        """Return the places of a collective's name, dtype and elements, and its bytes."""
        size = sum(call.counts) * call.dtype.itemsize if call.dtype is not None else 0
        dtype = self.dtype(call.dtype) if call.dtype is not None else 0
        if len(self._described) >= _MOST_DESCRIBED:
            self._forget_places()
        name, elements = self.string(call.name), self.passing_string(call.elements())
        call.places = places = name, dtype, elements, size
        self._described.append(call)  # last: a sweep may have come meanwhile
        return places

    def forget(self, group: GroupName) -> None:
        """Record that the open operations of a group can no longer be waited for."""
        for token in self.open_in(group.place):
            self.drop(token)


# MPI calls the function when any code frees a communicator.
def _forget_name(comm: MPI.Comm, key: int, handle: int) -> None:
    log.forget_name(handle)


# MPI calls it when any code frees a communicator. Without it, entries kept by handle would be wrong
# once the handle is used again.
_named = MPI.Comm.Create_keyval(delete_fn=_forget_name)

log: EventLog = EventLog(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
"""The log of this process."""
os.register_at_fork(after_in_child=log.leave_to_parent)


def events(since: int = 0) -> list[Event]:
    """Return the latest events of this rank, at most 8,192, in the order of their calls.

    Args:
        since: leave out those before this number, as :func:`mark` returned it.
    """
    return log.reader.events(since)


def mark() -> int:
    """Return the number that the next event will have."""
    return log.latest_number + 1


def begin_message(kind: int, group: int, tensor: torch.Tensor, peer: int, tag: int) -> Token | None:
    """Record that sending or receiving ``tensor`` was begun in a process group."""
    if not log.enabled:
        return None
    shape, dtype = log.shape(tensor.shape), log.dtype(tensor.dtype)
    return log.begin(kind, group, False, call_site(2), dtype, shape, peer, ANY, tag, tensor.nbytes)


@contextmanager
def making(what: str, group: int) -> Iterator[None]:
    """Record that this rank makes a group with others, and waits until they come.

    Args:
        what: the call, by its name in torch.distributed.
        group: place of the name of the ranks that make it.
    """
    token = log.begin(log.string(what), group, True, call_site(2))
    try:
        yield
    except BaseException as error:
        log.end(token, error)
        raise
    log.end(token)


_SECTION = log.string("section")


class section:
    """Record the time that a block of code takes, under ``name``, among the operations."""

    __slots__ = ("_name", "_token")

    def __init__(self, name: str) -> None:
        self._name = name
        self._token: Token | None = None

    def __enter__(self) -> None:
        shape = log.passing_string(self._name)
        self._token = log.begin(_SECTION, 0, NEVER_WAITS, call_site(1), shape=shape)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        log.end(self._token, error)
