"""All-reduces of few numbers between ranks of several hosts, in the messages by which they meet.

To meet (:mod:`.remote_arrivals`) and then to call MPI takes two exchanges over the network. Few
numbers travel with the first one, so that there is no second one: in each round, the two ranks of a
pair give each other what they have combined so far, and combine the two, those of the lower ranks
first. So the order is the same on every rank and in every run, and so are the bits of the result.

A rank that comes after another has given up may find its numbers, and complete the sum; unless it
knows by then that the communicator has been revoked, only its next call fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Literal

from ..core import gpus
from ..core.buffers import SINGLE_FORMATS
from ..core.runtime import MPI
from ..faults.deaths import is_revoked
from ..faults.mpi_errors import freed
from .remote_arrivals import Buffer, RemoteArrivals
from .sums import Sums

# Measured with two hosts of one rank each, in turns: one number takes 52 us through MPI and 35 us
# this way, 2,048 take 64 and 50 us, 4,096 take 90 and 48 us. But on a network that is slow, more
# than some 14 kB wait until TCP's first packets are answered.
MOST_NUMBERS = 2048
"""So many travel with the comparison."""
_BYTES_A_NUMBER = 16  # at most


def _adder(kind: Literal["f", "d"]) -> Callable[[Buffer, Buffer], Buffer]:
    """Return what adds up two numbers of such a format; quicker than MPI's, see shared_sums.py."""
    number = struct.Struct(kind)  # native: as "<f", what float32 can't hold would be an error

    def add(lower: Buffer, upper: Buffer) -> Buffer:
        (low,), (up,) = number.unpack_from(lower), number.unpack_from(upper)
        return number.pack(low + up)

    return add


_ADD: dict[str, Callable[[Buffer, Buffer], Buffer]] = {
    kind: _adder(kind) for kind in SINGLE_FORMATS.values()
}


class RemoteSums(Sums):
    """Does the short all-reduces of one communicator; :func:`open_remote_sums` makes it."""

    most = MOST_NUMBERS

    def __init__(self, comm: MPI.Intracomm, arrivals: RemoteArrivals) -> None:
        super().__init__(comm)
        self._arrivals = arrivals

    def Allreduce(self, _in_place: object, message: list, op: MPI.Op) -> None:
        memory, count, datatype = message
        if op is MPI.SUM and type(memory) is memoryview:  # one floating-point number
            combine = _ADD[memory.format]
        else:

            def combine(lower: Buffer, upper: Buffer) -> Buffer:
                total = bytearray(upper)
                op.Reduce_local([lower, count, datatype], [total, count, datatype])
                return total

        numbers = memoryview(memory).cast("B")
        total = self._arrivals.meet_with(self.work, self.call, numbers, combine)
        if total is None:
            raise self._mismatch()
        if is_revoked(self._comm):  # a rank that sent its numbers has given up since
            raise freed(self.work.what, self._comm)
        numbers[:] = total


def open_remote_sums(comm: MPI.Intracomm, arrivals: RemoteArrivals) -> RemoteSums | None:
    """Return the object that does the short all-reduces of ``comm``; each rank must call this.

    Returns:
        None unless the number of ranks is a power of two, or if MPI takes the memory of GPUs on one
        of them, which can't be read here: then the all-reduces are MPI's.
    """
    if not comm.allreduce(arrivals.in_pairs and not gpus.takes_cuda(), MPI.LAND):
        return None
    arrivals.make_room(MOST_NUMBERS * _BYTES_A_NUMBER)
    return RemoteSums(comm, arrivals)
