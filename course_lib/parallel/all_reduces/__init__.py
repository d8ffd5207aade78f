"""An all-reduce is a schedule of messages between two ranks at a time.

Five algorithms give every rank the same combination of all ranks' tensors:

- ``naive``: everyone sends to a root, the root sends to everyone,
- ``tree``: the same in pairs of pairs of pairs,
- ``recursive_doubling``: pairs exchange whole tensors, at distances 1, 2, 4, ...,
- ``ring``: a part of the tensor at a time goes round twice,
- ``rabenseifner``: pairs exchange halves of halves, and the same way back.

Each is a pure function ``schedule(rank, world_size, numel)`` that lists a rank's steps; ``run``
carries out the steps of this rank by send and recv, ``replay`` those of all ranks in one
process. Beside each stands ``counts``, the published formula for what the schedule costs.

Costs are given for p ranks and n elements (or bytes, as the units have it) in the alpha-beta-
gamma model: a message of m elements takes alpha + m beta seconds, combining m elements m gamma,
and a rank sends one message and receives one at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .naive import all_reduce_naive, naive_counts, naive_schedule
from .rabenseifner import all_reduce_rabenseifner, rabenseifner_counts, rabenseifner_schedule
from .recursive_doubling import (
    all_reduce_recursive_doubling,
    recursive_doubling_counts,
    recursive_doubling_schedule,
)
from .replay import replay
from .ring import all_reduce_ring, ring_counts, ring_schedule
from .run import Schedule
from .steps import Counts, Part, Step, count
from .tree import all_reduce_tree, tree_counts, tree_schedule

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Counts",
    "Part",
    "Step",
    "all_reduce_naive",
    "all_reduce_rabenseifner",
    "all_reduce_recursive_doubling",
    "all_reduce_ring",
    "all_reduce_tree",
    "count",
    "naive_counts",
    "naive_schedule",
    "rabenseifner_counts",
    "rabenseifner_schedule",
    "recursive_doubling_counts",
    "recursive_doubling_schedule",
    "replay",
    "ring_counts",
    "ring_schedule",
    "tree_counts",
    "tree_schedule",
]


@dataclass(frozen=True)
class Algorithm:
    """One way to all-reduce.

    Attributes:
        all_reduce: ``all_reduce(tensor, op=ReduceOp.SUM, group=None)``, in place.
        schedule: ``schedule(rank, world_size, numel)``, the steps of that rank.
        counts: ``counts(rank, world_size, numel)``, what the formulas say of them.
    """

    all_reduce: Callable[..., torch.Tensor]
    schedule: Schedule
    counts: Callable[[int, int, int], Counts]


ALGORITHMS: dict[str, Algorithm] = {
    "naive": Algorithm(all_reduce_naive, naive_schedule, naive_counts),
    "tree": Algorithm(all_reduce_tree, tree_schedule, tree_counts),
    "recursive doubling": Algorithm(
        all_reduce_recursive_doubling, recursive_doubling_schedule, recursive_doubling_counts
    ),
    "ring": Algorithm(all_reduce_ring, ring_schedule, ring_counts),
    "rabenseifner": Algorithm(all_reduce_rabenseifner, rabenseifner_schedule, rabenseifner_counts),
}
