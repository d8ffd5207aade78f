"""Before data moves, all ranks compare what they are about to do.

MPI does not check that ranks call the same collective with the same arguments: a mismatch
gives wrong numbers, a crash or a hang. Each rank reduces its call to one 63-bit number and a
16-byte all-reduce (maximum of the number and of its negative) shows whether all are equal.
Only when they differ, descriptions are exchanged, so that the error can name every rank.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy
import torch

from .dtypes import code_of
from .errors import MismatchError
from .runtime import MPI

__all__ = ["Agreement", "Call"]

_DESCRIPTION_BYTES = 256
_NAMES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)
_NAME_CODE = {name: index for index, name in enumerate(_NAMES)}
_OP_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


class Call(NamedTuple):
    """What must be equal on all ranks for one collective.

    Attributes:
        name: the collective, by its name in torch.distributed.
        counts: number of elements, or one number per rank where they may differ.
        dtype: dtype of the elements, None for a barrier.
        op: code of the reduce operation, -1 if there is none.
        root: source or destination rank in the group, -1 if there is none.
        link: latency and bandwidth of an emulated link, empty on the real one.
    """

    name: str
    counts: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    op: int = -1
    root: int = -1
    link: tuple[float, ...] = ()

    def digest(self) -> int:
        """Return a number from 0 to 2**62 - 1, equal on ranks whose calls are equal."""
        dtype = 0 if self.dtype is None else 1 + code_of(self.dtype)
        numbers = (*self.counts, *self.link)
        fields = (_NAME_CODE[self.name], dtype, self.op + 1, self.root + 1, *numbers)
        return hash(fields) & (2**62 - 1)

    def describe(self) -> str:
        """Return e.g. ``all_reduce(SUM) of 3 float32 elements``."""
        text = self.name
        if self.op >= 0:
            text += f"({_OP_NAMES[self.op]})"
        if self.counts:
            text += f" of {self._counts()} {str(self.dtype).removeprefix('torch.')} elements"
        if self.root >= 0:
            text += f", root {self.root}"
        if self.link:
            text += f", over an emulated link of {self.link[0]:g} s and {self.link[1]:g} bytes/s"
        return text

    def elements(self) -> str:
        """Return e.g. ``SUM of 3``, ``3 + 4``, or nothing."""
        counts = self._counts()
        return f"{_OP_NAMES[self.op]} of {counts}" if self.op >= 0 else counts

    def _counts(self) -> str:
        counts = " + ".join(map(str, self.counts))
        if len(counts) > 80:
            counts = f"{sum(self.counts)} (in {len(self.counts)} parts)"
        return counts

    def largest_part_bytes(self, result: list[torch.Tensor], ranks: int) -> int:
        """Return the bytes of the largest part that one rank has or gets.

        Args:
            result: the output tensors, which alone tell the size of an all_to_all.
            ranks: how many parts a single output of an all_to_all is taken to have.
        """
        if self.name == "all_to_all_single":
            return -(-result[0].nbytes // ranks)
        if self.name == "all_to_all":
            return max(tensor.nbytes for tensor in result)
        return max(self.counts, default=0) * (self.dtype.itemsize if self.dtype else 0)


class Agreement:
    """Compares calls on one communicator.

    Set ``TORCH_MPI4PY_CHECK_COLLECTIVES=0`` on all ranks to switch the comparison off: this saves
    one small all-reduce per collective, and mismatches are then undefined behaviour.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.enabled = os.environ.get("TORCH_MPI4PY_CHECK_COLLECTIVES", "1") != "0"
        self._comm = comm
        self._header = numpy.zeros(2, numpy.int64)
        self._message = [self._header, 2, MPI.INT64_T]

    def check(self, call: Call) -> None:
        """Return if every rank of the communicator passes an equal ``call``.

        Raises:
            MismatchError: on every rank, if any two differ.
        """
        if not self.enabled:
            return
        header = self._header
        digest = call.digest()
        header[0] = digest
        header[1] = -digest
        self._comm.Allreduce(MPI.IN_PLACE, self._message, MPI.MAX)
        if header[0] != -header[1]:
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
