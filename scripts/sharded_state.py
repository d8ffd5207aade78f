"""Puts the parts of a model that is spread over ranks together again."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def whole_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, whole on every rank; every rank calls it.

    Parts cut by ``fully_shard`` or ``parallelize_module`` are gathered, so it needs the memory of
    the whole model; the rest is this rank's own tensor, not a copy.
    """
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in model.state_dict().items()
    }
