"""The record of a run of the parameter server, and the replay that proves it right.

A :class:`Record` has plain lists that can be plotted. The order of its updates determines the
parameters to the last bit, so :func:`replay` can make the run again in one process. Points in
time are seconds since the server started, on its own clock.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .messages import (
    LossFunction,
    ParameterMessage,
    apply_update,
    average,
    compute_gradient,
    parameters_of,
)


@dataclass(frozen=True)
class Gradient:
    """One worker's gradient that was used, or dropped.

    Attributes:
        worker: rank of the worker in the group.
        step: which batch of this worker it was computed from, from 0.
        computed_at: version of the parameters it was computed at.
        staleness: how many updates the server made between that version and this gradient.
        loss: of that batch, before the update.
        samples: in that batch.
        waited: seconds from the worker's hello until it had the parameters.
        dropped: why it was not used; empty if it was.
    """

    worker: int
    step: int
    computed_at: int
    staleness: int
    loss: float
    samples: int
    waited: float
    dropped: str = ""


@dataclass(frozen=True)
class Update:
    """One step of the server's optimizer.

    Attributes:
        version: number of the parameters after it; the first update makes version 1.
        gradients: its inputs: one gradient, or a round's in the order of the workers' ranks.
        rates: the learning rate used, one for each of the optimizer's parameter groups.
        seconds: when it was done.
    """

    version: int
    gradients: tuple[Gradient, ...]
    rates: tuple[float, ...]
    seconds: float

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers whose gradients went in."""
        return tuple(gradient.worker for gradient in self.gradients)

    @property
    def loss(self) -> float:
        """Mean loss of the samples that went in."""
        total = sum(gradient.loss * gradient.samples for gradient in self.gradients)
        return total / self.samples

    @property
    def samples(self) -> int:
        """Number of samples that went in."""
        return sum(gradient.samples for gradient in self.gradients)


@dataclass
class Record:
    """The server's record of one run. It may travel to a process without MPI.

    Attributes:
        mode: the mode, in words.
        workers: ranks of the workers.
        updates: every update, in order. This and the batches determine the parameters.
        dropped: gradients that were not used, with the reason.
        queue_lengths: how many messages were waiting, each time the server took one (that one
            included).
        died: worker -> when the server noticed that it had died.
        seconds: duration of the run.
        initial: the parameters at version 0, as the bytes that travelled.
        final: the parameters after the last update, likewise.
        snapshots: (version, seconds, parameters) at regular intervals, if asked for.
        optimizer_state: the optimizer's state at the start.
    """

    mode: str = ""
    workers: tuple[int, ...] = ()
    updates: list[Update] = field(default_factory=list)
    dropped: list[Gradient] = field(default_factory=list)
    queue_lengths: list[int] = field(default_factory=list)
    died: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    initial: torch.Tensor | None = None
    final: torch.Tensor | None = None
    snapshots: list[tuple[int, float, torch.Tensor]] = field(default_factory=list)
    optimizer_state: dict[str, Any] = field(default_factory=dict)

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


def load_parameters(model: nn.Module, recorded: torch.Tensor) -> None:
    """Copy recorded parameters (``record.initial``, ``final``, a snapshot's) into ``model``.

    Raises:
        TypeError: if ``recorded`` is no tensor.
        ValueError: if they are of a model with other shapes or dtypes.
    """
    parameters = parameters_of(model)
    message = ParameterMessage(parameters)
    if not isinstance(recorded, torch.Tensor):
        raise TypeError(
            f"recorded parameters are a tensor, such as record.final, not {type(recorded).__name__}"
        )
    if not message.fits(recorded.to(message.buffer.device)):
        raise ValueError("the record is of a different model: build the same one as on the server")
    message.buffer.copy_(recorded)
    message.unpack(parameters)


def replay(
    record: Record,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_function: LossFunction,
    batches: Mapping[int, Iterable[tuple[torch.Tensor, torch.Tensor]]],
) -> torch.Tensor:
    """Make the recorded updates again in one process; return the final parameters' bytes.

    Every gradient is computed at the parameters of the recorded version, on the recorded batch,
    and applied in the recorded order. The result equals the run's bit for bit,
    ``torch.equal(replay(...), record.final)``: if it does not, a message was mixed up, lost or
    changed on its way.

    Args:
        record: of the run.
        model: of the server's shapes; it ends with the final parameters.
        optimizer: over the model's parameters, of the server's kind. The state that the
            server's had at the start is loaded into it.
        loss_function: the workers'.
        batches: worker -> the same batches that this worker had.

    Raises:
        ValueError: if the model is another, or a worker's batches are missing or too few.
    """
    load_parameters(model, record.initial)
    optimizer.load_state_dict(copy.deepcopy(record.optimizer_state))
    parameters = parameters_of(model)
    workers_model = copy.deepcopy(model)
    workers_parameters = parameters_of(workers_model)
    packed = ParameterMessage(parameters)
    versions = {0: record.initial}
    uses = Counter(gradient.computed_at for gradient in record.gradients)  # still to come
    streams = {worker: enumerate(batches.get(worker, ())) for worker in record.workers}
    for update in record.updates:
        computed = []
        for gradient in update.gradients:
            load_parameters(workers_model, versions[gradient.computed_at])
            uses[gradient.computed_at] -= 1
            if not uses[gradient.computed_at]:
                del versions[gradient.computed_at]
            batch = _batch_of(gradient, streams[gradient.worker])
            computed.append(
                compute_gradient(workers_model, workers_parameters, loss_function, batch)[2]
            )
        samples = [gradient.samples for gradient in update.gradients]
        apply_update(parameters, average(computed, samples), optimizer, update.rates)
        if uses[update.version]:
            versions[update.version] = packed.pack(parameters).clone()
    return packed.pack(parameters)


def _batch_of(gradient: Gradient, batches: Iterator[tuple[int, Any]]) -> Any:
    for step, batch in batches:
        if step == gradient.step:
            return batch
    raise ValueError(
        f"batch {gradient.step} of worker {gradient.worker} is not in the batches given for the "
        "replay; give every worker's batches from its first one, as a mapping from its rank"
    )
