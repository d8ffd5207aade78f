"""First come, first served, by the time of sending.

MPI keeps the order of one sender's messages and promises nothing among senders: messages
that come while the server is busy are found in the order of ranks, or any other. So the
server keeps as many receives posted as messages can be under way, and of those that are here
it takes up the one that was sent first. A message that is here can only be overtaken by one
that was sent before it, so nobody starves.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .clocks import Clocks
from .messages import TAG_HEADER, Header

__all__ = ["PER_WORKER", "Arrival", "Inbox", "is_death"]

PER_WORKER = 2  # a worker may send a gradient and its next hello before it waits for an answer


def is_death(error: BaseException) -> bool:
    """Return whether ``error`` says that a rank died."""
    from torch_mpi4py import RankFailedError  # importing it starts MPI, so only when needed

    return isinstance(error, RankFailedError)


def _ends_the_group(error: BaseException) -> bool:
    from torch_mpi4py import DeadlineError

    return isinstance(error, DeadlineError)


class Arrival:
    """A header that is here or to come.

    Attributes:
        sender: rank in the group that sent it, once it is here.
        header: what it says, once it is here.
        arrived: when it was noticed, on this process's clock; None while it is to come.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._numbers = torch.zeros(Header.FIELDS, dtype=torch.float64)
        self.work = dist.irecv(self._numbers, group=group, tag=TAG_HEADER)
        self.arrived: float | None = None

    def look(self) -> bool:
        """Return whether it is here."""
        if self.arrived is None and self.work.is_completed():
            self.arrived = time.perf_counter()
            self.sender = self.work._source_rank()
            self.header = Header.decode(self._numbers)
        return self.arrived is not None


# Hellos to the next run of the same group, from workers that the present one had let go.
_early: WeakKeyDictionary[dist.ProcessGroup, list[Arrival]] = WeakKeyDictionary()


class Inbox:
    """The server's queue.

    Args:
        group: the process group.
        workers: number of workers.
        timeout: how long to wait for a message.
        clocks: learns the workers' clocks from their messages.
    """

    def __init__(
        self, group: dist.ProcessGroup, workers: int, timeout: timedelta, clocks: Clocks
    ) -> None:
        self._clocks = clocks
        self._group = group
        self._timeout = timeout
        self._here: list[Arrival] = []
        self._to_come = deque(_early.pop(group, []))
        self._to_come.extend(Arrival(group) for _ in range(PER_WORKER * workers))

    def next(self) -> Arrival:
        """Return the message that was sent first, waiting for one if there is none.

        Raises:
            RankFailedError: once for every rank that dies while nothing is there.
            DeadlineError: if none comes in time.
            CommunicationError: once for every message that is no header.
        """
        if not self.count():
            work = self._to_come[0].work
            try:
                work.wait(self._timeout)
            except dist.DistBackendError as error:
                if error is not work.exception():
                    raise  # a death: the receive goes on
                if _ends_the_group(error):
                    raise  # nothing can be posted any more
            self.count()  # raises how the receive ended, and takes it off
        first = min(self._here, key=self._sent)
        self._here.remove(first)
        return first

    def count(self) -> int:
        """Return how many messages are here and not yet taken up."""
        while self._to_come[0].look():  # MPI fills receives in the order of posting
            # First, because posting may raise when a rank has died; then nothing is lost.
            self._to_come.append(Arrival(self._group))
            arrival = self._to_come.popleft()
            arrival.work.wait()  # raises if it ended by an error
            self._here.append(arrival)
            header = arrival.header
            self._clocks.heard(arrival.sender, header.clock, header.sent, arrival.arrived)
        return len(self._here)

    @property
    def waiting(self) -> int:
        """How many messages had been noticed, and not taken up, at the last look."""
        return len(self._here)

    def _sent(self, arrival: Arrival) -> float:
        return self._clocks.on_ours(arrival.sender, arrival.header.sent)

    def leave_for_next_run(self, arrival: Arrival) -> None:
        """Keep a message that is not about this run."""
        _early.setdefault(self._group, []).append(arrival)

    def close(self) -> None:
        """Take back the receives that nobody will answer."""
        for arrival in self._here:
            self.leave_for_next_run(arrival)
        while self._to_come:
            arrival = self._to_come.popleft()
            with contextlib.suppress(dist.DistBackendError):  # the group has failed anyway
                if arrival.look() or not arrival.work.cancel():
                    arrival.look()
                    self.leave_for_next_run(arrival)
