"""Rank 0 takes everyone's tensor, and gives everyone the result.

One rank's link carries everything: 2 (p - 1) (alpha + n beta) + (p - 1) n gamma seconds. The
operation is carried out in the order of the ranks, as a loop over them would.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from .run import run
from .steps import Counts, Step, part

__all__ = ["all_reduce_naive", "naive_counts", "naive_schedule"]

ROOT = 0


def all_reduce_naive(
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All-reduce ``tensor`` in place through rank 0; see :func:`.run.run`."""
    return run(naive_schedule, tensor, op, group)


def naive_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Return the steps of ``rank``: in step k rank k has its turn, first in, then out."""
    others = range(1, world_size)
    if rank == ROOT:
        collect = [Step(receive=part(peer, 0, numel), combine=True) for peer in others]
        return collect + [Step(send=part(peer, 0, numel)) for peer in others]
    root = part(ROOT, 0, numel)
    collect = [Step(send=root) if peer == rank else Step() for peer in others]
    return collect + [Step(receive=root) if peer == rank else Step() for peer in others]


def naive_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return 2 (p - 1) steps; the root has p - 1 messages of n each way, the others one."""
    messages = (world_size - 1 if rank == ROOT else 1) if numel else 0
    combined = (world_size - 1) * numel if rank == ROOT else 0
    elements = messages * numel
    return Counts(2 * (world_size - 1), messages, messages, elements, elements, combined)
