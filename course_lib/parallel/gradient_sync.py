"""The one idea: the mean of the replicas' gradients is the gradient of the whole batch.

Call after ``backward`` and before ``optimizer.step``. With a loss that is a mean over the
samples and batches of one size on all ranks, every replica then holds the gradient of the
mean over all of them.

Beside the gradients a few more numbers travel in the same all-reduce: for each parameter how
many ranks have a gradient of it, and each rank's fingerprint of its layout. So ranks agree on
unused parameters and notice different models without another message.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from .replica import unwrap

__all__ = ["sync_gradients", "sync_gradients_per_parameter"]

Named = list[tuple[str, nn.Parameter]]
_FINGERPRINT = 2  # numbers
_BASE = 251  # below 256, so that even bfloat16 holds them exactly


def sync_gradients(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Replace every gradient by its mean over the ranks: one flattened all-reduce.

    (One for each dtype and device, if parameters are of several.) Frozen parameters are left
    alone, tied ones averaged once. A parameter without a gradient on some ranks, because they
    did not use it, counts as zeros there and gets the mean everywhere; without a gradient on
    all ranks it keeps none, so that the optimizer skips it as it would in one process.

    Args:
        model: after ``backward``; the same architecture on every rank.
        group: process group, the default one if None.

    Raises:
        TypeError: on every rank, if a gradient is sparse on any.
        ValueError: on every rank, if the ranks' trainable parameters differ in name or shape.
        MismatchError: (backend mpi4py) if they differ in their number of elements.
    """
    for named in _by_kind(_trainable(model)):
        _average(named, group)


def sync_gradients_per_parameter(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Do as :func:`sync_gradients`, with one all-reduce per parameter.

    The sums are the same; each message pays its latency.
    """
    for named in _trainable(model):
        _average([named], group)


def _trainable(model: nn.Module) -> Named:
    parameters = unwrap(model).named_parameters()  # a tied one comes once
    return [(name, parameter) for name, parameter in parameters if parameter.requires_grad]


def _by_kind(named: Named) -> Iterable[Named]:
    kinds: dict[tuple, Named] = {}
    for name, parameter in named:
        kinds.setdefault((parameter.dtype, parameter.device), []).append((name, parameter))
    return kinds.values()


@torch.no_grad()
def _average(named: Named, group: dist.ProcessGroup | None) -> None:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    parameters = [parameter for _, parameter in named]
    parts = [_flat_gradient(parameter) for parameter in parameters]
    fingerprints = [0.0] * (size * _FINGERPRINT)
    fingerprints[rank * _FINGERPRINT : (rank + 1) * _FINGERPRINT] = _fingerprint(named)
    present = [_presence(parameter, size) for parameter in parameters]
    notes = torch.tensor([*present, *fingerprints], dtype=parts[0].dtype, device=parts[0].device)
    flat = torch.cat([*parts, notes])
    dist.all_reduce(flat, group=group)
    gradients, notes = flat.split([len(flat) - len(notes), len(notes)])
    present, fingerprints = _read(notes, len(parts))
    _check(named, present, fingerprints, size)
    means = gradients.div_(size).split([len(part) for part in parts])
    used = [parameter for parameter, count in zip(parameters, present, strict=True) if count]
    for parameter in used:
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
    if used:
        torch._foreach_copy_(
            [parameter.grad for parameter in used],
            [
                mean.view_as(parameter)
                for parameter, mean, count in zip(parameters, means, present, strict=True)
                if count
            ],
        )


def _read(notes: torch.Tensor, parameters: int) -> tuple[list[float], list[list[float]]]:
    """Return how many ranks have each gradient, and each rank's fingerprint."""
    numbers = torch.real(notes).tolist()
    rest = range(parameters, len(numbers), _FINGERPRINT)
    return numbers[:parameters], [numbers[start : start + _FINGERPRINT] for start in rest]


def _presence(parameter: nn.Parameter, size: int) -> float:
    """Return 1 for a gradient, 0 for none, and more than any sum of ones for a sparse one."""
    if parameter.grad is None:
        return 0.0
    return 1.0 if parameter.grad.layout == torch.strided else size + 1.0


def _flat_gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None or parameter.grad.layout != torch.strided:
        return parameter.new_zeros(parameter.numel())
    return parameter.grad.reshape(-1)


def _fingerprint(named: Named) -> tuple[float, ...]:
    return _digest(tuple((name, parameter.shape) for name, parameter in named))


@functools.lru_cache(maxsize=1024)
def _digest(layout: tuple[tuple[str, torch.Size], ...]) -> tuple[float, ...]:
    number = zlib.crc32(repr([(name, tuple(shape)) for name, shape in layout]).encode())
    return float(number % _BASE), float(number // _BASE % _BASE)


def _check(named: Named, present: list[float], fingerprints: list[list[float]], size: int) -> None:
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise ValueError(
                f"the trainable parameters of rank {rank} differ from rank 0's in name or shape; "
                "build the same model, frozen in the same places, on every rank"
            )
    for (name, _), count in zip(named, present, strict=True):
        if count > size:
            raise TypeError(
                f"the gradient of {name!r} is sparse on at least one rank, and sparse gradients "
                "cannot be flattened; build its layer with sparse=False"
            )
