"""The parts of every training loop: seeds, batches of indices, and the accuracy of a model."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import torch
from torch import nn

from .data import DataSet


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_seed_of_rank(seed: int, rank: int) -> int:
    """Seed the generators with a number of the rank's own, and return it.

    For numbers that must differ between ranks, as in dropout and augmentation. The number is
    derived by hashing, so that (seed, rank + 1) and (seed + 1, rank) are unrelated, unlike with
    sums.

    Raises:
        ValueError: for a negative seed or rank.
    """
    own = int(numpy.random.SeedSequence([seed, rank]).generate_state(1)[0])
    set_seed(own)
    return own


def batches(samples: int, batch_size: int, *, seed: int, first: int = 0) -> Iterator[torch.Tensor]:
    """Yield shuffled index batches int64 (<= batch_size,), the same for the same seed.

    Args:
        samples: number of samples.
        batch_size: indices in each batch; the last one may have fewer.
        seed: of the order.
        first: number of the first batch to yield, to go on in the middle of an epoch.

    Raises:
        ValueError: if there is no sample in a batch, or a number is negative.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    if samples < 0 or first < 0:
        raise ValueError(f"samples and first must be at least 0, not {samples} and {first}")
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    left = order[first * batch_size :]
    return iter(left.split(batch_size) if len(left) else ())


@torch.no_grad()
def accuracy(model: nn.Module, data: DataSet, batch_size: int = 1024) -> float:
    """Return the fraction of ``data`` that ``model`` classifies correctly, from 0 to 1.

    Raises:
        ValueError: if there are no data, or there is no sample in a batch.
    """
    if not len(data) or batch_size < 1:
        raise ValueError(
            f"{len(data)} samples in batches of {batch_size} have no accuracy; give at least 1"
        )
    training, device = model.training, device_of(model)
    model.eval()
    right = 0
    for start in range(0, len(data), batch_size):
        images, labels = data[start : start + batch_size]
        right += int((model(images.to(device)).argmax(dim=1) == labels.to(device)).sum())
    model.train(training)
    return right / len(data)


def device_of(model: nn.Module) -> torch.device:
    """Return where the model's parameters are; the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
