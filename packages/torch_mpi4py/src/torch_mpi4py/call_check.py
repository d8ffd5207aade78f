"""Before data moves, all ranks compare what they are about to do.

MPI does not check that ranks call the same collective with the same arguments: a mismatch
gives wrong numbers, a crash or a hang. Each rank reduces its call to one 62-bit number and a
16-byte all-reduce (maximum of the number and of its negative) shows whether all are equal.
Only when they differ, descriptions are exchanged, so that the error can name every rank.
"""

from __future__ import annotations

import os

import numpy

from .call import Call
from .errors import MismatchError
from .runtime import MPI

__all__ = ["Agreement"]

_DESCRIPTION_BYTES = 256


class Agreement:
    """Compares calls on one communicator.

    Set ``TORCH_MPI4PY_CHECK_COLLECTIVES=0`` on all ranks to switch the comparison off: this saves
    one small all-reduce per collective, and mismatches are then undefined behaviour.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.enabled = os.environ.get("TORCH_MPI4PY_CHECK_COLLECTIVES", "1") != "0"
        self._comm = comm
        # Written by the one thread that runs the channel's collectives at a time.
        self._largest = bytearray(16)
        self._message = [self._largest, 2, MPI.INT64_T]

    def check(self, call: Call) -> None:
        """Return if every rank of the communicator passes an equal ``call``.

        Raises:
            MismatchError: on every rank, if any two differ.
        """
        self._comm.Allreduce(call.message, self._message, MPI.MAX)
        if self._largest != call.digest:
            raise self._mismatch(call)

    def _mismatch(self, call: Call) -> MismatchError:
        mine = numpy.zeros(_DESCRIPTION_BYTES, numpy.uint8)
        text = call.describe().encode()[:_DESCRIPTION_BYTES]
        mine[: len(text)] = list(text)
        size = self._comm.Get_size()
        table = numpy.zeros((size, _DESCRIPTION_BYTES), numpy.uint8)
        self._comm.Allgather([mine, MPI.UINT8_T], [table, MPI.UINT8_T])
        calls = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in table]
        lines = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(calls))
        return MismatchError(
            "the ranks of this group did not call the same collective with the same "
            f"arguments:\n{lines}\nNo data was moved and the group is still usable. Make the "
            "ranks agree: same calls in the same order, same shape, dtype, root and operation."
        )
