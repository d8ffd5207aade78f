"""Checks what must hold on all ranks, and raises on all of them if it does not.

A check that raises on only one rank leaves the others waiting in their next collective. Here every
rank compares, the ranks exchange their findings, and all raise the same error: which parameter, on
which rank, how far apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from .agreement import agree, exchange
from .flat_tensors import bytes_of
from .replica import Tensors, layout_of, require_equal_layouts, tensors_of, unwrap

Model: TypeAlias = nn.Module | Mapping[str, torch.Tensor]
_SHOWN = 5


class InvariantError(AssertionError):
    """Something that must hold on all ranks does not; raised on all of them with one message."""


class _Failure(NamedTuple):
    """A tensor that failed on one rank: ``text`` says how far it is from what it should be."""

    rank: int
    name: str
    text: str


def snapshot(model: nn.Module) -> Tensors:
    """Return copies of parameters and buffers by name, to compare with later."""
    return {name: tensor.clone() for name, tensor in tensors_of(model).items()}


def assert_replicas_equal(model: Model, group: dist.ProcessGroup | None = None) -> None:
    """Raise on all ranks unless all hold the same bits in all parameters and buffers.

    Bits are compared, not numbers: a NaN equals the same NaN, and 0.0 differs from -0.0.

    Args:
        model: a model, or tensors by name such as a :func:`snapshot`; called on every rank.
        group: process group, the default one if None.

    Raises:
        InvariantError: on every rank, even if the ranks' models differ in layout.
    """
    tensors, reference = _with_first_rank(model, model, group)
    rank = dist.get_rank(group)
    failures = [
        _Failure(rank, name, _apart(tensor, reference[name], "rank 0's"))
        for name, tensor in tensors.items()
        if not _same_bits(tensor, reference[name])
    ]
    _raise_if_any(
        failures,
        group,
        "replicas differ",
        "different initial weights (sync_initial_weights), a step without gradient sync, "
        "averaged weights with separate optimizer states, or buffers such as batch norm's "
        "running statistics, which see one shard only (convert_sync_batch_norm)",
    )


def assert_matches_serial(
    model: Model,
    serial: Model | None,
    *,
    rtol: float,
    atol: float,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Raise on all ranks unless every replica is the serial run's result up to rounding.

    A floating-point tensor passes if everywhere ``|model - serial| <= atol + rtol * |serial|``
    and nothing is NaN; others must be equal.

    Args:
        model: a model, or tensors by name; called on every rank.
        serial: the result of one process, with the same names and shapes (dtypes may differ).
            Only rank 0's counts; the other ranks may give None.
        rtol: relative tolerance.
        atol: absolute tolerance, in the parameters' own unit.
        group: process group, the default one if None.

    Raises:
        InvariantError: on every rank.
    """
    tensors, reference = _with_first_rank(model, serial, group)
    rank = dist.get_rank(group)
    failures = [
        _Failure(rank, name, _apart(tensor, reference[name], "the serial run's"))
        for name, tensor in tensors.items()
        if not _close(tensor, reference[name], rtol, atol)
    ]
    _raise_if_any(
        failures,
        group,
        f"the replicas are not the serial run's result (rtol={rtol:g}, atol={atol:g})",
        "a sum where the mean is meant (or the other way round), shards that overlap or leave "
        "samples out, uneven shards weighted evenly, a different learning rate, or layers that see "
        "one shard only (batch norm, dropout)",
    )


def assert_weights_moved(
    model: Model,
    before: Mapping[str, torch.Tensor],
    group: dist.ProcessGroup | None = None,
    *,
    but: Collection[str] = (),
) -> None:
    """Raise on all ranks unless training changed every trainable parameter, to finite numbers.

    Args:
        model: the model now (parameters that require a gradient are looked at), or tensors by
            name (all are looked at); called on every rank.
        before: a :func:`snapshot` of it taken earlier on this rank.
        group: process group, the default one if None.
        but: names of parameters that are not used, so need not move (nor need those without
            elements).

    Raises:
        InvariantError: on every rank.
    """
    now = _of_one_layout(lambda: _trainable(model, before, but), group)
    rank = dist.get_rank(group)
    failures = []
    for name, tensor in now.items():
        if _same_bits(tensor, before[name].to(tensor.device)):
            failures.append(_Failure(rank, name, "is exactly where it was"))
        elif not torch.isfinite(tensor).all():
            failures.append(_Failure(rank, name, f"is not finite ({_odd(tensor)})"))
    _raise_if_any(
        failures,
        group,
        "training did not change every weight",
        "no optimizer.step, an optimizer that holds other parameters, a learning rate or loss of "
        "zero, a part of the model that the loss does not reach, or a rate so high that the "
        "weights overflow",
    )


