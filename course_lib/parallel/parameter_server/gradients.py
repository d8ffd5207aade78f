"""The arithmetic that server, workers and replay share, so that they agree to the last bit.

A worker computes a gradient; the server averages the gradients of a round and lets its optimizer
step. The serial replay calls the same functions, so it can differ from the distributed run only
if a message was changed on its way, and that is what it is there to find.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from ..flat_tensors import bytes_of

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


def checksums_of_buffers(model: nn.Module) -> dict[str, int]:
    """Return a checksum of each buffer; no message carries them, so all ranks need the same."""
    return {
        name: zlib.crc32(
            bytes_of(buffer).cpu().numpy(),
            zlib.crc32(f"{tuple(buffer.shape)} {buffer.dtype}".encode()),
        )
        for name, buffer in model.named_buffers()
    }


def require_unchanged_buffers(model: nn.Module, before: Mapping[str, int]) -> None:
    """Raise ValueError if ``checksums_of_buffers(model)`` is no longer what it was ``before``."""
    now = checksums_of_buffers(model)
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
