"""The order of the updates determines the parameters, to the last bit.

One process does again what server and workers did together: it computes every gradient at
the parameters of the recorded version, on the recorded batch, and applies it in the recorded
order. If one bit differs, a message was mixed up, lost or changed on its way.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .gradients import (
    LossFunction,
    apply_update,
    average,
    buffers_of,
    compute_gradient,
    parameters_of,
)
from .messages import FlatMessage, checksum_of
from .record import Record

__all__ = ["load_parameters", "replay"]


def load_parameters(model: nn.Module, recorded: torch.Tensor) -> None:
    """Copy recorded parameters (``record.initial``, ``final``, a snapshot's) into ``model``.

    Its buffers stay as they are: no record has them.

    Raises:
        TypeError: if ``recorded`` is no tensor.
        ValueError: if they are of a model with other shapes or dtypes.
    """
    parameters = parameters_of(model)
    flat = FlatMessage(parameters)
    if not isinstance(recorded, torch.Tensor):
        raise TypeError(
            f"recorded parameters are a tensor, such as record.final, not {type(recorded).__name__}"
        )
    if not flat.fits(recorded):
        raise ValueError("the record is of another model: build the same one as the server did")
    flat.buffer.copy_(recorded)
    flat.unpack(parameters)


def replay(
    record: Record,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_function: LossFunction,
    batches: Mapping[int, Iterable[tuple[torch.Tensor, torch.Tensor]]],
) -> torch.Tensor:
    """Make the recorded updates again, serially, and return the final parameters' bytes.

    They equal the run's, bit for bit: ``torch.equal(replay(...), record.final)``.

    Args:
        record: of the run.
        model: of the server's shapes, and with its buffers; it ends with the final parameters.
        optimizer: over the model's parameters, of the server's kind. The state that the
            server's had at the start is loaded into it.
        loss_function: the workers'.
        batches: worker -> the same batches that this worker had.

    Raises:
        ValueError: if the model is another, or a worker's batches are missing or too few.
    """
    load_parameters(model, record.initial)
    if checksum_of(buffers_of(model)) != record.buffers:
        raise ValueError(
            "the model's buffers are not the server's: build the model as the server did, with "
            "the same seed if they are random"
        )
    optimizer.load_state_dict(copy.deepcopy(record.optimizer_state))
    parameters = parameters_of(model)
    workers_model = copy.deepcopy(model)
    workers_parameters = parameters_of(workers_model)
    versions = _Versions(record, parameters)
    streams = {worker: _Stream(worker, batches) for worker in record.workers}
    for update in record.updates:
        computed = []
        for gradient in update.gradients:
            versions.load(gradient.computed_at, workers_parameters)
            batch = streams[gradient.worker].at(gradient.step)
            computed.append(
                compute_gradient(workers_model, workers_parameters, loss_function, batch)[2]
            )
        samples = [gradient.samples for gradient in update.gradients]
        apply_update(parameters, average(computed, samples), optimizer, update.rates)
        versions.keep(update.version, parameters)
    return FlatMessage(parameters).pack(parameters)


class _Versions:
    """The parameters of those versions that some gradient is still to be computed at."""

    def __init__(self, record: Record, parameters: list[nn.Parameter]) -> None:
        self._uses = Counter(gradient.computed_at for gradient in record.gradients)
        self._flats: dict[int, FlatMessage] = {}
        self.keep(0, parameters)

    def keep(self, version: int, parameters: list[nn.Parameter]) -> None:
        if self._uses[version]:
            self._flats[version] = FlatMessage(parameters)
            self._flats[version].pack(parameters)

    def load(self, version: int, parameters: list[nn.Parameter]) -> None:
        self._flats[version].unpack(parameters)
        self._uses[version] -= 1
        if not self._uses[version]:
            del self._flats[version]


class _Stream:
    """One worker's batches, read on as far as needed."""

    def __init__(self, worker: int, batches: Mapping[int, Iterable]) -> None:
        self._worker = worker
        self._batches = iter(batches[worker]) if worker in batches else iter(())
        self._next = 0

    def at(self, step: int) -> Any:
        for batch in self._batches:
            self._next += 1
            if self._next > step:
                return batch
        raise ValueError(
            f"batch {step} of worker {self._worker} is not in the batches given for the replay; "
            "give every worker's batches from its first one, as a mapping from its rank"
        )
