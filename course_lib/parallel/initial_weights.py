"""Replicas that start from the same weights and take the same steps stay equal.

Random initialisation gives every rank other weights. Before the first step one rank's
parameters and buffers replace those of all others.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from .replica import (
    Tensors,
    agree,
    communication_device,
    layout_of,
    pack,
    require_equal_layouts,
    tensors_of,
    unpack,
)

__all__ = ["send_initial_weights", "sync_initial_weights"]


def sync_initial_weights(
    model: nn.Module, root: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """Give every rank the parameters and buffers of rank ``root``: one broadcast of their bytes.

    Every rank of the group calls it. Frozen parameters travel too, tied ones once. An
    optimizer made before or after is fine: tensors keep their identity.

    Args:
        model: the same architecture on every rank, of any dtypes, on any device.
        root: rank in the group whose weights all get.
        group: process group, the default one if None.

    Raises:
        ValueError: on every rank, if models differ in names, shapes or dtypes, or ``root`` is
            no rank of the group; on this rank, if it is not in the group.
    """
    tensors, packed = _prepare(model, root, group)
    dist.broadcast(packed, group=group, group_src=root)
    _fill(tensors, packed)


def send_initial_weights(
    model: nn.Module, root: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """Do as :func:`sync_initial_weights`, by one message from ``root`` to each of its siblings.

    The root's cost grows with the number of ranks, where a broadcast's grows with its logarithm.
    """
    tensors, packed = _prepare(model, root, group)
    rank = dist.get_rank(group)
    if rank == root:
        for sibling in range(dist.get_world_size(group)):
            if sibling != root:
                dist.send(packed, group=group, group_dst=sibling)
    else:
        dist.recv(packed, group=group, group_src=root)
        _fill(tensors, packed)


def _prepare(
    model: nn.Module, root: int, group: dist.ProcessGroup | None
) -> tuple[Tensors, torch.Tensor]:
    tensors: Tensors = {}

    def prepare() -> tuple:
        if not 0 <= root < dist.get_world_size(group):
            raise ValueError(
                f"root must be a rank of the group, 0 to {dist.get_world_size(group) - 1}, "
                f"not {root}"
            )
        tensors.update(tensors_of(model))
        return root, layout_of(tensors)

    answers = agree(prepare, group)
    roots = [answer[0] for answer in answers]
    if len(set(roots)) > 1:
        raise ValueError(f"all ranks must name the same root, but ranks 0, 1, ... name {roots}")
    require_equal_layouts([answer[1] for answer in answers])
    return tensors, pack(tensors, communication_device(group))


@torch.no_grad()
def _fill(tensors: Tensors, packed: torch.Tensor) -> None:
    for name, value in unpack(packed, tensors).items():
        tensors[name].copy_(value)
