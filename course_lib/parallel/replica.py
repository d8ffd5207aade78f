"""Before replicas exchange numbers, they compare what their models are made of.

Names, shapes and dtypes travel first, as objects, so that ranks with different models get an
error that names the difference; and a rank whose own argument is wrong tells the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

__all__ = [
    "agree",
    "bytes_of",
    "communication_device",
    "exchange",
    "layout_of",
    "pack",
    "place_in",
    "rank_in",
    "require_equal_layouts",
    "tensors_of",
    "unpack",
    "unwrap",
]

Tensors = dict[str, torch.Tensor]
_WRAPPERS = (DataParallel, DistributedDataParallel)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside of DataParallel or DistributedDataParallel, or ``model``."""
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
            raise TypeError(f"{name!r} is not a dense tensor but {_kind(tensor)}")
    return {str(name): tensor.detach() for name, tensor in model.items()}


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"one of layout {value.layout}"
    return type(value).__name__


def layout_of(tensors: Tensors) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and dtype of each tensor in order."""
    return [
        (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    ]


def communication_device(group: dist.ProcessGroup | None) -> torch.device:
    """Return the device on which the group's backend takes tensors: CUDA for nccl only."""
    if "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def rank_in(group: dist.ProcessGroup | None = None) -> int:
    """Return this rank's number in the group.

    Raises:
        ValueError: if it is not in the group.
    """
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in this group, so it has no part in what the group "
            "does: let the ranks of the group call this, and no others"
        )
    return rank


def place_in(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """Return this rank's number in the group, and the group's size.

    Raises:
        ValueError: if it is not in the group.
    """
    known = dist.group.WORLD if group is None else group
    if isinstance(known, dist.ProcessGroup):  # a tenth of the time that torch's functions take
        return known.rank(), known.size()
    return rank_in(group), dist.get_world_size(group)


def exchange(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return every rank's ``value``, pickled on the way, in order of ranks.

    Raises:
        ValueError: if this rank is not in the group.
    """
    rank_in(group)
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def agree(prepare: Callable[[], Any], group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return what ``prepare`` gave on every rank; if it raised on one, raise on all.

    Raises:
        TypeError, ValueError, AssertionError: of the same class and message on every rank, as
            the lowest rank that raised did; another class becomes RuntimeError.
    """
    rank_in(group)  # what it is told then is not about what it would prepare
    own: Exception | None = None
    value, trouble = None, None
    try:
        value = prepare()
    except Exception as error:
        own, trouble = error, _portable(error)
    answers = exchange((value, trouble), group)
    troubles = [(rank, trouble) for rank, (_, trouble) in enumerate(answers) if trouble]
    if not troubles:
        return [value for value, _ in answers]
    rank, (kind, text) = troubles[0]
    everywhere = len(troubles) == len(answers) and len({text for _, (_, text) in troubles}) == 1
    raise kind(text if everywhere else f"on rank {rank}: {text}") from own


def _portable(error: Exception) -> tuple[type[Exception], str]:
    """Return class and message of an error that any rank can raise."""
    if isinstance(error, TypeError | ValueError | AssertionError):
        return type(error), str(error)
    return RuntimeError, f"{type(error).__name__}: {error}"


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
    ours, theirs = _by_name(first), _by_name(layout)
    for name in ours:
        if name not in theirs:
            return f"rank 0 has {name!r}, rank {rank} has not"
        if ours[name] != theirs[name]:
            return (
                f"{name!r} is {_text(ours[name])} on rank 0, {_text(theirs[name])} on rank {rank}"
            )
    for name in theirs:
        if name not in ours:
            return f"rank {rank} has {name!r}, rank 0 has not"
    return f"rank 0 and rank {rank} have the same tensors in another order"


def _by_name(layout: list[tuple]) -> dict[str, tuple]:
    return {name: (shape, dtype) for name, shape, dtype in layout}


def _text(description: tuple) -> str:
    shape, dtype = description
    return f"{dtype} {shape}"


def pack(tensors: Tensors, device: torch.device) -> torch.Tensor:
    """Return the bytes of all tensors one after the other, uint8 (bytes,), on ``device``."""
    parts = [bytes_of(tensor).to(device) for tensor in tensors.values()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=device)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of ``tensor`` as bytes, uint8 (bytes,), on its device."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def unpack(packed: torch.Tensor, like: Tensors) -> Tensors:
    """Return the tensors in ``packed``, with names, shapes and dtypes of ``like``."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in like.values()]
    parts = packed.split(sizes) if sizes else ()
    return {
        # A copy: the part may begin at a byte that its dtype cannot begin at.
        name: part.clone().view(tensor.dtype).reshape(tensor.shape)
        for (name, tensor), part in zip(like.items(), parts, strict=True)
    }
