"""Replaces every rank's gradients by their mean over the ranks, as one flat all-reduce.

Call it after ``backward`` and before ``optimizer.step``. With a loss that is a mean over the
samples, and equally large batches on all ranks, every replica then holds the gradient of the mean
over all of them. ("sum" omits the division, for losses that are sums.)

A few more numbers travel behind the gradients in the same all-reduce: for each parameter, how many
ranks have a gradient for it, and each rank's fingerprint of all that it trains. So ranks agree on
unused parameters and notice different models without another message.

A step of a small model is as short as thirty calls of torch, so everything that does not change
from step to step is kept: which parameters are trained, the flat tensors, and their extra numbers.
Every step checks whether they still fit the model, because parameters may be frozen, replaced or
converted at any time.
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

from .agreement import communication_device, rank_and_size
from .flat_tensors import FlatGradients, NamedParameters, require_dense
from .replica import unwrap

Reduction = Literal["mean", "sum"]
_BASE = 251  # below 256, so that even bfloat16 holds a fingerprint's numbers exactly


@torch.no_grad()
def sync_gradients(
    model: nn.Module, group: dist.ProcessGroup | None = None, reduction: Reduction = "mean"
) -> None:
    """Replace every gradient by its mean (or sum) over the ranks: one flattened all-reduce.

    (One for each dtype and device, if there are several.) Frozen parameters are not changed,
    and tied ones are averaged once. A parameter without a gradient on some ranks, because they
    did not use it, counts as zeros there and gets the result everywhere; without a gradient on
    all ranks it keeps none, so that the optimizer skips it as it would in one process. The flat
    tensor, as large as all gradients, is kept for the next call while the model lives.

    Args:
        model: after ``backward``; the same architecture on every rank.
        group: process group, the default one if None.
        reduction: "mean" or "sum" over the ranks.

    Raises:
        TypeError: on every rank, if a gradient is sparse on any.
        ValueError: on every rank, if the ranks' trainable parameters differ in name, shape or
            dtype, or ``reduction`` differs or is something else; on this rank, if it is not in
            the group.
        MismatchError: (backend mpi4py) on every rank instead, if the first message differs in its
            number of elements or dtype.
    """
    model = unwrap(model)
    for message in _kept_messages(model, *rank_and_size(group), reduction, group):
        message.write()
        try:
            dist.all_reduce(message.flat, group=group)
        except BaseException:
            # The operation that failed may still write to this memory: use new one next time.
            _kept.pop(model, None)
            raise
        counts = message.checked_counts()
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
        message.replace_gradients(counts, message.size if reduction == "mean" else 1)


class _GradientsOfOneKind(FlatGradients):
    """The gradients of one dtype and device, with every rank's fingerprint behind them."""

    def __init__(
        self,
        named: NamedParameters,
        fingerprint: tuple[float, float],
        rank: int,
        size: int,
        device: torch.device,
    ) -> None:
        self.size = size
        self._names = [name for name, _ in named]
        fingerprints = [0.0] * (2 * size)
        fingerprints[2 * rank : 2 * rank + 2] = fingerprint
        super().__init__([parameter for _, parameter in named], size, fingerprints, device)
        # The result if all ranks have all gradients of one model, which is the usual case.
        self._all_counts = [float(size)] * len(named)
        expected = [*self._all_counts, *fingerprint * size]
        self._expected = torch.tensor(expected, dtype=self.flat.dtype, device=self.flat.device)

    def checked_counts(self) -> list[float]:
        """Check the data of all ranks; return how many of them have each gradient.

        Raises:
            ValueError: on every rank, if what they train, or the reduction, differs.
            TypeError: on every rank, if one has a sparse gradient.
        """
        if torch.equal(self.trailer, self._expected):
            return self._all_counts
        counts, numbers = self.counts_and_numbers()
        for rank in range(1, self.size):
            if numbers[2 * rank : 2 * rank + 2] != numbers[:2]:
                raise ValueError(
                    f"the trainable parameters of rank {rank} differ from rank 0's in name, shape "
                    "or dtype, or its reduction differs; build the same model on every rank, "
                    "freeze the same parameters, and use the same reduction"
                )
        require_dense(self._names, counts, self.size)
        return counts


# By model: its parameters as they were, what else the messages were made for, and the messages.
# While the model lives this takes the memory of its gradients once more.
_kept = WeakIdKeyDictionary()


def _kept_messages(
    model: nn.Module, rank: int, size: int, reduction: Reduction, group: dist.ProcessGroup | None
) -> list[_GradientsOfOneKind]:
    """Return the messages of the last call, or new ones if anything has changed since."""
    parameters: list[nn.Parameter | None] = []
    _collect(model, parameters)
    states = [None if one is None else _state(one) for one in parameters]
    key = (rank, size, reduction, states)
    kept = _kept.get(model)
    if kept is not None and kept[1] == key and all(map(operator.is_, parameters, kept[0])):
        return kept[2]
    # A tied parameter comes once.
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    # The fingerprint is that of everything that is trained, so that ranks with more messages than
    # others are noticed in the first; a rank that trains nothing takes part in that one, too.
    fingerprint = _fingerprint(named, reduction)
    device = communication_device(group)
    messages = [
        _GradientsOfOneKind(part, fingerprint, rank, size, device)
        for part in list(_by_kind(named)) or [[]]
    ]
    _kept[model] = (parameters, key, messages)
    return messages


def _collect(module: nn.Module, parameters: list[nn.Parameter | None]) -> None:
    """Append all parameters below ``module``, tied ones as often as they are used.

    ``named_parameters`` takes four times as long.
    """
    parameters.extend(module._parameters.values())
    for child in module._modules.values():
        if child is not None:
            _collect(child, parameters)


def _state(parameter: nn.Parameter) -> tuple:
    return parameter.requires_grad, parameter.dtype, parameter.device, parameter.shape


def _by_kind(named: NamedParameters) -> Iterable[NamedParameters]:
    kinds: dict[tuple, list] = {}
    for name, parameter in named:
        kinds.setdefault((parameter.dtype, parameter.device), []).append((name, parameter))
    return kinds.values()


def _fingerprint(named: NamedParameters, reduction: Reduction) -> tuple[float, float]:
    text = repr([(name, tuple(parameter.shape), parameter.dtype) for name, parameter in named])
    number = zlib.crc32(f"{text} {reduction}".encode())
    return float(number % _BASE), float(number // _BASE % _BASE)
