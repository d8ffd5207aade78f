"""The one idea: what a process group is asked to move can be counted, whoever asks.

:func:`collective_log.recorded` sees calls in Python. DistributedDataParallel calls its process
group from C++, past those functions; here the group itself is watched, so that lessons can
count how many collectives a training step takes and how many bytes it hands to them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib.mpi import MPIProcessGroup

__all__ = ["GroupCall", "bytes_of", "group_calls", "rounds_of"]

# The position of the argument that holds what this rank hands over.
_HANDED_OVER = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "broadcast": 0,
    "reduce": 0,
    "allgather": 1,
    "all_gather_single": 1,
    "_allgather_base": 1,
    "gather": 1,
    "scatter": 1,
    "reduce_scatter": 1,
    "reduce_scatter_single": 1,
    "_reduce_scatter_base": 1,
    "alltoall": 1,
    "all_to_all_single": 1,
    "alltoall_base": 1,
    "barrier": None,
    "send": 0,
}


@dataclass(frozen=True)
class GroupCall:
    """One call: torch's name of the operation, dtype, and bytes of this rank's own data."""

    name: str
    dtype: torch.dtype | None
    nbytes: int


@contextmanager
def group_calls(group: dist.ProcessGroup | None = None) -> Iterator[list[GroupCall]]:
    """Yield a list that fills with a :class:`GroupCall` per operation of ``group``.

    ``group``: a group of this course's backend, by default the default group. Bytes are what
    this rank hands over, not what travels: an all-reduce moves about twice as much.

    Raises:
        TypeError: for a group of another backend, whose calls never pass through Python.
    """
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, MPIProcessGroup):
        raise TypeError(
            f"only groups of the backend mpi4py can be watched, not {type(group).__name__}"
        )
    log: list[GroupCall] = []
    before = dict(group.__dict__)
    for name, position in _HANDED_OVER.items():
        if hasattr(group, name):
            setattr(group, name, _watched(getattr(group, name), name, position, log))
    try:
        yield log
    finally:
        for name in _HANDED_OVER:
            group.__dict__.pop(name, None)
            if name in before:  # somebody else was watching already
                setattr(group, name, before[name])


def bytes_of(log: list[GroupCall], *names: str) -> int:
    """Return the bytes handed over in ``log``, by the operations ``names`` or by all of them."""
    return sum(call.nbytes for call in log if not names or call.name in names)


def rounds_of(log: list[GroupCall], name: str = "allreduce") -> int:
    """Return how many operations of this name ``log`` holds."""
    return sum(call.name == name for call in log)


def _watched(original: Callable, name: str, position: int | None, log: list[GroupCall]):
    @functools.wraps(original)
    def call(*args, **kwargs):
        tensors = _tensors(args[position]) if position is not None else []
        dtype = tensors[0].dtype if tensors else None
        log.append(GroupCall(name, dtype, sum(tensor.nbytes for tensor in tensors)))
        return original(*args, **kwargs)

    return call


def _tensors(data: object) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    return [tensor for item in data for tensor in _tensors(item)]
