"""A training loop for one process, with which the lesson compares its distributed runs.

The history of a run consists of plain lists, which figures and later cells read.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib.training.data import DataSet
from course_lib.training.loops import accuracy, batches, device_of

__all__ = ["History", "accuracy", "batches", "train"]


@dataclass
class History:
    """Measurements of one run, one entry per epoch (or per step, if the caller records steps).

    Attributes:
        label: name of the run in figures.
        loss: mean training loss.
        accuracy: test accuracy from 0 to 1.
        seconds: training time so far, in seconds, without evaluation.
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
        """Add one entry; ``seconds`` and ``samples`` count from the previous entry."""
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

    In an interactive session, a progress bar shows the epochs and the loss.

    Args:
        model: returns logits (N, classes).
        optimizer: over the model's parameters.
        training: data to train on.
        test: data to measure accuracy on after each epoch.
        epochs: passes over the training data.
        batch_size: samples per step.
        seed: for the order of the samples; epoch e uses seed + e.
        label: name of the run in figures.
        scheduler: its ``step`` is called after every optimizer step.

    Returns:
        A history with one entry per epoch; its ``phases`` has the seconds spent in "data"
        (choosing and moving the batch), "forward" (with the loss), "backward" and "update".
    """
    history = History(label=label)
    device = device_of(model)
    options = {"unit": "epoch", "leave": False, "file": sys.stdout, "disable": not _is_watched()}
    bar = tqdm(range(epochs), label, **options)
    for epoch in bar:
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
        bar.set_postfix(loss=f"{history.loss[-1]:.3f}")
    return history


def _is_watched() -> bool:
    """Whether a person is watching, rather than a test that compares outputs."""
    return os.environ.get("IPP_NONINTERACTIVE", "0") in ("", "0")


@contextlib.contextmanager
def _timed(history: History, phase: str, device: torch.device) -> Iterator[None]:
    with history.phase(phase):
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # otherwise the GPU may still be working
