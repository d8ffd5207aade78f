"""The ranks of one host meet before a blocking collective of a guarded communicator, asleep.

As in :mod:`.arrivals`, except that a rank waits only for the ranks it needs. In a broadcast or a
scatter all others wait for the root, which goes on at once. In a gather or a reduction only the
root waits, for all others. In all other collectives every rank waits for every other. So a rank
may be many calls ahead of another, and one place is enough: it holds the number of the last
collective that its rank has begun, which only grows. The calls themselves are not compared: MPI
deals with those that do not match.

A rank loses count when one of its collectives fails. It then goes straight to MPI, and so do the
ranks that need it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from ..core import advice, time_slice
from ..core.errors import RankFailedError, RevokedError
from ..core.runtime import MPI
from ..faults import deadlines
from ..faults.deaths import has_ulfm
from ..meeting import spinning
from ..meeting.arrivals import Peer, Slot, open_slot
from .call_arguments import Arguments, arguments_of, is_accepted, whole_number

_UNCOUNTED = 2**64 - 1  # above every number, so no rank waits
_PLACE = 0  # of the two in a slot

_ROOT_GIVES = {"Bcast", "bcast", "Scatter", "Scatterv", "scatter"}
_ROOT_GETS = {"Gather", "Gatherv", "gather", "Reduce", "reduce"}


class CommArrivals(Slot):
    """Where the ranks of a guarded communicator meet; :func:`open_comm_arrivals` makes it.

    Attributes:
        failed: whether a meeting has failed where the MPI can't revoke the communicator.
    """

    def __init__(self, comm: MPI.Intracomm, number: int, peers: list[Peer]) -> None:
        super().__init__(comm, number, peers)
        self.failed = False
        self._rank = comm.Get_rank()

    def meet(
        self,
        operation: deadlines.Operation,
        number: float,
        args: Sequence[Any],
        kwargs: Arguments,
    ) -> None:
        """Return once the ranks that this one needs have begun the same collective.

        Args:
            operation: the call, named as mpi4py's method. The watcher ends the wait by giving it
                a ``reason``.
            number: how many collectives this rank has begun with this one; NaN if it lost count.
            args: the method's.
            kwargs: the method's.

        Raises:
            CommunicationError: if a rank will not come, or the time is over. All ranks have then
                given up the communicator.
        """
        if math.isnan(number):
            return
        count = int(number)
        self._done = count - 1
        self._show(count, _PLACE)
        needed = self._needed(operation.what, args, kwargs)
        try:
            for peer in needed:
                if peer.words[peer.first] < count:
                    self._await_needed(operation, count, args, kwargs)
                    break
            for words, place in self._gone:
                if words[place]:
                    self._confirm(operation, count)
        except BaseException as error:
            if not isinstance(error, RankFailedError):  # the others learn of it too
                deadlines.revoke(self._comm)
            self.failed = not has_ulfm()
            self.leave()
            raise

    def lose_count(self) -> None:
        """Let no rank wait for this one, whose number may differ from theirs."""
        self._show(_UNCOUNTED, _PLACE)

    def stopped(self, what: str) -> RevokedError:
        """Return the error for a call that is not made because an earlier meeting failed."""
        return RevokedError(
            f"{what}: not run, because an earlier collective of this communicator failed. "
            f"{advice.START_AGAIN}"
        )

    def _needed(self, name: str, args: Sequence[Any], kwargs: Arguments) -> list[Peer]:
        """Return the ranks without which the collective can't end on this rank."""
        root_gets = name in _ROOT_GETS
        if not root_gets and name not in _ROOT_GIVES:
            return self._peers
        root = whole_number(arguments_of(name, args, kwargs).get("root"))
        if root_gets:
            return self._peers if root == self._rank else []
        if root is None or root == self._rank or not 0 <= root <= len(self._peers):
            return []  # MPI refuses an invalid root
        return [self._peers[root - (root > self._rank)]]

    def _await_needed(
        self, operation: deadlines.Operation, count: int, args: Sequence[Any], kwargs: Arguments
    ) -> None:
        def has_come(word: int) -> bool:
            return word >= count

        missing = self._needed(operation.what, args, kwargs)
        time_slice.shorten()
        end = time.perf_counter() + spinning.SECONDS
        while missing and time.perf_counter() < end:
            spinning.give_way()
            missing = [one for one in missing if not has_come(one.words[one.first + _PLACE])]
        # A wrong call gets its error at once.
        if missing and is_accepted(operation.what, args, kwargs):
            with deadlines.watched(operation):
                self._sleep_until_come(operation, missing, _PLACE, count, has_come)
                if operation.reason:
                    raise operation.freed_error()
                self._confirm(operation, count)


def open_comm_arrivals(comm: MPI.Intracomm, seconds: float) -> CommArrivals | None:
    """Return where the ranks of ``comm`` meet; see :func:`.arrivals.open_slot`."""
    opened = open_slot(comm, seconds)
    return None if opened is None else CommArrivals(comm, *opened)
