"""Five all-reduces made of sends and receives, each with its schedule.

- ``naive``: everyone sends to a root, the root sends to everyone,
- ``tree``: the same in pairs of pairs of pairs,
- ``recursive doubling``: pairs exchange whole tensors, at distances 1, 2, 4, ...,
- ``ring``: a part of the tensor at a time goes round twice,
- ``rabenseifner``: pairs exchange halves of halves, and the same way back.

Each is a pure function ``schedule(rank, world_size, numel)`` that lists a rank's steps, which
``run_schedule`` carries out by send and recv.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from .execution import run_schedule
from .schedules import (
    Part,
    Schedule,
    Step,
    naive_schedule,
    rabenseifner_schedule,
    recursive_doubling_schedule,
    ring_schedule,
    tree_schedule,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Part",
    "Step",
    "all_reduce_ring",
    "run_schedule",
]


@dataclass(frozen=True)
class Algorithm:
    """One way to all-reduce.

    Attributes:
        schedule: ``schedule(rank, world_size, numel)``, the steps of that rank.
    """

    schedule: Schedule

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
    ) -> torch.Tensor:
        """All-reduce ``tensor`` in place and return it; see :func:`run_schedule`."""
        return run_schedule(self.schedule, tensor, op, group)


ALGORITHMS: dict[str, Algorithm] = {
    "naive": Algorithm(naive_schedule),
    "tree": Algorithm(tree_schedule),
    "recursive doubling": Algorithm(recursive_doubling_schedule),
    "ring": Algorithm(ring_schedule),
    "rabenseifner": Algorithm(rabenseifner_schedule),
}
all_reduce_ring = ALGORITHMS["ring"].all_reduce
