"""A model's gradients travel in flat tensors that are laid out once, not every step.

A step of a small model is as short as thirty calls of torch, so what does not change from one
step to the next is kept: which parameters are trained, the flat tensor with a view for each of
their gradients, and the numbers that go with them. Whether it still fits the model is looked up
at every step, because parameters may be frozen, replaced or converted at any time.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from .replica import communication_device

__all__ = ["GradientMessage", "Layout", "Named", "Reduction", "forget_layout", "layout_of"]

Named = list[tuple[str, nn.Parameter]]
Reduction = Literal["mean", "sum"]
_FINGERPRINT = 2  # numbers
_BASE = 251  # below 256, so that even bfloat16 holds them exactly


class GradientMessage:
    """Gradients of one dtype and device in one flat tensor, and notes behind them.

    The notes are, for each parameter, how many ranks have a gradient of it, and each rank's
    fingerprint of all that it trains. All-reduced with ``SUM`` they tell every rank the same.

    Args:
        named: the parameters, by name; there may be none.
        fingerprint: this rank's.
        rank: of this process in the group.
        size: of the group.
        group: its backend tells where the message lies if there are no parameters.

    Attributes:
        flat: what is all-reduced, (elements + parameters + 2 x ranks,).
        size: of the group.
    """

    def __init__(
        self,
        named: Named,
        fingerprint: tuple[float, ...],
        rank: int,
        size: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._named = named
        self._parameters = [parameter for _, parameter in named]
        self.size = size
        before, after = rank * _FINGERPRINT, (size - rank - 1) * _FINGERPRINT
        self._fingerprints = [*[0.0] * before, *fingerprint, *[0.0] * after]
        lengths = [parameter.numel() for parameter in self._parameters]
        lengths.append(len(named) + size * _FINGERPRINT)
        like = self._parameters[0] if named else torch.empty(0, device=communication_device(group))
        self.flat = torch.empty(sum(lengths), dtype=like.dtype, device=like.device)
        *parts, self._notes = self.flat.split(lengths)
        shaped = zip(parts, self._parameters, strict=True)
        self._parts = [part.view(parameter.shape) for part, parameter in shaped]
        # What there is to say, and to hear, where all ranks have all gradients of one model.
        self._all_mine = self._tensor([1.0] * len(named))
        everyone = [*[float(size)] * len(named), *fingerprint * size]
        self._all_of_all = torch.tensor(everyone, dtype=like.dtype, device=like.device)

    def write(self) -> None:
        """Copy this rank's gradients into the flat tensor; a missing one counts as zeros."""
        gradients = [parameter.grad for parameter in self._parameters]
        if all(map(_is_dense, gradients)):
            torch._foreach_copy_([*self._parts, self._notes], [*gradients, self._all_mine])
            return
        for part, gradient in zip(self._parts, gradients, strict=True):
            part.copy_(gradient) if _is_dense(gradient) else part.zero_()
        self._notes.copy_(self._tensor([_presence(one, self.size) for one in gradients]))

    def read(self) -> list[float]:
        """Check what all ranks have sent; return how many of them have each gradient.

        Raises:
            ValueError: on every rank, if what they train, or the reduction, differs.
            TypeError: on every rank, if one has a sparse gradient.
        """
        if torch.equal(self._notes, self._all_of_all):
            return [float(self.size)] * len(self._named)
        numbers = torch.real(self._notes).tolist()
        present = numbers[: len(self._named)]
        rest = range(len(self._named), len(numbers), _FINGERPRINT)
        fingerprints = [numbers[start : start + _FINGERPRINT] for start in rest]
        _check(self._named, present, fingerprints, self.size)
        return present

    def take_over(self, present: list[float]) -> None:
        """Make the flat tensor's numbers the gradients of all parameters that any rank has."""
        used = [index for index, count in enumerate(present) if count]
        parameters = [self._parameters[index] for index in used]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        if used:
            gradients = [parameter.grad for parameter in parameters]
            torch._foreach_copy_(gradients, [self._parts[index] for index in used])

    def _tensor(self, present: list[float]) -> torch.Tensor:
        notes = [*present, *self._fingerprints]
        return torch.tensor(notes, dtype=self.flat.dtype, device=self.flat.device)


Layout = list[GradientMessage]
"""They hold every trained parameter once."""
_Slots = list[nn.Parameter | None]
# By model: its parameters as they were, what they were like, for what, and the layout. While the
# model lives this takes the memory of its gradients once more.
_known = WeakIdKeyDictionary()


def layout_of(
    model: nn.Module,
    rank: int,
    size: int,
    reduction: Reduction,
    apart: bool,
    group: dist.ProcessGroup | None,
) -> Layout:
    """Return how the gradients of ``model`` travel: as the last time, if nothing has changed.

    Args:
        model: not wrapped.
        rank: of this process in the group.
        size: of the group.
        reduction: what the caller wants; part of the fingerprint.
        apart: whether each parameter has a message of its own, rather than each dtype and device.
        group: as in :class:`GradientMessage`.
    """
    slots: _Slots = []
    _collect(model, slots)
    now = (rank, size, reduction, apart, [None if one is None else _state(one) for one in slots])
    known = _known.get(model)
    if known is not None and known[1] == now and _same(slots, known[0]):
        return known[2]
    named = _trainable(model)
    parts = [[one] for one in named] if apart else _by_kind(named)
    fingerprint = _fingerprint(named, reduction)
    # Of everything that is trained, so that ranks with more messages than others are noticed in
    # the first one; who trains nothing takes part in that one, too.
    layout = [GradientMessage(part, fingerprint, rank, size, group) for part in list(parts) or [[]]]
    _known[model] = (slots, now, layout)
    return layout


def forget_layout(model: nn.Module) -> None:
    """Have the next call use new memory: an operation that has failed may still write to this."""
    _known.pop(model, None)


def _collect(module: nn.Module, slots: _Slots) -> None:
    """Append all parameters below ``module``, tied ones as often as they are used.

    ``named_parameters`` takes four times as long.
    """
    slots.extend(module._parameters.values())
    for child in module._modules.values():
        if child is not None:
            _collect(child, slots)


def _same(slots: _Slots, known: _Slots) -> bool:
    return len(slots) == len(known) and all(map(operator.is_, slots, known))


def _state(parameter: nn.Parameter) -> tuple:
    return parameter.requires_grad, parameter.dtype, parameter.device, parameter.shape


def _trainable(model: nn.Module) -> Named:
    parameters = model.named_parameters()  # a tied one comes once
    return [(name, parameter) for name, parameter in parameters if parameter.requires_grad]


def _by_kind(named: Named) -> Iterable[Named]:
    kinds: dict[tuple, Named] = {}
    for name, parameter in named:
        kinds.setdefault((parameter.dtype, parameter.device), []).append((name, parameter))
    return kinds.values()


def _is_dense(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and gradient.layout is torch.strided


def _presence(gradient: torch.Tensor | None, size: int) -> float:
    """Return 1 for a gradient, 0 for none, and more than any sum of ones for a sparse one."""
    if gradient is None:
        return 0.0
    return 1.0 if _is_dense(gradient) else size + 1.0


def _fingerprint(named: Named, reduction: Reduction) -> tuple[float, ...]:
    text = repr([(name, tuple(parameter.shape), parameter.dtype) for name, parameter in named])
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
