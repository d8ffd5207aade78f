"""The messages between server and workers, and the arithmetic that they share with the replay.

Every message to the server begins with a :class:`Header` of fixed size, so that one receive
from any source fits whatever comes next. The sender of the message after a header, a
:class:`ParameterMessage` or a :class:`GradientMessage`, is then known.

Gradients are computed, averaged and applied by the functions below, in a run as in its replay. So
the two can differ only if a message was changed on its way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields

import torch
from torch import nn

from ..flat_tensors import FlatBytes, bytes_of, checksum_of_layout

Gradients = list[torch.Tensor | None]
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
HELLO, GRADIENT, BYE, READY, STOP, REFUSED, FAILED = range(1, 8)
TAG_HEADER, TAG_REPLY, TAG_BODY = 7001, 7002, 7003


@dataclass
class Header:
    """The fixed-size beginning of a message; whole numbers and seconds are exact in float64.

    Attributes:
        kind: HELLO, GRADIENT or BYE from a worker; READY, STOP, REFUSED or FAILED from the server.
        version: of the parameters that follow, or that the gradient was computed at.
        step: the number of the worker's batch, from 0.
        samples: in that batch.
        layout: checksum of the shapes and dtypes of the sender's parameters.
        sent: when it was sent, in seconds of the sender's own clock.
        machine: which machine's clock that is.
        waited: seconds from the worker's hello until it had the parameters.
    """

    kind: int
    version: int = 0
    step: int = 0
    samples: int = 0
    layout: int = 0
    sent: float = 0.0
    machine: float = 0.0
    waited: float = 0.0

    _WHOLE = 5  # this many of the fields are whole numbers

    @classmethod
    def room(cls) -> torch.Tensor:
        """Return memory that a header fits into, float64 (fields,)."""
        return torch.zeros(len(fields(cls)), dtype=torch.float64)

    def encode(self) -> torch.Tensor:
        """Return the header as float64 (fields,)."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    @classmethod
    def decode(cls, numbers: torch.Tensor) -> Header:
        """Return the header that float64 (fields,) holds."""
        values = numbers.tolist()
        return cls(*map(int, values[: cls._WHOLE]), *values[cls._WHOLE :])


class ParameterMessage(FlatBytes):
    """All parameters of a model in one message, behind a checksum of their shapes and dtypes.

    A recorded message therefore tells later whether it fits a model.

    Attributes:
        layout: the checksum.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.layout = checksum_of_layout(parameters)
        super().__init__([torch.tensor([self.layout]), *parameters], parameters[0].device)
        self._checksum = self.views.pop(0).fill_(self.layout)

    def fits(self, recorded: torch.Tensor) -> bool:
        """Return whether ``recorded`` is the message of a model of the same shapes and dtypes."""
        if recorded.dtype != torch.uint8 or recorded.shape != self.buffer.shape:
            return False
        return torch.equal(recorded[: self._checksum.nbytes], bytes_of(self._checksum))


class GradientMessage(FlatBytes):
    """Loss and gradients of all layers as one message, with a mark for those that have none."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        loss, present = torch.zeros(1, dtype=torch.float64), torch.zeros(len(parameters))
        super().__init__([loss, present, *parameters], parameters[0].device)
        self._loss, self._present = self.views.pop(0), self.views.pop(0)

    def write(self, loss: float, gradients: Gradients) -> None:
        """Copy loss and gradients into the buffer."""
        self._loss.fill_(loss)
        for index, (view, gradient) in enumerate(zip(self.views, gradients, strict=True)):
            self._present[index] = gradient is not None
            view.zero_() if gradient is None else view.copy_(gradient)

    def read(self) -> tuple[float, Gradients]:
        """Return loss and gradients; the latter are views of the buffer."""
        marked = zip(self.views, self._present.tolist(), strict=True)
        return self._loss.item(), [view if mark else None for view, mark in marked]


OTHER_MODEL = "shapes or dtypes that differ from the server's; build the same model on all ranks"


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that travel: all of them, a shared one once, in the model's order.

    Raises:
        TypeError: if ``model`` is not a module.
        ValueError: if it has none, or has buffers, which no message carries.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, not {type(model).__name__}")
    parameters = list(model.parameters())
    if not parameters:
        raise ValueError("the model has no parameters, so there is nothing to train")
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        raise ValueError(
            f"the model has the buffer {buffers[0]!r}, which no message carries: each worker would "
            "have its own and the server none. Use a model without buffers: a norm that keeps no "
            "running statistics (GroupNorm, LayerNorm, or track_running_stats=False), no counters"
        )
    return parameters


def compute_gradient(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    loss_function: LossFunction,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> tuple[float, int, Gradients]:
    """Return loss, number of samples and each parameter's gradient (None: not used).

    Raises:
        ValueError: if a gradient is sparse.
    """
    inputs, targets = batch
    for parameter in parameters:
        parameter.grad = None
    loss = loss_function(model(inputs), targets)
    loss.backward()
    gradients = [parameter.grad for parameter in parameters]
    if any(gradient is not None and gradient.is_sparse for gradient in gradients):
        raise ValueError("a gradient is sparse; build the embedding with sparse=False")
    return loss.item(), len(targets), gradients


def average(contributions: Sequence[Gradients], samples: Sequence[int]) -> Gradients:
    """Return the mean of several workers' gradients, weighted by their numbers of samples.

    The sum runs in the given order, for which the server uses the order of the workers' ranks. So a
    synchronous round gives the same bits in every order of arrival. A single gradient is unchanged.
    """
    if len(contributions) == 1:
        return contributions[0]
    total = sum(samples)
    means: Gradients = []
    for layers in zip(*contributions, strict=True):
        weighted = zip(layers, samples, strict=True)
        parts = [layer * (count / total) for layer, count in weighted if layer is not None]
        means.append(functools.reduce(torch.Tensor.add_, parts) if parts else None)
    return means


def apply_update(
    parameters: Iterable[nn.Parameter],
    gradients: Gradients,
    optimizer: torch.optim.Optimizer,
    rates: Sequence[float],
) -> None:
    """Let ``optimizer`` make one step with these gradients and learning rates."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient if parameter.requires_grad else None
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.step()
