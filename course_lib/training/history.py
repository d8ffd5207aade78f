"""What happened in a training run, as plain lists that can be plotted."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["History"]


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
