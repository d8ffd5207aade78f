"""Transports messages between server and workers: deadlines, deaths, first come first served.

MPI keeps the order of one sender's messages and promises nothing among senders: messages that
come while the server is busy are found in the order of ranks, or any other. So the server keeps
as many receives posted as messages can be under way, and of those that have arrived it takes the
one that was sent first. An arrived message can only be overtaken by one that was sent before it, so
no worker starves.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch_mpi4py.core.errors import DeadlineError
from torch_mpi4py.emulation.machine import clock_identity

from ..arguments import seconds
from .messages import TAG_HEADER, Header

HEADERS_PER_WORKER = 2  # a gradient, and the next hello before it waits for an answer


class Team:
    """Server and workers: one process group, seen from this rank.

    Args:
        group: process group on backend mpi4py, the default group if None.
        timeout: seconds that one message may take, the group's own timeout if None.

    Raises:
        TypeError: if the timeout is no number.
        ValueError: if this rank is not in the group, its backend is another, or the timeout is
            not positive.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float | None) -> None:
        group = dist.group.WORLD if group is None else group
        if not hasattr(group, "survives_failures"):
            raise ValueError(
                "the parameter server needs backend mpi4py and a group that this rank is in: "
                'dist.init_process_group("mpi4py", init_method="mpi://")'
            )
        if timeout is not None and not seconds("timeout", timeout):
            raise ValueError("timeout must be more than 0 seconds")
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.timeout = group.timeout if timeout is None else timedelta(seconds=timeout)

    def others(self) -> tuple[int, ...]:
        """Return all other ranks that live, in order.

        Raises:
            ValueError: if there is none.
        """
        gone = {self.rank, *self.dead()}
        others = tuple(rank for rank in range(self.size) if rank not in gone)
        if not others:
            raise ValueError("there is no worker: start at least two ranks")
        return others

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        """Send ``tensor`` to ``rank`` and wait until it may be changed again."""
        self.wait(self.isend(tensor, rank, tag))

    def isend(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """Begin to send ``tensor`` to ``rank``; it must not change until :meth:`wait` returns."""
        return dist.isend(tensor, group=self.group, group_dst=rank, tag=tag)

    def wait(self, message: dist.Work) -> None:
        """Return once a message has been sent or received."""
        message.wait(self.timeout)

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        """Receive into ``tensor`` from ``rank``."""
        self.wait(dist.irecv(tensor, group=self.group, group_src=rank, tag=tag))

    def dead(self) -> list[int]:
        """Return the ranks that have died, and let the others' messages pass."""
        return self.group.acknowledge_failures()

    @contextlib.contextmanager
    def surviving_failures(self) -> Iterator[None]:
        """Inside, the death of a rank ends only the messages to and from that rank."""
        before = self.group.survives_failures
        self.group.survives_failures = True
        try:
            yield
        finally:
            self.group.survives_failures = before


class Arrival:
    """A header, arrived or expected.

    Attributes:
        sender: the rank of its sender in the group, once it has arrived.
        header: its content, once it has arrived.
        order: the lower, the earlier it is served: when it was sent, or when it arrived if it comes
            from another machine, whose clock means nothing here.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._numbers = Header.room()
        self._arrived = False
        self.work = dist.irecv(self._numbers, group=group, tag=TAG_HEADER)

    def look(self) -> bool:
        """Return whether it has arrived."""
        if not self._arrived and self.work.is_completed():
            self._arrived = True
            self.sender = self.work._source_rank()
            self.header = Header.decode(self._numbers)
            same_clock = self.header.machine == clock_identity()
            self.order = self.header.sent if same_clock else time.perf_counter()
        return self._arrived


# Workers that one run has released may greet the next run in the same group while the first is
# still going on. Messages that arrive too early are kept here.
_for_next_run: WeakKeyDictionary[dist.ProcessGroup, list[Arrival]] = WeakKeyDictionary()


class Inbox:
    """The server's queue.

    Args:
        group: the process group.
        workers: number of workers.
        timeout: how long to wait for a message.

    Attributes:
        arrived: the messages that had arrived, and not been taken, at the last look.
    """

    def __init__(self, group: dist.ProcessGroup, workers: int, timeout: timedelta) -> None:
        self._group = group
        self._timeout = timeout
        self.arrived: list[Arrival] = []
        self._expected = deque(_for_next_run.pop(group, []))
        self._expected.extend(Arrival(group) for _ in range(HEADERS_PER_WORKER * workers))

    def next(self) -> Arrival:
        """Return the message that was sent first, waiting for one if there is none.

        Raises:
            RankFailedError: once for every rank that dies while nothing is there.
            DeadlineError: if none comes in time.
            CommunicationError: once for every message that is no header.
        """
        if not self.count():
            self._wait()
            self.count()  # raises the receive's error, if any, and takes it off the list
        first = min(self.arrived, key=lambda arrival: arrival.order)
        self.arrived.remove(first)
        return first

    def _wait(self) -> None:
        work = self._expected[0].work
        try:
            work.wait(self._timeout)
        except dist.DistBackendError as error:
            # After a death the receive goes on, after a deadline nothing can be posted any more.
            # Any other error is how this receive ended, which count() raises.
            if error is not work.exception() or isinstance(error, DeadlineError):
                raise

    def count(self) -> int:
        """Return how many messages have arrived and not been taken."""
        while self._expected[0].look():  # MPI fills receives in the order of posting
            # First, because posting may raise when a rank has died; then nothing is lost.
            self._expected.append(Arrival(self._group))
            arrival = self._expected.popleft()
            arrival.work.wait()  # raises if it ended by an error
            self.arrived.append(arrival)
        return len(self.arrived)

    def leave_for_next_run(self, arrival: Arrival) -> None:
        """Keep a message that is not about this run."""
        _for_next_run.setdefault(self._group, []).append(arrival)

    def close(self) -> None:
        """Cancel the receives that no worker will answer."""
        for arrival in self.arrived:
            self.leave_for_next_run(arrival)
        while self._expected:
            arrival = self._expected.popleft()
            with contextlib.suppress(dist.DistBackendError):  # the group has failed anyway
                if arrival.look() or not arrival.work.cancel():
                    arrival.look()
                    self.leave_for_next_run(arrival)
