"""Everything that happened, in plain lists that can be plotted and replayed.

Times are seconds since the server started, on the server's clock; see :mod:`.clocks` for what
workers have timed. What was sent before the server had started has a negative time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Event", "Gradient", "Record", "Update", "WorkerRecord"]


@dataclass(frozen=True)
class Gradient:
    """One worker's gradient on its way into the model, or not.

    Attributes:
        worker: rank of the worker in the group.
        step: which batch of this worker it was computed from, from 0.
        computed_at: version of the parameters it was computed at.
        staleness: how many updates the server made between that version and this gradient.
        loss: of that batch, before the update.
        samples: in that batch.
        waited: seconds from the worker's hello until it had the parameters.
        computing: seconds from then until it sent the gradient.
        sent: when the worker sent it.
        arrived: when the server noticed it.
        served: when the server took it up.
        dropped: why it was not used; empty if it was.
    """

    worker: int
    step: int
    computed_at: int
    staleness: int
    loss: float
    samples: int
    waited: float
    computing: float
    sent: float
    arrived: float
    served: float
    dropped: str = ""


@dataclass(frozen=True)
class Update:
    """One step of the server's optimizer.

    Attributes:
        version: number of the parameters after it; the first update makes version 1.
        gradients: what went in: one gradient, or a round's in the order of the workers' ranks.
        rates: the learning rate used, one for each of the optimizer's parameter groups.
        seconds: when it was done.
    """

    version: int
    gradients: tuple[Gradient, ...]
    rates: tuple[float, ...]
    seconds: float

    @property
    def worker(self) -> int:
        """The worker whose gradient it was; the first of them in a round of several."""
        return self.gradients[0].worker

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers whose gradients went in."""
        return tuple(gradient.worker for gradient in self.gradients)

    @property
    def computed_at(self) -> int:
        """Version that the gradient was computed at (in a round: all of them)."""
        return self.gradients[0].computed_at

    @property
    def staleness(self) -> int:
        """Updates between computing and using the gradient; 0 in a synchronous round."""
        return max(gradient.staleness for gradient in self.gradients)

    @property
    def loss(self) -> float:
        """Mean loss of the samples that went in."""
        total = sum(gradient.loss * gradient.samples for gradient in self.gradients)
        return total / self.samples

    @property
    def samples(self) -> int:
        """Number of samples that went in."""
        return sum(gradient.samples for gradient in self.gradients)

    @property
    def rate(self) -> float:
        """Learning rate of the first parameter group."""
        return self.rates[0]

    @property
    def arrived(self) -> float:
        """When the server noticed the last of the gradients."""
        return max(gradient.arrived for gradient in self.gradients)

    @property
    def served(self) -> float:
        """When the server took up the last of the gradients."""
        return max(gradient.served for gradient in self.gradients)


@dataclass(frozen=True)
class Event:
    """One line of the sequence diagram.

    Attributes:
        kind: ``hello``, ``ready`` (with the parameters), ``gradient`` (with the loss), ``stop``,
            ``bye`` go from ``source`` to ``destination``; ``update``, ``dropped`` and ``died``
            happen at one rank, which is both.
        source: rank in the group.
        destination: rank in the group.
        sent: when it left (for what happens at one rank: when it began).
        received: when it was taken up (or ended).
        version: of the parameters it is about.
        step: the worker's batch it is about, from 0; -1 for none.
    """

    kind: str
    source: int
    destination: int
    sent: float
    received: float
    version: int
    step: int = -1


@dataclass
class Record:
    """What the server saw of one run.

    Attributes:
        mode: the mode, in words.
        server: rank of the server in the group.
        workers: ranks of the workers.
        updates: every update, in order. This and the batches determine the parameters.
        dropped: gradients that were not used, with the reason.
        events: everything that was said and done, in the order in which the server took it up.
        queue_lengths: how many messages were waiting, each time the server took one up (that
            one included).
        died: worker -> when the server noticed that it had died.
        seconds: duration of the run.
        initial: the parameters at version 0, as the bytes that travelled.
        final: the parameters after the last update, likewise.
        snapshots: (version, seconds, parameters) every so many updates, if asked for.
        optimizer_state: the optimizer's state at the start.
        buffers: checksum of the model's buffers, which no message carries.
    """

    mode: str = ""
    server: int = 0
    workers: tuple[int, ...] = ()
    updates: list[Update] = field(default_factory=list)
    dropped: list[Gradient] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    queue_lengths: list[int] = field(default_factory=list)
    died: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    initial: torch.Tensor | None = None
    final: torch.Tensor | None = None
    snapshots: list[tuple[int, float, torch.Tensor]] = field(default_factory=list)
    optimizer_state: dict[str, Any] = field(default_factory=dict)
    buffers: int = 0

    @property
    def version(self) -> int:
        """Number of updates made."""
        return len(self.updates)

    @property
    def gradients(self) -> list[Gradient]:
        """All gradients that were used, in order."""
        return [gradient for update in self.updates for gradient in update.gradients]

    @property
    def staleness(self) -> list[int]:
        """Staleness of each gradient that was used."""
        return [gradient.staleness for gradient in self.gradients]

    @property
    def losses(self) -> list[float]:
        """Loss of each update's samples, before the update."""
        return [update.loss for update in self.updates]

    @property
    def samples(self) -> int:
        """Samples that went into updates."""
        return sum(update.samples for update in self.updates)

    @property
    def waiting(self) -> dict[int, list[float]]:
        """Seconds that each worker waited for parameters, before each gradient it computed."""
        found: dict[int, list[float]] = {worker: [] for worker in self.workers}
        for gradient in self.gradients + self.dropped:
            found[gradient.worker].append(gradient.waited)
        return found

    @property
    def steps_by_worker(self) -> dict[int, int]:
        """How many gradients of each worker were used."""
        counted = Counter(gradient.worker for gradient in self.gradients)
        return {worker: counted[worker] for worker in self.workers}


@dataclass
class WorkerRecord:
    """What one worker saw of the run.

    Attributes:
        worker: its rank in the group.
        ended: ``"told to stop"`` or ``"batches used up"``.
        versions: version of the parameters that each gradient was computed at.
        losses: loss of each batch.
        waited: seconds from each hello until the parameters were there.
        computing: seconds from then until the gradient was ready, simulated time included.
        seconds: duration of the run.
    """

    worker: int
    ended: str = ""
    versions: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """How many gradients it computed and sent."""
        return len(self.losses)
