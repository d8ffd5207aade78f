"""How many bytes an argument of an mpi4py call stands for, without sending it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from .runtime import MPI

__all__ = ["bytes_of", "bytes_of_object", "whole_number"]


def bytes_of(buffer: Any, count_ranks: int = 1) -> int:
    """Return the bytes of data in a buffer argument of mpi4py, 0 where none is given.

    Args:
        buffer: whatever mpi4py takes for a buffer: an array, a tensor, ``[memory, datatype]``,
            ``[memory, count, datatype]``, ``[memory, counts, displacements, datatype]``, ...
        count_ranks: how often a single count holds, as in the receive buffer of Allgather.
    """
    if buffer is None or buffer is MPI.IN_PLACE or buffer is MPI.BOTTOM:
        return 0
    if not isinstance(buffer, (list, tuple)):
        return _memory_bytes(buffer)
    memory, *rest = buffer
    datatype = next((item for item in rest if isinstance(item, (MPI.Datatype, str))), None)
    counts = rest[0] if rest and rest[0] is not datatype else None
    if isinstance(counts, tuple) and len(counts) == 2 and isinstance(counts[0], Sequence):
        counts = counts[0]  # (counts, displacements)
    if counts is None:
        return _memory_bytes(memory)
    item = _item_bytes(memory, datatype)
    count = whole_number(counts)
    if count is not None:
        return count * item * count_ranks
    return int(sum(counts)) * item


def bytes_of_object(sent: Any) -> int:
    """Return the bytes of a Python object's message; it is pickled once to find out."""
    return len(MPI.pickle.dumps(sent))


def whole_number(value: Any) -> int | None:
    """Return ``value`` if MPI takes it for a whole number, NumPy's included, else None."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _item_bytes(memory: Any, datatype: MPI.Datatype | str | None) -> int:
    if isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    if datatype is not None:
        return datatype.Get_size()
    return getattr(memory, "itemsize", 1)


def _memory_bytes(memory: Any) -> int:
    return 0 if memory is None else MPI.buffer(memory).nbytes
