"""A rank carries out its schedule by sends and receives, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .arithmetic import Arithmetic
from .steps import Step

__all__ = ["Schedule", "run"]

Schedule = Callable[[int, int, int], list[Step]]


@torch.no_grad()
def run(
    schedule: Schedule,
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Combine all ranks' ``tensor`` element by element; every rank gets the result in place.

    The result has the same bits on all ranks. It equals ``dist.all_reduce`` exactly for bool
    and for integers whose results fit the dtype; others wrap round as in torch, while Open MPI
    stops at the largest number for sums of 8 and 16 bits. Sums and products of p floating-point
    numbers are off by at most p units in the last place of the sum (product) of magnitudes,
    and so from ``dist.all_reduce`` by at most twice that, since the order of operations
    differs. NaN spreads in MIN and MAX, where an MPI may drop it.

    Args:
        schedule: ``schedule(rank, world_size, numel)``, see :mod:`.steps`.
        tensor: dense, of one shape and dtype on all ranks; need not be contiguous.
        op: SUM, AVG, PRODUCT, MIN, MAX, and for integers and bool BAND, BOR, BXOR.
        group: process group, the default one if None. On NCCL it must have done a collective
            before, as NCCL asks for whenever not all ranks send at first.

    Returns:
        ``tensor``.

    Raises:
        TypeError: if the operation has no meaning for the dtype, or the tensor is not dense.
        ValueError: if this rank is not in the group.
    """
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("this rank is not in the group, so it has no part in its all-reduce")
    arithmetic = Arithmetic(tensor, op)
    data = arithmetic.data
    steps = schedule(rank, dist.get_world_size(group), data.numel())
    combined = [len(step.receive) for step in steps if step.combine and step.receive]
    incoming = data.new_empty(max(combined, default=0))
    for step in steps:
        _exchange(step, arithmetic, incoming, rank, group)
    arithmetic.finish(dist.get_world_size(group))
    return tensor


def _exchange(
    step: Step,
    arithmetic: Arithmetic,
    incoming: torch.Tensor,
    rank: int,
    group: dist.ProcessGroup | None,
) -> None:
    operations = []
    out, into = step.send, step.receive
    if out:
        message = arithmetic.data[out.start : out.stop]
        operations.append(dist.P2POp(dist.isend, message, group=group, group_peer=out.peer))
    if into:
        part = slice(into.start, into.stop)
        room = incoming[: len(into)] if step.combine else arithmetic.data[part]
        operations.append(dist.P2POp(dist.irecv, room, group=group, group_peer=into.peer))
    if not operations:
        return
    # Both are under way before either is waited for.
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if into and step.combine:
        arithmetic.combine(part, room, received_first=into.peer < rank)
