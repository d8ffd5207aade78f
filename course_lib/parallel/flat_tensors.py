"""Packs many tensors into one flat tensor, so that one message carries them all.

- :class:`FlatBytes` holds tensors of any dtypes as bytes, to be broadcast or sent;
- :class:`FlatGradients` holds gradients of one dtype as numbers, to be summed over the ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import nn

NamedParameters = Sequence[tuple[str, nn.Parameter]]
_ALIGNMENT = 16  # bytes, the size of the widest dtype: each tensor begins where its dtype may


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of ``tensor`` as bytes, uint8 (bytes,), on its device."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def checksum_of_layout(tensors: Iterable[torch.Tensor]) -> int:
    """Return a checksum of shapes and dtypes, in order."""
    text = ";".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors)
    return zlib.crc32(text.encode())


class FlatBytes:
    """Tensors of any shapes and dtypes, one after the other in one buffer of bytes.

    Args:
        tensors: these give shapes and dtypes; nothing is copied yet.
        device: where the buffer lies, by default where the first tensor does.

    Attributes:
        buffer: uint8 (bytes,), sent and received as a whole.
        views: the tensors in the buffer, with the shapes and dtypes of the originals.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], device: torch.device | None = None) -> None:
        tensors = list(tensors)
        if device is None:
            device = tensors[0].device if tensors else torch.device("cpu")
        lengths = [tensor.numel() * tensor.element_size() for tensor in tensors]
        starts, end = [], 0
        for length in lengths:
            starts.append(end)
            end += -(-length // _ALIGNMENT) * _ALIGNMENT
        self.buffer = torch.zeros(end, dtype=torch.uint8, device=device)
        self.views = [
            self.buffer[start : start + length].view(tensor.dtype).view(tensor.shape)
            for tensor, start, length in zip(tensors, starts, lengths, strict=True)
        ]

    @torch.no_grad()
    def pack(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """Copy ``tensors`` into the buffer and return it."""
        for view, tensor in zip(self.views, tensors, strict=True):
            view.copy_(tensor)
        return self.buffer

    @torch.no_grad()
    def unpack(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the buffer's contents into ``tensors``."""
        for view, tensor in zip(self.views, tensors, strict=True):
            tensor.copy_(view)


class FlatGradients:
    """Gradients of one dtype and device in one flat tensor, and a few numbers behind them.

    Behind the gradients come one count for each parameter, 1 if this rank has a gradient of it,
    and then the caller's own numbers. After an all-reduce with ``SUM`` of :attr:`flat`, every
    rank therefore knows how many ranks have each gradient without another message. Call the
    methods under ``torch.no_grad()``.

    Args:
        parameters: of one dtype and device; there may be none.
        ranks: number of ranks that take part.
        numbers: further numbers to send; must be exact in the gradients' dtype.
        device: where the flat tensor lies if there are no parameters.

    Attributes:
        flat: the tensor to all-reduce, (elements + parameters + numbers,).
        trailer: its part behind the gradients: the counts and the caller's numbers.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        ranks: int,
        numbers: Sequence[float] = (),
        device: torch.device | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._ranks = ranks
        self._numbers = list(numbers)
        lengths = [parameter.numel() for parameter in self._parameters]
        lengths.append(len(self._parameters) + len(self._numbers))
        like = self._parameters[0] if self._parameters else torch.empty(0, device=device)
        self.flat = torch.empty(sum(lengths), dtype=like.dtype, device=like.device)
        *parts, self.trailer = self.flat.split(lengths)
        shaped = zip(parts, self._parameters, strict=True)
        self._parts = [part.view(parameter.shape) for part, parameter in shaped]
        # A step of a small model is as short as thirty calls of torch, so the numbers that are
        # sent almost always are made only once.
        self._with_all_gradients = self._trailer_of([1.0] * len(self._parameters))

    def write(self) -> None:
        """Copy this rank's gradients into the flat tensor; a missing one counts as zeros."""
        gradients = [parameter.grad for parameter in self._parameters]
        if all(map(_is_dense, gradients)):
            sources = [*gradients, self._with_all_gradients]
            torch._foreach_copy_([*self._parts, self.trailer], sources)
            return
        for part, gradient in zip(self._parts, gradients, strict=True):
            part.copy_(gradient) if _is_dense(gradient) else part.zero_()
        self.trailer.copy_(self._trailer_of([self._count_of(one) for one in gradients]))

    def counts_and_numbers(self) -> tuple[list[float], list[float]]:
        """Return, once summed, how many ranks have each gradient, and the caller's numbers."""
        summed = torch.real(self.trailer).tolist()
        return summed[: len(self._parameters)], summed[len(self._parameters) :]

    def replace_gradients(self, counts: Sequence[float], divisor: int = 1) -> None:
        """Make the flat tensor's numbers the gradients of all parameters that any rank has.

        Args:
            counts: how many ranks have each gradient.
            divisor: the numbers are divided by it.
        """
        if divisor > 1:
            self.flat.div_(divisor)
        used = [index for index, count in enumerate(counts) if count]
        parameters = [self._parameters[index] for index in used]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        if used:
            gradients = [parameter.grad for parameter in parameters]
            torch._foreach_copy_(gradients, [self._parts[index] for index in used])

    def _count_of(self, gradient: torch.Tensor | None) -> float:
        """Return 1 for a gradient, 0 for none, and more than any sum of ones for a sparse one."""
        if gradient is None:
            return 0.0
        return 1.0 if _is_dense(gradient) else self._ranks + 1.0

    def _trailer_of(self, counts: list[float]) -> torch.Tensor:
        values = [*counts, *self._numbers]
        return torch.tensor(values, dtype=self.flat.dtype, device=self.flat.device)


def _is_dense(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and gradient.layout is torch.strided


def require_dense(names: Iterable[str], counts: Iterable[float], ranks: int) -> None:
    """Raise TypeError if the counts of all ranks say that one has a sparse gradient."""
    for name, count in zip(names, counts, strict=True):
        if count > ranks:
            raise TypeError(
                f"the gradient of {name!r} is sparse on at least one rank, and sparse gradients "
                "cannot be flattened; build its layer with sparse=False"
            )
