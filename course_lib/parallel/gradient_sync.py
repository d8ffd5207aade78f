"""The one idea: the mean of the replicas' gradients is the gradient of the whole batch.

Call after ``backward`` and before ``optimizer.step``. With a loss that is a mean over the
samples and batches of one size on all ranks, every replica then holds the gradient of the
mean over all of them. ("sum" leaves the division out, for losses that are sums.)

Beside the gradients a few more numbers travel in the same all-reduce: for each parameter how
many ranks have a gradient of it, and each rank's fingerprint of all that it trains. So ranks
agree on unused parameters and notice different models without another message.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from .replica import communication_device, rank_in, unwrap

__all__ = ["sync_gradients", "sync_gradients_per_parameter"]

Named = list[tuple[str, nn.Parameter]]
Reduction = Literal["mean", "sum"]
_FINGERPRINT = 2  # numbers
_BASE = 251  # below 256, so that even bfloat16 holds them exactly


def sync_gradients(
    model: nn.Module, group: dist.ProcessGroup | None = None, reduction: Reduction = "mean"
) -> None:
    """Replace every gradient by its mean (or sum) over the ranks: one flattened all-reduce.

    (One for each dtype and device, if parameters are of several.) Frozen parameters are left
    alone, tied ones averaged once. A parameter without a gradient on some ranks, because they
    did not use it, counts as zeros there and gets the result everywhere; without a gradient on
    all ranks it keeps none, so that the optimizer skips it as it would in one process.

    Args:
        model: after ``backward``; the same architecture on every rank.
        group: process group, the default one if None.
        reduction: "mean" or "sum" over the ranks.

    Raises:
        TypeError: on every rank, if a gradient is sparse on any.
        ValueError: on every rank, if the ranks' trainable parameters differ in name, shape or
            dtype, or ``reduction`` differs or is something else; on this rank, if it is not in
            the group.
        MismatchError: (backend mpi4py) on every rank instead, if what travels first differs in
            its number of elements or dtype.
    """
    named = _trainable(model)
    _combine_all(_by_kind(named), named, group, reduction)


def sync_gradients_per_parameter(
    model: nn.Module, group: dist.ProcessGroup | None = None, reduction: Reduction = "mean"
) -> None:
    """Do as :func:`sync_gradients`, with one all-reduce per parameter.

    The sums are the same; each message pays its latency.
    """
    named = _trainable(model)
    _combine_all([[one] for one in named], named, group, reduction)


def _trainable(model: nn.Module) -> Named:
    parameters = unwrap(model).named_parameters()  # a tied one comes once
    return [(name, parameter) for name, parameter in parameters if parameter.requires_grad]


def _by_kind(named: Named) -> Iterable[Named]:
    kinds: dict[tuple, Named] = {}
    for name, parameter in named:
        kinds.setdefault((parameter.dtype, parameter.device), []).append((name, parameter))
    return kinds.values()


def _combine_all(
    parts: Iterable[Named], named: Named, group: dist.ProcessGroup | None, reduction: Reduction
) -> None:
    rank, size = rank_in(group), dist.get_world_size(group)
    # Of everything that is trained, so that ranks with more messages than others are noticed in
    # the first one; who trains nothing takes part in that one, too.
    own = _fingerprint(named, reduction)
    fingerprints = [0.0] * (size * _FINGERPRINT)
    fingerprints[rank * _FINGERPRINT : (rank + 1) * _FINGERPRINT] = own
    for part in list(parts) or [[]]:
        _combine(part, fingerprints, group, size, reduction)


@torch.no_grad()
def _combine(
    named: Named,
    fingerprints: list[float],
    group: dist.ProcessGroup | None,
    size: int,
    reduction: Reduction,
) -> None:
    parameters = [parameter for _, parameter in named]
    gradients = [_dense_gradient(parameter) for parameter in parameters]
    present = [_presence(parameter, size) for parameter in parameters]
    like = gradients[0] if gradients else torch.empty(0, device=communication_device(group))
    notes = torch.tensor([*present, *fingerprints], dtype=like.dtype, device=like.device)
    parts = [*gradients, notes]
    # One call each way, because a step of a small model is as short as thirty calls of torch.
    flat = _flatten_dense_tensors(parts)
    dist.all_reduce(flat, group=group)
    *results, notes = _unflatten_dense_tensors(flat, parts)
    present, fingerprints = _read(notes, len(gradients))
    _check(named, present, fingerprints, size)
    if reduction == "mean":
        flat.div_(size)
    elif reduction != "sum":
        raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
    used = [index for index, count in enumerate(present) if count]
    for index in used:
        if parameters[index].grad is None:
            parameters[index].grad = torch.empty_like(parameters[index])
    if used:
        gradients = [parameters[index].grad for index in used]
        torch._foreach_copy_(gradients, [results[index] for index in used])


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


def _dense_gradient(parameter: nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None or gradient.layout != torch.strided:
        return torch.zeros_like(parameter)
    return gradient


def _fingerprint(named: Named, reduction: Reduction) -> tuple[float, ...]:
    layout = tuple((name, parameter.shape, parameter.dtype) for name, parameter in named)
    return _digest(layout, reduction)


@functools.lru_cache(maxsize=1024)
def _digest(
    layout: tuple[tuple[str, torch.Size, torch.dtype], ...], reduction: Reduction
) -> tuple[float, ...]:
    text = repr([(name, tuple(shape), dtype) for name, shape, dtype in layout])
    number = zlib.crc32(f"{text} {reduction}".encode())
    return float(number % _BASE), float(number // _BASE % _BASE)


def _check(named: Named, present: list[float], fingerprints: list[list[float]], size: int) -> None:
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise ValueError(
                f"the trainable parameters of rank {rank} differ from rank 0's in name, shape or "
                "dtype, or the reduction does; build the same model, frozen in the same places, "
                "on every rank"
            )
    for (name, _), count in zip(named, present, strict=True):
        if count > size:
            raise TypeError(
                f"the gradient of {name!r} is sparse on at least one rank, and sparse gradients "
                "cannot be flattened; build its layer with sparse=False"
            )
