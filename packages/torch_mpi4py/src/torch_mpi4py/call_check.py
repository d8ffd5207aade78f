"""Before data moves, all ranks compare what they are about to do.

MPI does not check that ranks call the same collective with the same arguments: a mismatch
gives wrong numbers, a crash or a hang. Each rank reduces its call to one 62-bit number and a
16-byte all-reduce (maximum of the number and of its negative) shows whether all are equal.
Only when they differ, descriptions are exchanged, so that the error can name every rank.
"""

from __future__ import annotations

import numpy

from .call import Call
from .errors import MismatchError
from .runtime import MPI

_DESCRIPTION_BYTES = 256


def mismatch(comm: MPI.Intracomm, call: Call) -> MismatchError:
    """Return the error for ranks whose calls differ; every rank of ``comm`` must call this."""
    mine = numpy.zeros(_DESCRIPTION_BYTES, numpy.uint8)
    text = call.describe().encode()[:_DESCRIPTION_BYTES]
    mine[: len(text)] = list(text)
    table = numpy.zeros((comm.Get_size(), _DESCRIPTION_BYTES), numpy.uint8)
    comm.Allgather([mine, MPI.UINT8_T], [table, MPI.UINT8_T])
    calls = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in table]
    lines = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(calls))
    return MismatchError(
        "the ranks of this group did not call the same collective with the same "
        f"arguments:\n{lines}\nNo data was moved and the group is still usable. Make the "
        "ranks agree: same calls in the same order, same shape, dtype, root and operation."
    )
