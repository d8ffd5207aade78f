"""Ranks of several hosts announce their calls to each other before a collective, asleep meanwhile.

They share no memory, so they exchange messages, in as many rounds as it takes until each knows of
all: in round k a rank sends the largest of the digests that it knows, and of their negatives, to
the rank 2^k places on, and receives those of the rank 2^k places back. If the number of ranks is a
power of two, ranks that are 2^k places apart swap theirs instead. Then the first rounds stay within
a host, if each has the same power of two of consecutive ranks. Numbers that all ranks combine may
travel with the digests (:mod:`.remote_sums`).

A rank that waits for such a message sleeps, see :mod:`.network`. It is outside MPI meanwhile: it
leaves its core to others, and a deadline ends the wait under any MPI.

(MPI's own nonblocking reduction would do, but Open MPI's prints a line if its communicator is
revoked, and MPICH crashed after one that never ended.)
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable

from ..board.event_board import LOOKS_AT
from ..core import time_slice
from ..core.call import Call
from ..core.runtime import MPI
from ..faults import pending_requests
from ..faults.deadlines import Operation
from ..faults.deaths import is_broken
from ..faults.mpi_errors import freed
from ..log.events import log
from . import network, spinning

Buffer = bytes | bytearray | memoryview

_LAST_TAG: int = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767) - 64  # above are comm_reaper's
_DIGEST_BYTES = 16
_NAP_SECONDS = 20e-6  # of a thread that must not keep the interpreter from the one that computes


class RemoteArrivals:
    """Where the ranks of a communicator without slots meet; see :class:`.arrivals.Arrivals`.

    Attributes:
        in_pairs: whether two ranks swap in each round.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._rank = rank = comm.Get_rank()
        size = comm.Get_size()
        distances = [2**k for k in range((size - 1).bit_length())]
        self.in_pairs = size == 2 ** len(distances)
        self._partners = [
            (rank ^ far, rank ^ far)
            if self.in_pairs
            else ((rank + far) % size, (rank - far) % size)
            for far in distances
        ]
        self._received = bytearray(_DIGEST_BYTES)

    def make_room(self, size: int) -> None:
        """Prepare for numbers of so many bytes at most; each rank must call this."""
        self._received = bytearray(_DIGEST_BYTES + size)

    def meet(self, operation: Operation, signature: int, call: Call) -> bool:
        """Return once every rank has come to its next call; whether all calls are the same.

        Raises:
            CommunicationError: if a rank will not come, or the time is over.
            MPI.Exception: as MPI's calls do.
        """
        return self.meet_with(operation, call, b"", _nothing) is not None

    def meet_with(
        self,
        operation: Operation,
        call: Call,
        numbers: Buffer,
        combine: Callable[[Buffer, Buffer], object],
    ) -> Buffer | None:
        """Meet, and combine the numbers of all ranks, which must be :attr:`in_pairs` for that.

        Args:
            operation: the collective, as for :meth:`meet`.
            call: its description.
            numbers: this rank's, as bytes.
            combine: combines the numbers of lower ranks with those of higher ones, into the second.

        Returns:
            What all ranks' numbers make, or None if their calls are not the same.
        """
        largest, total, size = array("q", call.digest), numbers, len(numbers)
        for number, (dest, source) in enumerate(self._partners):
            sent = b"".join((largest, total))
            self._swap(operation, sent, dest, source, _LAST_TAG - number)
            theirs = memoryview(self._received)
            largest = array("q", map(max, largest, theirs[:_DIGEST_BYTES].cast("q")))
            if size:
                lower, upper = total, theirs[_DIGEST_BYTES:][:size]
                if source < self._rank:
                    lower, upper = upper, lower
                total = bytearray(upper)
                combine(lower, total)
        return total if largest.tobytes() == call.digest else None

    def leave(self) -> None:
        """Do nothing: the communicator is revoked, or each rank times out by itself."""

    def close(self) -> None:
        """Do nothing: there is no slot to give back."""

    def _swap(self, operation: Operation, sent: bytes, dest: int, source: int, tag: int) -> None:
        receive = send = MPI.REQUEST_NULL
        try:
            receive = self._comm.Irecv([self._received, MPI.BYTE], source, tag)
            send = self._comm.Isend([sent, MPI.BYTE], dest, tag)
            for request in (receive, send):
                if not request.Test():
                    self._await(operation, request)
        except BaseException:
            pending_requests.give_up(receive, self._received, withdraw=True)
            pending_requests.give_up(send, sent, withdraw=False)
            raise

    def _await(self, operation: Operation, request: MPI.Request) -> None:
        began = time.perf_counter()
        time_slice.shorten()
        while time.perf_counter() < began + spinning.SECONDS:
            if operation.on_callers_thread:
                spinning.give_way()
            else:
                time.sleep(_NAP_SECONDS)
            if request.Test():
                return
        awake, operation.withdraw = operation.withdraw, None
        operation.outside_mpi = True
        sleeper = network.Sleeper()
        try:
            while not request.Test():
                operation.end_if_given_up()
                if is_broken(self._comm):
                    raise freed(operation.what, self._comm)
                log.bell[LOOKS_AT] += 1
                sleeper.sleep()
        finally:
            operation.outside_mpi = False
            operation.withdraw = awake
            log.bell[LOOKS_AT] = 0


def _nothing(lower: Buffer, upper: Buffer) -> None:
    pass
