"""Lists the tensors of a replica, and compares them across ranks.

Before replicas exchange numbers they compare names, shapes and dtypes, so that ranks with
different models get an error that names the difference.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

Tensors = dict[str, torch.Tensor]
_WRAPPERS = (DataParallel, DistributedDataParallel)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside DataParallel or DistributedDataParallel, or ``model``."""
    return model.module if isinstance(model, _WRAPPERS) else model


def tensors_of(model: nn.Module | Mapping[str, torch.Tensor]) -> Tensors:
    """Return parameters and buffers by name, each tied one once, under its first name.

    Raises:
        TypeError: for anything but a module or a mapping of names to dense tensors.
    """
    if isinstance(model, nn.Module):
        model = unwrap(model)
        return {
            name: tensor.detach()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
    if not isinstance(model, Mapping):
        raise TypeError(
            "a model (torch.nn.Module) or a mapping of names to tensors is needed, not "
            f"{type(model).__name__}"
        )
    for name, tensor in model.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            kind = getattr(tensor, "layout", type(tensor).__name__)
            raise TypeError(f"{name!r} is not a dense tensor but {kind}")
    return {str(name): tensor.detach() for name, tensor in model.items()}


def layout_of(tensors: Tensors) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and dtype of each tensor in order."""
    return [
        (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    ]


def require_equal_layouts(
    layouts: list[list[tuple[str, tuple[int, ...], str]]],
    error: type[Exception] = ValueError,
) -> None:
    """Raise ``error`` unless every rank has the same names, shapes and dtypes, in order."""
    first = layouts[0]
    for rank, layout in enumerate(layouts):
        if layout != first:
            raise error(
                f"the ranks have different models: {_difference(first, layout, rank)}. "
                "Build the same model on every rank"
            )


def _difference(first: list[tuple], layout: list[tuple], rank: int) -> str:
    ours, theirs = (
        {name: f"{dtype} {shape}" for name, shape, dtype in one} for one in (first, layout)
    )
    for name in ours | theirs:
        here, there = ours.get(name, "missing"), theirs.get(name, "missing")
        if here != there:
            return f"{name!r} is {here} on rank 0, {there} on rank {rank}"
    return f"rank 0 and rank {rank} have the same tensors in a different order"