def _of_one_layout(prepare: Callable[[], Tensors], group: dist.ProcessGroup | None) -> Tensors:
    """Return the result of ``prepare``, after all ranks found theirs of the same layout."""
    own: list[Tensors] = []

    def layout() -> list:
        own.append(prepare())
        return layout_of(own[0])

    require_equal_layouts(agree(layout, group), InvariantError)
    return own[0]


def _with_first_rank(
    model: Model, other: Model | None, group: dist.ProcessGroup | None
) -> tuple[Tensors, Tensors]:
    """Return this rank's tensors, and those that rank 0 has in ``other``, by the same names."""
    tensors = _of_one_layout(lambda: tensors_of(model), group)
    reference: Tensors = {}

    def prepare() -> None:
        if dist.get_rank(group) == 0:
            reference.update(tensors_of(other))
            _require_same_shapes(tensors, reference)

    agree(prepare, group)
    # Clones, because with a view all of its memory would travel.
    sent = [{name: tensor.cpu().clone() for name, tensor in reference.items()}]
    dist.broadcast_object_list(sent, group=group, group_src=0)
    return tensors, {name: sent[0][name].to(own.device) for name, own in tensors.items()}


def _require_same_shapes(tensors: Tensors, serial: Tensors) -> None:
    for name in tensors.keys() ^ serial.keys():
        has, lacks = ("model", "serial") if name in tensors else ("serial", "model")
        raise InvariantError(f"{name!r} is in the {has} but not in the {lacks} one")
    for name, tensor in tensors.items():
        if tensor.shape != serial[name].shape:
            raise InvariantError(
                f"{name!r} has shape {tuple(tensor.shape)}, in the serial run "
                f"{tuple(serial[name].shape)}"
            )


def _trainable(model: Model, before: Mapping[str, torch.Tensor], but: Collection[str]) -> Tensors:
    if isinstance(model, nn.Module):
        parameters = unwrap(model).named_parameters()
        named = {name: p.detach() for name, p in parameters if p.requires_grad}
    else:
        named = tensors_of(model)
    unknown = [name for name in (*named, *but) if name not in before]
    if unknown:
        raise InvariantError(f"the earlier snapshot has no {unknown[0]!r}")
    return {name: tensor for name, tensor in named.items() if name not in but and tensor.numel()}


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(bytes_of(one), bytes_of(other.to(one.device)))


def _close(one: torch.Tensor, other: torch.Tensor, rtol: float, atol: float) -> bool:
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other.to(one.dtype))
    one, other = _wide(one), _wide(other)
    return bool(torch.isclose(one, other, rtol=rtol, atol=atol).all())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _apart(one: torch.Tensor, other: torch.Tensor, whose: str) -> str:
    """Return how far a tensor is from another, in words that follow its name."""
    difference = (_wide(one) - _wide(other)).abs()
    apart = int((difference != 0).sum())
    if apart == 0:
        return f"equals {whose} as numbers, but not in all bits: a zero has the other sign"
    finite = difference[torch.isfinite(difference)]
    largest = f"by up to {float(finite.max()):.3g}" if finite.numel() else "by no finite number"
    odd = "; ".join(
        f"{found} {where}"
        for found, where in ((_odd(one), "here"), (_odd(other), "there"))
        if found
    )
    text = f"differs from {whose} {largest}, in {apart} of {one.numel()} numbers"
    return f"{text} ({odd})" if odd else text


def _odd(tensor: torch.Tensor) -> str:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return ""
    nans = int(torch.isnan(tensor).sum())
    infinities = int(torch.isinf(tensor).sum())
    counts = [(nans, "NaN"), (infinities, "infinite")]
    return ", ".join(f"{count} {name}" for count, name in counts if count)


def _raise_if_any(
    failures: list[_Failure], group: dist.ProcessGroup | None, what: str, causes: str
) -> None:
    everywhere = [failure for found in exchange(failures, group) for failure in found]
    if not everywhere:
        return
    lines = [f"{what}:"]
    lines += [f"  rank {f.rank}: {f.name!r} {f.text}" for f in everywhere[:_SHOWN]]
    if len(everywhere) > _SHOWN:
        lines.append(f"  ... and {len(everywhere) - _SHOWN} more")
    raise InvariantError("\n".join([*lines, f"Usual causes: {causes}."]))
