"""Server, worker and replay share the arithmetic, so they agree to the last bit.

A worker computes a gradient, the server averages what a round brought and lets its optimizer
step. The serial replay calls the same functions, so it can differ from the distributed run
only by what a message changed on its way, which is what it is there to find.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from ..replica import bytes_of
from .messages import FlatMessage

__all__ = [
    "GradientMessage",
    "apply_update",
    "average",
    "base_rates",
    "buffers_of",
    "compute_gradient",
    "parameters_of",
    "require_unchanged_buffers",
]

Gradients = list[torch.Tensor | None]
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that travel: all of them, a shared one once, in the model's order.

    Raises:
        TypeError: if ``model`` is no module.
        ValueError: if it has none, or keeps running statistics, as batch norm does.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, not {type(model).__name__}")
    parameters = list(model.parameters())
    if not parameters:
        raise ValueError("the model has no parameters, so there is nothing to train")
    running = [
        name
        for name, module in model.named_modules()
        if getattr(module, "running_mean", None) is not None
    ]
    if running:
        raise ValueError(
            f"{running[0]!r} keeps running statistics, which a gradient does not carry: each "
            "worker would have its own and the server none. Use a norm without them (GroupNorm, "
            "LayerNorm, or track_running_stats=False)"
        )
    return parameters


def buffers_of(model: nn.Module) -> dict[str, int]:
    """Return a checksum of each buffer: they do not travel, so all ranks need the same ones."""
    return {
        name: zlib.crc32(
            bytes_of(buffer).cpu().numpy(),
            zlib.crc32(f"{tuple(buffer.shape)} {buffer.dtype}".encode()),
        )
        for name, buffer in model.named_buffers()
    }


def require_unchanged_buffers(model: nn.Module, before: Mapping[str, int]) -> None:
    """Raise ValueError if ``buffers_of(model)`` is no longer what it was ``before``."""
    now = buffers_of(model)
    changed = [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)]
    if changed:
        raise ValueError(
            f"computing a gradient changed the buffer {min(changed)!r}, which a gradient does not "
            "carry: each worker would have its own and the server none. Use a model whose buffers "
            "stay what they are: no counters, no running statistics, no spectral norm"
        )


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


class GradientMessage:
    """Loss and gradients of all layers as one message, with a mark for those that have none."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        device = parameters[0].device
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)
        self._present = torch.zeros(len(parameters), dtype=torch.uint8, device=device)
        self._flat = FlatMessage([self._loss, self._present, *parameters])

    @property
    def buffer(self) -> torch.Tensor:
        """The bytes to send or to receive into."""
        return self._flat.buffer

    def pack(self, loss: float, gradients: Gradients) -> torch.Tensor:
        """Copy loss and gradients into the buffer and return it."""
        loss_view, present, *views = self._flat.views
        loss_view.fill_(loss)
        for index, (view, gradient) in enumerate(zip(views, gradients, strict=True)):
            present[index] = gradient is not None
            view.zero_() if gradient is None else view.copy_(gradient)
        return self.buffer

    def unpack(self) -> tuple[float, Gradients]:
        """Return loss and gradients; the latter are views of the buffer."""
        loss_view, present, *views = self._flat.views
        marks = present.tolist()
        return loss_view.item(), [
            view if mark else None for view, mark in zip(views, marks, strict=True)
        ]


def average(contributions: Sequence[Gradients], samples: Sequence[int]) -> Gradients:
    """Return the mean of several workers' gradients, weighted by their numbers of samples.

    The sum runs in the order given, which the server keeps to that of the workers' ranks: so a
    synchronous round gives the same bits whoever came first. A single gradient stays as it is.
    """
    if len(contributions) == 1:
        return contributions[0]
    total = sum(samples)
    means: Gradients = []
    for layers in zip(*contributions, strict=True):
        mean = None
        for layer, count in zip(layers, samples, strict=True):
            if layer is not None:
                part = layer * (count / total)
                mean = part if mean is None else mean.add_(part)
        means.append(mean)
    return means


def base_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the learning rate of each of the optimizer's parameter groups."""
    return [float(group["lr"]) for group in optimizer.param_groups]


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
