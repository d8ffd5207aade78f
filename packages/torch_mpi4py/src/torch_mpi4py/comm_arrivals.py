"""Before a blocking collective of a guarded communicator the ranks of one host meet, asleep.

As in :mod:`.arrivals`, except that a rank waits only for those that it needs: in a broadcast or a
scatter for the root alone, which goes on at once; in a gather or a reduction the root waits for
all, and nobody else waits; in all other collectives everyone waits for everyone. So a rank may be
many calls ahead of another, and one place is enough: it holds the number of the last collective
that its rank has begun, which only grows. What is called is not compared: a call that does not
match ends as MPI ends it.

A rank that has lost count, because a collective has failed on it, waits for nobody and has nobody
wait for it: it goes straight to MPI, and so do those that need it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import advice, deadlines
from .arrivals import Peer, Slot, open_slot, spin_for
from .call_arguments import Arguments, arguments_of, is_accepted, whole_number
from .deaths import has_ulfm
from .errors import RankFailedError, RevokedError
from .runtime import MPI

_UNCOUNTED = 2**64 - 1  # above every number: nobody waits
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
        """Return once those have come that this rank needs in its next collective.

        Args:
            operation: the call, named as mpi4py's method. The watcher ends the wait by giving it
                a ``reason``.
            number: how many collectives this rank has begun with this one; NaN if it lost count.
            args: the method's.
            kwargs: the method's.

        Raises:
            CommunicationError: if a rank will not come, or the time is over. The communicator
                has been given up then, on all ranks.
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
            if not isinstance(error, RankFailedError):  # of which the others learn as well
                deadlines.revoke(self._comm)
            self.failed = not has_ulfm()
            self.leave()
            raise

    def lose_count(self) -> None:
        """Have nobody wait for this rank, whose number may not be that of the others."""
        self._show(_UNCOUNTED, _PLACE)

    def stopped(self, what: str) -> RevokedError:
        """Return the error of a call that is not made, because a meeting has failed before."""
        return RevokedError(
            f"{what}: not run, because a collective of this communicator failed before. "
            f"{advice.START_AGAIN}"
        )

    def _needed(self, name: str, args: Sequence[Any], kwargs: Arguments) -> list[Peer]:
        """Return the ranks without which a collective can't end here."""
        root_gets = name in _ROOT_GETS
        if not root_gets and name not in _ROOT_GIVES:
            return self._peers
        root = whole_number(arguments_of(name, args, kwargs).get("root"))
        if root_gets:
            return self._peers if root == self._rank else []
        if root is None or root == self._rank or not 0 <= root <= len(self._peers):
            return []  # what is no rank is left to MPI to refuse
        return [self._peers[root - (root > self._rank)]]

    def _await_needed(
        self, operation: deadlines.Operation, count: int, args: Sequence[Any], kwargs: Arguments
    ) -> None:
        def has_come(word: int) -> bool:
            return word >= count

        missing = spin_for(self._needed(operation.what, args, kwargs), _PLACE, has_come)
        # What is wrong with a call is said at once.
        if missing and is_accepted(operation.what, args, kwargs):
            with deadlines.watched(operation):
                self._sleep_until_come(operation, missing, _PLACE, has_come)
                if operation.reason:
                    raise operation.freed_error()


def open_comm_arrivals(comm: MPI.Intracomm, seconds: float) -> CommArrivals | None:
    """Return where the ranks of ``comm`` meet; see :func:`.arrivals.open_slot`."""
    opened = open_slot(comm, seconds)
    return None if opened is None else CommArrivals(comm, *opened)
