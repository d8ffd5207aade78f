"""Gives all replicas the same initial weights.

Random initialisation gives every rank different weights. Before the first step, one rank's
parameters and buffers replace those of all others. Replicas that start equal and take the same
steps stay equal.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from .agreement import agree, communication_device
from .flat_tensors import FlatBytes
from .replica import Tensors, layout_of, require_equal_layouts, tensors_of


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
            not a rank of the group; on this rank, if it is not in the group.
    """
    tensors: Tensors = {}

    def prepare() -> tuple:
        if not 0 <= root < dist.get_world_size(group):
            raise ValueError(
                f"root must be a rank of the group, 0 to {dist.get_world_size(group) - 1}, "
                f"not {root}"
            )
        tensors.update(tensors_of(model))
        return root, layout_of(tensors)

    roots, layouts = zip(*agree(prepare, group), strict=True)
    if len(set(roots)) > 1:
        raise ValueError(
            f"all ranks must name the same root, but ranks 0, 1, ... name {list(roots)}"
        )
    require_equal_layouts(list(layouts))
    flat = FlatBytes(tensors.values(), communication_device(group))
    dist.broadcast(flat.pack(tensors.values()), group=group, group_src=root)
    flat.unpack(tensors.values())
