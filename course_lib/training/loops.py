"""The one idea: the serial training loop, which every distributed one is compared with."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from .data import DataSet
from .history import History

__all__ = ["accuracy", "batches", "set_seed", "train"]


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def batches(samples: int, batch_size: int, *, seed: int) -> Iterator[torch.Tensor]:
    """Yield shuffled index batches int64 (<= batch_size,), the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(samples, generator=generator)
    yield from order.split(batch_size)


@torch.no_grad()
def accuracy(model: nn.Module, data: DataSet, batch_size: int = 1024) -> float:
    """Return the fraction of ``data`` that ``model`` classifies correctly, from 0 to 1."""
    training = model.training
    model.eval()
    right = 0
    for start in range(0, len(data), batch_size):
        images, labels = data[start : start + batch_size]
        right += int((model(images).argmax(dim=1) == labels).sum())
    model.train(training)
    return right / len(data)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: DataSet,
    test: DataSet,
    *,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    label: str = "one process",
) -> History:
    """Train with cross-entropy in this process alone.

    Args:
        model: gives logits (N, classes).
        optimizer: over the model's parameters.
        training: data to train on.
        test: data to measure accuracy on after each epoch.
        epochs: passes over the training data.
        batch_size: samples a step.
        seed: for the order of the samples; epoch e uses seed + e.
        label: name of the run in figures.

    Returns:
        One entry an epoch.
    """
    history = History(label=label)
    for epoch in range(epochs):
        start = time.perf_counter()
        total_loss = 0.0
        for chosen in batches(len(training), batch_size, seed=seed + epoch):
            images, labels = training[chosen]
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.item() * len(labels)
        seconds = time.perf_counter() - start
        history.record(
            loss=total_loss / len(training),
            accuracy=accuracy(model, test),
            seconds=seconds,
            samples=len(training),
        )
    return history
