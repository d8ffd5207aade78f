"""The one idea: first come, first served, because receives from any source are posted early.

MPI hands an arriving message to the receive that was posted first, but promises no order
among senders whose messages arrived before anybody wanted them. So as many receives are
posted as messages can be under way: they fill in the order of arrival and are taken up in
that order. Nobody can be overtaken by a message that arrived later, so nobody starves.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .messages import TAG_HEADER, Header

__all__ = ["PER_WORKER", "Arrival", "Inbox", "is_death"]

PER_WORKER = 2  # a worker may send a gradient and its next hello before it waits for an answer


def is_death(error: BaseException) -> bool:
    """Return whether ``error`` says that a rank died."""
    from course_lib.mpi import RankFailedError  # importing it starts MPI, so only when needed

    return isinstance(error, RankFailedError)


class Arrival:
    """A header that is here or to come.

    Attributes:
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
        return self.arrived is not None

    @property
    def sender(self) -> int:
        """Rank in the group that sent it."""
        return self.work._source_rank()

    @property
    def header(self) -> Header:
        """What it says."""
        return Header.decode(self._numbers)


# Hellos to the next run of the same group, from workers that the present one had let go.
_early: WeakKeyDictionary[dist.ProcessGroup, list[Arrival]] = WeakKeyDictionary()


class Inbox:
    """The server's queue.

    Args:
        group: the process group.
        workers: number of workers.
        timeout: how long to wait for a message.
    """

    def __init__(self, group: dist.ProcessGroup, workers: int, timeout: timedelta) -> None:
        self._group = group
        self._timeout = timeout
        self._slots = deque(_early.pop(group, []))
        self._slots.extend(Arrival(group) for _ in range(PER_WORKER * workers))

    def next(self) -> Arrival:
        """Return the message that has waited longest, waiting for one if there is none.

        Raises:
            RankFailedError: once for every rank that dies while nothing is there.
            DeadlineError: if none comes in time.
        """
        self._slots[0].work.wait(self._timeout)
        self.count()
        self._slots.append(Arrival(self._group))
        return self._slots.popleft()

    def count(self) -> int:
        """Return how many messages are here and not yet taken up."""
        return sum(1 for _ in itertools.takewhile(Arrival.look, self._slots))

    def leave_for_next_run(self, arrival: Arrival) -> None:
        """Keep a message that is not about this run."""
        _early.setdefault(self._group, []).append(arrival)

    def close(self) -> None:
        """Take back the receives that nobody will answer."""
        while self._slots:
            arrival = self._slots.popleft()
            with contextlib.suppress(dist.DistBackendError):  # the group has failed anyway
                if arrival.look() or not arrival.work.cancel():
                    arrival.look()
                    self.leave_for_next_run(arrival)
