"""Divide a data set among the ranks; each rank works out its own part without any messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset

from course_lib.parallel.arguments import whole

__all__ = ["Uneven", "shard", "shard_indices"]

Uneven = Literal["raise", "drop", "pad", "keep"]
_CHOICES = ("raise", "drop", "pad", "keep")


def shard_indices(
    length: int, rank: int, world_size: int, uneven: Uneven = "raise"
) -> torch.Tensor:
    """Return the indices of one rank's samples, int64 (samples,), in order and contiguous.

    What happens if ``length`` is not a multiple of ``world_size``:

    ========= ====================================================================
    "raise"   an error says so (and names the other three)
    "drop"    the last ``length % world_size`` samples belong to no rank
    "pad"     the last ranks get samples from the beginning again, as with
              ``torch.utils.data.DistributedSampler``; these samples count twice
    "keep"    sizes differ by at most one, the first ranks have more; a mean over ranks
              then weights samples unevenly unless each rank weights its loss
    ========= ====================================================================

    Raises:
        TypeError: if an argument is not a whole number.
        ValueError: for an uneven length with "raise", or arguments out of range.
    """
    length, rank = whole("length", length), whole("rank", rank)
    world_size = whole("world_size", world_size)
    if uneven not in _CHOICES:
        raise ValueError(f"uneven must be one of {', '.join(_CHOICES)}, not {uneven!r}")
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"rank must be from 0 to world_size - 1, not rank {rank} of world_size {world_size}"
        )
    if length < 0:
        raise ValueError(f"length must be at least 0, not {length}")
    each, left_over = divmod(length, world_size)
    if left_over and uneven == "raise":
        raise ValueError(
            f"{length} samples do not divide evenly among {world_size} ranks; choose "
            'uneven="drop", "pad" or "keep"'
        )
    if uneven == "keep":
        start = rank * each + min(rank, left_over)
        return torch.arange(start, start + each + (rank < left_over))
    if uneven == "pad" and left_over:
        each += 1
        return torch.arange(rank * each, (rank + 1) * each) % length
    return torch.arange(rank * each, (rank + 1) * each)


def shard(data: Any, rank: int, world_size: int, uneven: Uneven = "raise") -> Any:
    """Return one rank's part of ``data``, chosen by :func:`shard_indices`.

    Args:
        data: a tensor or array (first dimension is shared out), a sequence such as a list, a
            data set with ``images`` and ``labels``, a ``TensorDataset``, any other data set
            with a length and integer indices, or a number of samples.
        rank: whose part, 0 to ``world_size`` - 1.
        world_size: number of parts.
        uneven: what to do if the length is not a multiple of ``world_size``.

    Returns:
        The same kind as ``data``; for a number of samples, the indices, int64 (samples,); for other
        data sets, a ``torch.utils.data.Subset``, which copies nothing.

    Raises:
        ValueError: see :func:`shard_indices`.
        TypeError: for data of another kind, such as a mapping or an iterable without length.
    """
    if isinstance(data, Integral):
        return shard_indices(data, rank, world_size, uneven)
    if not _is_indexed(data):
        raise TypeError(
            f"a {type(data).__name__} is none of the kinds of data that can be shared out: "
            "tensor with a dimension, sequence, data set, or a number of samples"
        )
    chosen = shard_indices(len(data), rank, world_size, uneven)
    if isinstance(data, Sequence):
        return _of_sequence(data, chosen.tolist())
    if hasattr(data, "images") and hasattr(data, "labels"):
        return type(data)(*data[chosen])
    if isinstance(data, TensorDataset):
        return TensorDataset(*data[chosen])
    if hasattr(data, "shape"):
        return data[chosen]
    return Subset(data, chosen.tolist())


def _is_indexed(data: Any) -> bool:
    if isinstance(data, Mapping | IterableDataset) or getattr(data, "shape", None) == ():
        return False
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _of_sequence(data: Sequence[Any], chosen: list[int]) -> Any:
    if not chosen:
        return data[:0]
    first, end = chosen[0], chosen[-1] + 1
    if end - first == len(chosen):
        return data[first:end]
    part = [data[index] for index in chosen]
    return tuple(part) if isinstance(data, tuple) else part
