"""A worker's batches come from a seed, so that a replay can draw the same ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ..arguments import whole

__all__ = ["shuffled_batches"]


def shuffled_batches(
    data: Any, batch_size: int, *, seed: int, epochs: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (inputs, targets) in an order that ``seed`` settles, anew in every epoch.

    Args:
        data: has a length, and ``data[indices]`` gives (inputs, targets).
        batch_size: samples in each; what is left over at the end of an epoch is left out.
        seed: give every worker one of its own.
        epochs: passes over the data, endless if None.

    Raises:
        TypeError: if ``batch_size`` or ``epochs`` is no whole number.
        ValueError: if there are fewer samples than one batch needs.
    """
    whole("batch_size", batch_size)
    if epochs is not None:
        whole("epochs", epochs, least=0)
    if not 1 <= batch_size <= len(data):
        raise ValueError(f"batch_size must be from 1 to {len(data)}, not {batch_size}")
    return _shuffled(data, batch_size, seed, epochs)


def _shuffled(data: Any, batch_size: int, seed: int, epochs: int | None) -> Iterator:
    generator = torch.Generator().manual_seed(seed)
    for _ in itertools.count() if epochs is None else range(epochs):
        order = torch.randperm(len(data), generator=generator)
        for start in range(0, len(data) - batch_size + 1, batch_size):
            yield data[order[start : start + batch_size]]
