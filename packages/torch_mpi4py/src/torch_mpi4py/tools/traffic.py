"""Count every message that ends within a block of code, without estimates.

::

    with Traffic() as traffic:
        all_reduce_ring(tensor)
    traffic.sent.messages, traffic.sent.bytes, traffic.sent.by_peer[1].bytes
    traffic.matrix().bytes[0, 1]  # from rank 0 to rank 1; every rank must call matrix()

It counts sends and receives of ``torch.distributed`` on the mpi4py backend, and of the library's
``comm`` and communicators made by its ``Dup``, ``Split`` or ``Create``. What a library collective
sends is internal to the MPI and not known: for those, ``traffic.collectives`` says how often each
was called and how many bytes this rank passed to it.

It does not count persistent requests (``Send_init``), one-sided communication (``MPI.Win``),
topologies (the results of ``Create_cart`` and similar calls), and mpi4py's own communicators
(``MPI.COMM_WORLD``).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch.distributed as dist

from ..comm.guarded_comm import world
from ..core.runtime import MPI
from ..log import events
from ..log.events import Event
from .traffic_matrix import Count, Matrix

# A discarded handle reveals nothing about the message; a send goes out all the same.
_SENT = ("ok", "dropped")


@dataclass
class Direction:
    """All messages sent, or all received.

    Attributes:
        by_peer: what went to or came from each other rank.
    """

    by_peer: dict[int, Count] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """How many messages."""
        return sum(count.messages for count in self.by_peer.values())

    @property
    def bytes(self) -> int:
        """How many bytes in all of them."""
        return sum(count.bytes or 0 for count in self.by_peer.values())

    def add(self, peer: int, size_bytes: int) -> None:
        """Count one message more."""
        self.by_peer[peer] = self.by_peer.get(peer, Count()).plus(size_bytes)


class Traffic:
    """Counts this rank's messages that end within a ``with`` block, by all of its threads.

    Args:
        group: count only in this process group or communicator; None counts in all, with
            ranks numbered as in the world.

    Attributes:
        sent: messages sent; one whose handle was thrown away counts when it is.
        received: messages received.
        collectives: for each collective how often it was called, and the bytes that this rank
            passed to it, whatever the MPI library sent. The bytes are None if they are not
            known.
        failed: operations that ended with an error, which nothing else counts.
        under_way: messages begun but not ended when the block was left; nothing counts them.
    """

    def __init__(self, group: dist.ProcessGroup | MPI.Comm | None = None) -> None:
        self._group = group
        self._communicator: MPI.Comm | None = _communicator(group)
        self.sent = Direction()
        self.received = Direction()
        self.collectives: dict[str, Count] = {}
        self.failed = 0
        self.under_way = 0
        # A collection of garbage may drop a handle at any time, and so end an operation in the
        # middle of counting another: that one is then counted next.
        self._lock = threading.RLock()
        self._new: deque[Event] = deque()
        self._is_counting = False
        self._only: tuple[str, tuple[int, ...]] | None = None
        self._begin = 0

    def __enter__(self) -> Traffic:
        log = events.log
        if not log.enabled:
            raise RuntimeError(
                "Traffic counts what is in the event log: set events.log.enabled = True"
            )
        if self._communicator is not None:
            name = log.group_of(self._communicator)
            self._only = (name.name, name.ranks)
        self._begin = events.mark()
        log.listeners.append(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        events.log.listeners.remove(self._count)
        still_open = events.log.reader.open_operations()
        self.under_way = sum(
            event.number >= self._begin and (event.sends or event.receives) and self._is_ours(event)
            for event in still_open
        )

    def matrix(self) -> Matrix:
        """Return what all ranks sent each other; every rank of the group must call this."""
        own = (self.sent.by_peer, self.received.by_peer)
        comm = world() if self._communicator is None else self._communicator
        ranks = events.log.group_of(comm).ranks
        counts: list[Any] = [None] * len(ranks)
        if self._group is None or isinstance(self._group, MPI.Comm):
            counts = comm.allgather(own)
        else:  # its communicator belongs to the thread of its collectives
            dist.all_gather_object(counts, own, group=self._group)
        place = {rank if self._group is None else i: i for i, rank in enumerate(ranks)}
        tables = numpy.zeros((4, len(ranks), len(ranks)), numpy.int64)
        for rank, (sent, received) in enumerate(counts):
            for peer, count in sent.items():
                tables[:2, rank, place[peer]] = count
            for peer, count in received.items():
                tables[2:, place[peer], rank] = count
        messages, sizes, received_messages, received_sizes = tables
        return Matrix(messages, sizes, received_messages, received_sizes, ranks)

    def _is_ours(self, event: Event) -> bool:
        return self._only is None or (event.group, event.ranks) == self._only

    def _count(self, event: Event) -> None:
        """Record an operation that has ended (called by the log)."""
        if event.kind == "section" or not self._is_ours(event):
            return
        self._new.append(event)
        with self._lock:
            if self._is_counting:
                return
            self._is_counting = True
            try:
                while self._new:
                    self._add(self._new.popleft())
            finally:
                self._is_counting = False

    def _add(self, event: Event) -> None:
        peer = event.world_peer if self._only is None else event.peer
        size = max(event.bytes, 0)
        if event.sends and event.outcome in _SENT:
            if peer >= 0:  # MPI.PROC_NULL is no rank
                self.sent.add(peer, size)
        elif event.outcome != "ok":
            self.failed += event.outcome != "dropped"
        elif event.receives:
            if peer >= 0:
                self.received.add(peer, size)
        elif event.collective:
            count = self.collectives.get(event.kind, Count())
            # A call with a dtype passes data, even if its size is unknown.
            unknown = event.bytes < 0 and event.dtype
            self.collectives[event.kind] = count.plus(None if unknown else size)


def _communicator(group: object) -> MPI.Comm | None:
    if group is None:
        return None
    if group in (dist.GroupMember.NON_GROUP_MEMBER, MPI.COMM_NULL):
        raise ValueError("Traffic: this rank is not in that group; let only its members count")
    comm = getattr(group, "comm", group)
    if not isinstance(comm, MPI.Comm):
        raise TypeError(
            "Traffic: the group must be a process group of the mpi4py backend or a communicator, "
            f"not {group!r}"
        )
    return comm
