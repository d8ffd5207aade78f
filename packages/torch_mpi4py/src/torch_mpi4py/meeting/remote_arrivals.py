"""Ranks of several hosts announce their calls to each other before a collective, asleep meanwhile.

They share no memory, so they exchange messages, in as many rounds as it takes until each knows of
all: in round k a rank sends the largest of the digests that it knows, and of their negatives, to
the rank 2^k places on, and receives those of the rank 2^k places back. If the number of ranks is a
power of two, ranks that are 2^k places apart swap theirs instead. Then the first rounds stay within
a host, if each has the same power of two of consecutive ranks.

A rank that waits for such a message sleeps, see :mod:`.network`. It is outside MPI meanwhile: it
leaves its core to others, and a deadline ends the wait under any MPI.

(MPI's own nonblocking reduction would do, but Open MPI's prints a line if its communicator is
revoked, and MPICH crashed after one that never ended.)
"""

from __future__ import annotations

import time
from array import array

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

_LAST_TAG: int = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767) - 64  # above are comm_reaper's
_NAP_SECONDS = 20e-6  # of a thread that must not keep the interpreter from the one that computes


class RemoteArrivals:
    """Where the ranks of a communicator without slots meet; see :class:`.arrivals.Arrivals`."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        rank, size = comm.Get_rank(), comm.Get_size()
        distances = [2**k for k in range((size - 1).bit_length())]
        self._partners = [
            (rank ^ far, rank ^ far)
            if size == 2 ** len(distances)
            else ((rank + far) % size, (rank - far) % size)
            for far in distances
        ]

    def meet(self, operation: Operation, signature: int, call: Call) -> bool:
        """Return once every rank has come to its next call; whether all calls are the same.

        Raises:
            CommunicationError: if a rank will not come, or the time is over.
            MPI.Exception: as MPI's calls do.
        """
        largest = array("q", call.digest)
        for number, (dest, source) in enumerate(self._partners):
            tag, theirs = _LAST_TAG - number, array("q", [0, 0])
            receive = self._comm.Irecv([theirs, MPI.INT64_T], source, tag)
            sent = array("q", largest)
            send = self._comm.Isend([sent, MPI.INT64_T], dest, tag)
            if not send.Test():
                pending_requests.keep(send, sent)
            try:
                if not receive.Test():
                    self._await(operation, receive)
            except BaseException:
                if receive:
                    receive.Cancel()
                    pending_requests.keep(receive, theirs)
                raise
            largest = array("q", map(max, largest, theirs))
        return largest.tobytes() == call.digest

    def leave(self) -> None:
        """Do nothing: the communicator is revoked, or each rank times out by itself."""

    def close(self) -> None:
        """Do nothing: there is no slot to give back."""

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
            log.bell[LOOKS_AT] = 0
