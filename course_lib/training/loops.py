"""A training loop for one process, with which every distributed run is compared, and its parts.

Seeds, batches, accuracy, the loop itself, and the history of a run as plain lists.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.parallel.arguments import whole

from .data import DataSet

__all__ = [
    "History",
    "accuracy",
    "batches",
    "set_seed",
    "set_seed_of_rank",
    "shuffled_batches",
    "train",
]


@dataclass
class History:
    """Measurements of one run, one entry per epoch (or per step, as the caller records).

    Attributes:
        label: name of the run in figures.
        loss: mean training loss.
        accuracy: test accuracy from 0 to 1.
        seconds: training time so far, in seconds, evaluation left out.
        samples: samples trained on so far.
        phases: seconds spent in each named phase, see :meth:`phase`.
    """

    label: str = ""
    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def record(self, *, loss: float, accuracy: float, seconds: float, samples: int) -> None:
        """Add one entry: loss and accuracy as they are, seconds and samples since the last."""
        self.loss.append(loss)
        self.accuracy.append(accuracy)
        self.seconds.append((self.seconds[-1] if self.seconds else 0.0) + seconds)
        self.samples.append((self.samples[-1] if self.samples else 0) + samples)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a ``with`` block to ``phases[name]``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] += time.perf_counter() - start

    @property
    def samples_per_second(self) -> float:
        """Throughput over the whole run, 0 before the first entry."""
        return self.samples[-1] / self.seconds[-1] if self.seconds and self.seconds[-1] else 0.0


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_seed_of_rank(seed: int, rank: int) -> int:
    """Seed the generators with a number of the rank's own, and return it.

    For what must differ between ranks, such as dropout and augmentation. The number is derived
    by hashing, so that (seed, rank + 1) and (seed + 1, rank) are unrelated, unlike with sums.

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


def shuffled_batches(
    data: Any, batch_size: int, *, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (inputs, targets) for ever, in an order that ``seed`` determines.

    Every epoch has another order, and a replay can draw the same batches again.

    Args:
        data: has a length, and ``data[indices]`` gives (inputs, targets).
        batch_size: samples in each; what is left over at the end of an epoch is left out.
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
    training, device = model.training, _device_of(model)
    model.eval()
    right = 0
    for start in range(0, len(data), batch_size):
        images, labels = data[start : start + batch_size]
        right += int((model(images.to(device)).argmax(dim=1) == labels.to(device)).sum())
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
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> History:
    """Train with cross-entropy in this process alone, on the device of the model.

    Args:
        model: gives logits (N, classes).
        optimizer: over the model's parameters.
        training: data to train on.
        test: data to measure accuracy on after each epoch.
        epochs: passes over the training data.
        batch_size: samples a step.
        seed: for the order of the samples; epoch e uses seed + e.
        label: name of the run in figures.
        scheduler: its ``step`` is called after every optimizer step.

    Returns:
        One entry an epoch; ``phases`` has the seconds spent in "data" (choosing and moving the
        batch), "forward" (with the loss), "backward" and "update".
    """
    history = History(label=label)
    device = _device_of(model)
    for epoch in range(epochs):
        start = time.perf_counter()
        total_loss = 0.0
        for chosen in batches(len(training), batch_size, seed=seed + epoch):
            with _timed(history, "data", device):
                images, labels = (tensor.to(device) for tensor in training[chosen])
            with _timed(history, "forward", device):
                loss = F.cross_entropy(model(images), labels)
            with _timed(history, "backward", device):
                optimizer.zero_grad()
                loss.backward()
            with _timed(history, "update", device):
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
            total_loss += loss.item() * len(labels)
        seconds = time.perf_counter() - start
        history.record(
            loss=total_loss / len(training),
            accuracy=accuracy(model, test),
            seconds=seconds,
            samples=len(training),
        )
    return history


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextlib.contextmanager
def _timed(history: History, phase: str, device: torch.device) -> Iterator[None]:
    with history.phase(phase):
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a GPU works on while Python has gone ahead
