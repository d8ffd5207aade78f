"""In half of the steps half of the ranks are done, if they add up in pairs.

Ranks 1, 3, 5, ... send to their left neighbours, of those that received every second one sends
to the one before, and so on: the additions form a binary tree, whose root is rank 0. The
result goes back the same way. That takes 2 ceil(lg p) (alpha + n beta) + ceil(lg p) n gamma
seconds (a reduce and a broadcast by binomial trees: Thakur, Rabenseifner and Gropp 2005,
section 4). The root still carries lg p whole tensors each way.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from .run import run
from .steps import Counts, Step, part

__all__ = ["all_reduce_tree", "tree_counts", "tree_schedule"]


def all_reduce_tree(
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All-reduce ``tensor`` in place up and down a tree; see :func:`.run.run`."""
    return run(tree_schedule, tensor, op, group)


def tree_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Return the steps of ``rank``: up at distances 1, 2, 4, ..., down at the same reversed."""
    up, down = [], []
    for level in range(_ceil_log2(world_size)):
        distance = 2**level
        upwards = downwards = Step()
        if rank % (2 * distance) == distance:
            parent = part(rank - distance, 0, numel)
            upwards, downwards = Step(send=parent), Step(receive=parent)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            child = part(rank + distance, 0, numel)
            upwards, downwards = Step(receive=child, combine=True), Step(send=child)
        up.append(upwards)
        down.append(downwards)
    return up + down[::-1]


def tree_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return 2 ceil(lg p) steps; a message of n each way for every child and for the parent.

    Rank r > 0 has as many children as r has factors of 2, or fewer where ranks end: at most
    ceil(lg (p - r)); rank 0 has ceil(lg p).
    """
    children = _ceil_log2(world_size - rank)
    if rank:
        factors_of_two = (rank & -rank).bit_length() - 1
        children = min(children, factors_of_two)
    messages = children + (rank > 0) if numel else 0
    steps = 2 * _ceil_log2(world_size)
    elements = messages * numel
    return Counts(steps, messages, messages, elements, elements, children * numel)


def _ceil_log2(number: int) -> int:
    return (number - 1).bit_length()
