"""Refuses a wrong argument on the rank that passed it, before MPI sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _functorch as functorch

from ..core.buffers import require_reachable


def as_list(
    tensors: Any, what: str, *, single: bool = False, sparse: bool = False
) -> list[torch.Tensor]:
    """Return ``tensors`` as a list after checking that each can be communicated.

    Args:
        single: there must be exactly one.
        sparse: it may be a sparse COO tensor.

    Raises:
        TypeError: if one is not a dense tensor.
        ValueError: if one is on an unreachable device, or if ``single`` is set and there is not
            one.
    """
    if not isinstance(tensors, (torch.Tensor, Sequence)):
        raise TypeError(f"{what} takes a tensor or a list of them, not {type(tensors).__name__}")
    listed = [_result(t) for t in ([tensors] if isinstance(tensors, torch.Tensor) else tensors)]
    layouts = (torch.strided, torch.sparse_coo) if sparse else (torch.strided,)
    for index, tensor in enumerate(listed):
        name = "tensor" if len(listed) == 1 else f"tensor {index}"
        require_reachable(tensor, name, what, layouts)
    if single and len(listed) != 1:
        raise ValueError(f"{what}: expected one tensor per rank, not {len(listed)}")
    if not listed:
        raise ValueError(f"{what}: the list of tensors is empty")
    return listed


def _result(tensor: Any) -> Any:
    """Return the tensor for which ``tensor`` stands.

    That is the result of a functional collective, or what torch.func.grad differentiates.
    """
    if isinstance(tensor, torch.Tensor) and functorch.is_gradtrackingtensor(tensor):
        return _result(functorch.get_unwrapped(tensor))
    if type(tensor) is torch.Tensor or not hasattr(tensor, "trigger_wait"):
        return tensor
    return tensor.trigger_wait()


def require_peer(peer: int, size: int, name: str, other_than: int | None = None) -> None:
    """Raise ValueError unless ``peer`` is a rank of the group (and another one, if asked)."""
    if not 0 <= peer < size:
        raise ValueError(f"{name} rank must be from 0 to {size - 1} in this group, not {peer}")
    if peer == other_than:
        raise ValueError(
            f"{name} is rank {peer} itself; a rank cannot exchange messages with itself here, "
            "so copy the tensor instead"
        )


def require_same_dtype(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raise TypeError if the tensors are of more than one dtype."""
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in tensors))
    if len(dtypes) > 1:
        names = ", ".join(map(str, dtypes))
        raise TypeError(f"{what}: all tensors must have one dtype, not {names}")


def require_size(actual: int, expected: int, name: str) -> None:
    """Raise ValueError unless both numbers are equal."""
    if actual != expected:
        raise ValueError(f"{name} must be {expected}, not {actual}")


def split_evenly(tensor: torch.Tensor, size: int, what: str) -> list[torch.Tensor]:
    """Return ``size`` consecutive parts of equal length, all of them views.

    Raises:
        ValueError: if the tensor is strided so that its parts are no views of it.
    """
    if tensor.numel() == 0:
        return [tensor.reshape(-1)] * size
    if tensor.is_contiguous():
        return list(tensor.view(-1).chunk(size))
    if tensor.dim() == 0 or tensor.shape[0] % size:
        raise ValueError(
            f"{what}: a non-contiguous tensor of shape {tuple(tensor.shape)} cannot be split "
            f"among {size} ranks along its first dimension; pass it contiguous"
        )
    return list(tensor.chunk(size))


def split_first_dimension(
    tensor: torch.Tensor, splits: Sequence[int] | None, size: int, name: str
) -> list[torch.Tensor]:
    """Return one part per rank along dimension 0: ``splits[r]`` rows for rank r.

    Raises:
        ValueError: if the splits do not add up to the rows, or the rows do not divide evenly.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(
                f"all_to_all_single: {name} has {rows} rows, not a multiple of the {size} ranks; "
                f"pass {name}_split_sizes"
            )
        splits = [rows // size] * size
    require_size(len(splits), size, f"all_to_all_single: length of {name}_split_sizes")
    require_size(sum(splits), rows, f"all_to_all_single: sum of {name}_split_sizes")
    return list(tensor.split(list(splits))) if tensor.dim() else [tensor]
