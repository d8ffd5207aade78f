"""Exchange with the rank at distance 1, 2, 4, ..., and nobody ever waits idle.

After step k a rank knows the result of its 2**k nearest, so p ranks need lg p steps instead of
the tree's 2 lg p: lg p (alpha + n beta + n gamma) seconds for a power of two (Thakur,
Rabenseifner and Gropp 2005, section 4). Other world sizes are folded to one, for up to
2 (alpha + n beta) + n gamma more. Few steps, but whole tensors: for short ones.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from .run import run
from .steps import Counts, Fold, Step, floor_log2, part

__all__ = [
    "all_reduce_recursive_doubling",
    "recursive_doubling_counts",
    "recursive_doubling_schedule",
]


def all_reduce_recursive_doubling(
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All-reduce ``tensor`` in place by exchanging it in pairs; see :func:`.run.run`."""
    return run(recursive_doubling_schedule, tensor, op, group)


def recursive_doubling_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Return the steps of ``rank``: whole tensors to and from the partner of each distance."""
    fold = Fold(rank, world_size, numel)
    steps = []
    for level in range(floor_log2(fold.ranks)):
        if fold.new_rank is None:
            steps.append(Step())
            continue
        partner = part(fold.old_rank(fold.new_rank ^ 2**level), 0, numel)
        steps.append(Step(send=partner, receive=partner, combine=True))
    return fold.before + steps + fold.after


def recursive_doubling_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return floor(lg p) steps and as many messages of n each way; with folding, see the code.

    If p is no power of two, there are two more steps. A rank that stands aside has one message
    each way, its neighbour one more than the others.
    """
    exchanges = floor_log2(world_size)
    extra = world_size - 2**exchanges
    steps = exchanges + (2 if extra else 0)
    folded = rank < 2 * extra
    aside = folded and rank % 2 == 0
    messages = 1 if aside else exchanges + folded
    combined = 0 if aside else messages * numel
    messages = messages if numel else 0
    elements = messages * numel
    return Counts(steps, messages, messages, elements, elements, combined)
