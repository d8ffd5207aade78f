"""A description of one collective call: its name, its data, and its source or destination.

The ranks compare it before data moves, since MPI does not: a mismatch gives wrong numbers, a crash
or a hang. Each rank reduces its call to one 62-bit number and a 16-byte all-reduce (maximum of the
number and of its negative) shows whether all are equal. Only when they differ, descriptions are
exchanged, so that the error can name every rank. Events and error messages are made from it, too.
"""

from __future__ import annotations

import functools
import struct

import numpy
import torch

from .dtypes import code_of
from .errors import MismatchError
from .runtime import MPI

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
_DESCRIPTION_BYTES = 256
_OP_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


class Call:
    """What must be equal on all ranks for one collective.

    Immutable, except for ``places``.

    Args:
        name: the collective, by its name in torch.distributed.
        counts: number of elements, or one number per rank where they may differ.
        dtype: dtype of the elements, None for a barrier.
        op: code of the reduce operation, -1 if there is none.
        root: source or destination rank in the group, -1 if there is none.
        link: latency and bandwidth of an emulated link, empty on the real one.

    Attributes:
        digest: two int64: a number that is equal on ranks whose calls are equal, and its negative.
        message: the same, for mpi4py.
        may_be_shared: whether shared memory may serve in place of MPI (:mod:`.shared_sums`).
        signature: 48 bits of that number, above 16 that are left free (:mod:`.arrivals`).
        places: where the event log has its texts, and its bytes; only the log writes this, from any
            thread, and always the same value.
    """

    __slots__ = (
        *("counts", "digest", "dtype", "link", "may_be_shared", "message", "name", "op"),
        *("places", "root", "signature"),
    )

    layout = 0  # of the tensors: dense

    def __init__(
        self,
        name: str,
        counts: tuple[int, ...] = (),
        dtype: torch.dtype | None = None,
        op: int = -1,
        root: int = -1,
        link: tuple[float, ...] = (),
    ) -> None:
        self.name = name
        self.may_be_shared = name == "all_reduce" and self.layout == 0
        self.counts = counts
        self.dtype = dtype
        self.op = op
        self.root = root
        self.link = link
        dtype_code = 0 if dtype is None else 1 + code_of(dtype)
        fields = (self.layout, _NAME_CODE[name], dtype_code, op + 1, root + 1, *counts, *link)
        number = hash(fields) & (2**62 - 1)
        self.digest = struct.pack("qq", number, -number)
        self.message = [self.digest, 2, MPI.INT64_T]
        self.signature = (number & (2**48 - 1)) << 16
        self.places: tuple[int, int, int, int] | None = None

    def over(self, link: tuple[float, ...]) -> Call:
        """Return this call over an emulated link."""
        return known_call(self.name, self.counts, self.dtype, self.op, self.root, link)

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
        """Return the bytes of the largest part that one rank holds or receives.

        Args:
            result: the output tensors, which alone tell the size of an all_to_all.
            ranks: how many parts a single output of an all_to_all is taken to have.
        """
        if self.name == "all_to_all_single":
            return -(-result[0].nbytes // ranks)
        if self.name == "all_to_all":
            return max(tensor.nbytes for tensor in result)
        return max(self.counts, default=0) * (self.dtype.itemsize if self.dtype else 0)


# Most programs repeat a few calls: equal arguments give the same object again, and what was worked
# out for it once need not be worked out in every step.
known_call = functools.lru_cache(maxsize=10_000)(Call)


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
