"""Before a blocking collective of a guarded communicator the ranks of one host meet, asleep.

As in :mod:`.arrivals`, except that a rank waits only for the ranks it needs. In a broadcast or a
scatter all others wait for the root, which goes on at once. In a gather or a reduction only the
root waits, for all others. In all other collectives every rank waits for every other. So a rank
may be many calls ahead of another, and one place is enough: it holds the number of the last
collective that its rank has begun, which only grows. The calls themselves are not compared: MPI
deals with those that do not match.

A rank loses count when a collective fails on it. It then goes straight to MPI, and so do the ranks
that need it.

Ranks of several hosts share no memory. All of them meet before a collective, by messages on a
communicator of their own (:mod:`.remote_arrivals`): so a root does not go ahead there. That takes
about as long as a short collective. So once all ranks have made many collectives in quick
succession they meet only before some, until one of them was slow.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

from ..core import advice
from ..core.errors import CommunicationError, RankFailedError, RevokedError
from ..core.runtime import MPI
from ..faults import comm_reaper, deadlines
from ..faults.deaths import has_ulfm
from ..meeting.arrivals import Peer, Slot, open_slot, spin_for
from ..meeting.remote_arrivals import RemoteArrivals
from .call_arguments import Arguments, arguments_of, is_accepted, whole_number

_UNCOUNTED = 2**64 - 1  # above every number, so no rank waits
_PLACE = 0  # of the two in a slot
_QUICK_SECONDS = 2e-3  # from the beginning of a collective to that of the next
_QUICK_MEETINGS = 16  # so many in a row
_UNMET = 15  # collectives between two meetings afterwards

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
            CommunicationError: if a rank will not come, or the time is over. All ranks have
                then given the communicator up.
        """
        if math.isnan(number):
            return
        count = int(number)
        self._show(count, _PLACE)
        for peer in self._needed(operation.what, args, kwargs):
            if peer.words[peer.first] < count:
                break
        else:
            return
        try:
            self._await_needed(operation, count, args, kwargs)
        except BaseException as error:
            if not isinstance(error, RankFailedError):  # the others learn of it too
                deadlines.revoke(self._comm)
            self.failed = not has_ulfm()
            self.leave()
            raise

    def lose_count(self, operation: deadlines.Operation | None, error: BaseException) -> None:
        """Let no rank wait for this one, whose number may differ from theirs."""
        self._show(_UNCOUNTED, _PLACE)

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

        missing = spin_for(self._needed(operation.what, args, kwargs), _PLACE, has_come)
        # A wrong call gets its error at once.
        if missing and is_accepted(operation.what, args, kwargs):
            with deadlines.watched(operation):
                self._sleep_until_come(operation, missing, _PLACE, has_come)
                if operation.reason:
                    raise operation.freed_error()


class RemoteCommArrivals:
    """Where the ranks of a guarded communicator meet that are on several hosts.

    Attributes:
        failed: whether a meeting has failed where the MPI can't revoke the communicator.
    """

    def __init__(self, comm: MPI.Intracomm, carrier: MPI.Intracomm) -> None:
        self.failed = False
        self._comm = comm
        self._carrier = carrier
        self._arrivals = RemoteArrivals(comm, carrier)
        self._meetings = 0
        self._quick_meetings = 0  # in a row, the same number on all ranks
        self._unmet_left = 0  # collectives before which they don't meet
        self._last_began = -math.inf
        self._was_quick = True  # this rank, since the last meeting
        self._met_for: deadlines.Operation | None = None
        self._has_met_before = False
        self._is_out_of_step = False

    def meet(
        self,
        operation: deadlines.Operation,
        number: float,
        args: Sequence[Any],
        kwargs: Arguments,
    ) -> None:
        """Return once all ranks have begun a collective, or in a quick succession of them at once.

        See :meth:`CommArrivals.meet`.
        """
        if not is_accepted(operation.what, args, kwargs):
            return  # a wrong call gets its error at once, and the others wait for the right one
        if self._has_met_before:
            self._met_for, self._has_met_before = operation, False
            return
        if operation.started - self._last_began > _QUICK_SECONDS:
            self._was_quick = False
        self._last_began = operation.started
        if self._unmet_left:
            self._unmet_left -= 1
            self._met_for = operation
            return
        operation.on_callers_thread = True
        self._meetings += 1
        try:
            with deadlines.watched(operation):
                all_quick = self._meet(operation)
                if operation.reason:
                    raise operation.freed_error()
        except BaseException as error:
            self._is_out_of_step = True
            if not isinstance(error, RankFailedError):  # the others learn of it too
                deadlines.revoke(self._comm)
            self.failed = not has_ulfm()
            raise
        self._met_for = operation
        self._quick_meetings = self._quick_meetings + 1 if all_quick else 0
        if self._quick_meetings >= _QUICK_MEETINGS:
            self._unmet_left = _UNMET

    def _meet(self, operation: deadlines.Operation) -> bool:
        """Wait for all ranks; return whether none was slow since the last meeting."""
        was_slow, self._was_quick = int(not self._was_quick), True
        largest = self._arrivals.largest_digest(operation, array("q", [was_slow, 0]).tobytes())
        return not array("q", largest)[0]

    def lose_count(self, operation: deadlines.Operation | None, error: BaseException) -> None:
        """Stay in step with the others after a call that ended with ``error``.

        Where mpi4py has refused one that had met the others, as for a wrong buffer, they are in
        MPI: the right call is to join them there.

        Args:
            operation: the call, None if it was not a blocking one.
            error: what it raised.
        """
        was_made = isinstance(error, MPI.Exception | CommunicationError)
        met = operation is not None and operation is self._met_for
        self._has_met_before = self._has_met_before or (met and not was_made)

    def close(self) -> None:
        """Meet no more; the communicator of the messages is freed in time."""
        # A rank may have died without a word of it here: Open MPI crashes in a farewell then.
        farewell = not (has_ulfm() or self._is_out_of_step)
        comm_reaper.retire(self._carrier, self._meetings if farewell else None)


def stopped(what: str) -> RevokedError:
    """Return the error for a call that is not made because an earlier meeting failed."""
    return RevokedError(
        f"{what}: not run, because a collective of this communicator failed before. "
        f"{advice.START_AGAIN}"
    )


def open_comm_arrivals(
    comm: MPI.Intracomm, seconds: float
) -> CommArrivals | RemoteCommArrivals | None:
    """Return where the ranks of ``comm`` meet, None if it has one; each must call this.

    Raises:
        CommunicationError: if a rank does not come within ``seconds``.
    """
    if comm.Get_size() == 1:
        return None
    opened = open_slot(comm, seconds)
    if opened is not None:
        return CommArrivals(comm, *opened)
    carrier = deadlines.call(comm, "new communicator", seconds, MPI.Intracomm.Dup, comm)
    return RemoteCommArrivals(comm, carrier)
