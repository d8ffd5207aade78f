"""The endless batches of one worker, on which the asynchronous program trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from course_lib.parallel.arguments import whole

__all__ = ["shuffled_batches"]


def shuffled_batches(
    data: Any, batch_size: int, *, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (inputs, targets) without end, in an order that ``seed`` determines.

    Every epoch has another order, and a replay can draw the same batches again.

    Args:
        data: has a length, and ``data[indices]`` gives (inputs, targets).
        batch_size: samples in each; the remainder at the end of an epoch is left out.
        seed: give every worker one of its own.

    Raises:
        TypeError: if ``batch_size`` is no whole number.
        ValueError: if there are fewer samples than one batch needs.
    """
    whole("batch_size", batch_size)
    if not 1 <= batch_size <= len(data):
        raise ValueError(f"batch_size must be from 1 to {len(data)}, not {batch_size}")
    return _shuffled(data, batch_size, seed)


def _shuffled(data: Any, batch_size: int, seed: int) -> Iterator:
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(data), generator=generator)
        for start in range(0, len(data) - batch_size + 1, batch_size):
            yield data[order[start : start + batch_size]]
