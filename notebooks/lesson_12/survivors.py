"""Makes the survivors of a dead rank equal again, so that they can go on training.

A rank dies while others wait for it in an all-reduce. Some may have received their result just
before and made the update; they cannot be more than one step ahead, because the next all-reduce
needs all ranks. Those that are behind take over the weights and the optimizer state of one that is
ahead. Then all replicas are as they would be without the death.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.parallel.agreement import exchange

__all__ = ["catch_up", "unwrapped"]


def unwrapped(ddp: DistributedDataParallel) -> nn.Module:
    """Return the model inside ``ddp``, without the hooks that tell DDP about its gradients.

    The model can then be wrapped again. After an error in backward, a traceback may keep the old
    wrapper alive, and its hooks would interfere with those of the new one.
    """
    ddp._remove_autograd_hooks()
    return ddp.module


def catch_up(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps_done: int,
    group: dist.ProcessGroup | None = None,
) -> int:
    """Make all replicas equal to one that has done most steps; every rank of the group calls it.

    Args:
        model: the plain model, not inside DistributedDataParallel (which used the dead world).
        optimizer: over the model's parameters.
        steps_done: how many steps this rank has finished.
        group: the survivors, by default the default group.

    Returns:
        The most steps that any survivor has finished, which is also the number of the next step.
    """
    everyones = exchange(steps_done, group)
    furthest = max(everyones)
    state = [model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, group=group, group_src=everyones.index(furthest))
    if steps_done != furthest:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    return furthest
