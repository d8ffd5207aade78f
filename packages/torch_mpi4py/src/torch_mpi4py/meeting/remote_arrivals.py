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
# For how long it spins. With 0.2 ms, a rank that shared its core often slept for nothing: for 4 B,
# four ranks of two hosts on two cores took 173 to 269 us, now 166 to 181 us (in turns).
_SPIN_SECONDS = 5e-4
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
        return self.meet_with(operation, call, b"", _first) is not None

    def meet_with(
        self,
        operation: Operation,
        call: Call,
        numbers: Buffer,
        combine: Callable[[Buffer, Buffer], Buffer],
    ) -> Buffer | None:
        """Meet, and combine the numbers of all ranks, which must be :attr:`in_pairs` for that.

        Args:
            operation: the collective, as for :meth:`meet`.
            call: its description.
            numbers: this rank's, as bytes.
            combine: returns what the numbers of lower ranks and those of higher ones make.

        Returns:
            What all ranks' numbers make, or None if their calls are not the same.
        """
        largest, total, end = call.digest, numbers, _DIGEST_BYTES + len(numbers)
        received = self._received
        for number, (dest, source) in enumerate(self._partners):
            sent = b"".join((largest, total))
            self._swap(operation, sent, dest, source, _LAST_TAG - number)
            if not received.startswith(largest):
                pairs = zip(array("q", largest), array("q", received[:_DIGEST_BYTES]), strict=True)
                largest = array("q", map(max, pairs)).tobytes()
            if total:
                theirs = received[_DIGEST_BYTES:end]
                total = combine(theirs, total) if source < self._rank else combine(total, theirs)
        return total if largest == call.digest else None

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
        while time.perf_counter() < began + _SPIN_SECONDS:
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


def _first(lower: Buffer, upper: Buffer) -> Buffer:
    return lower
