"""Cut the tensor in p chunks, so that all links carry a chunk all the time.

Reduce-scatter: in each of p - 1 steps a rank passes to its right neighbour the chunk that it
has just added to, until it holds one chunk of the result. All-gather: p - 1 more steps pass
the results round. A rank sends 2 (p - 1) / p n elements, and no algorithm can do with fewer
(Patarasuk and Yuan 2009): 2 (p - 1) alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma seconds.
Many steps, but the least data: for long tensors.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from .run import run
from .steps import Counts, Part, Step, offset_of_chunk, part

__all__ = ["all_reduce_ring", "ring_counts", "ring_schedule"]


def all_reduce_ring(
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All-reduce ``tensor`` in place round a ring; see :func:`.run.run`."""
    return run(ring_schedule, tensor, op, group)


def ring_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Return the steps of ``rank``.

    In step k of the reduce-scatter it sends chunk rank - k and adds to chunk rank - k - 1; at
    its end it holds chunk rank + 1, with which the all-gather begins.
    """
    left, right = (rank - 1) % world_size, (rank + 1) % world_size

    def chunk(peer: int, index: int) -> Part | None:
        index %= world_size
        start = offset_of_chunk(index, world_size, numel)
        return part(peer, start, offset_of_chunk(index + 1, world_size, numel))

    turns = range(world_size - 1)
    reduce_scatter = [
        Step(chunk(right, rank - turn), chunk(left, rank - turn - 1), combine=True)
        for turn in turns
    ]
    all_gather = [Step(chunk(right, rank + 1 - turn), chunk(left, rank - turn)) for turn in turns]
    return reduce_scatter + all_gather


def ring_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return 2 (p - 1) steps with a message of n / p each way, exactly so where p divides n.

    With c(i) elements in chunk i: sent are twice all chunks but c(rank + 1) once and
    c(rank + 2) once, received twice all but c(rank) and c(rank + 1), added all but c(rank).
    Empty chunks, of which there are p - n if n < p, need no message.
    """
    p = world_size
    sizes = [numel // p + (i % p < numel % p) for i in range(rank, rank + 3)]
    filled = [size > 0 for size in sizes]
    messages = 2 * min(numel, p)
    return Counts(
        steps=2 * (p - 1),
        messages_sent=messages - filled[1] - filled[2],
        messages_received=messages - filled[0] - filled[1],
        elements_sent=2 * numel - sizes[1] - sizes[2],
        elements_received=2 * numel - sizes[0] - sizes[1],
        elements_combined=numel - sizes[0],
    )
