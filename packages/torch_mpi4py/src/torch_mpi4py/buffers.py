"""MPI needs contiguous host memory, so other tensors are copied there and back.

A contiguous CPU tensor is handed to MPI where it lies. Anything else (a strided view, a CUDA
tensor, a dtype that must be widened) gets a host copy: made when the operation is issued,
waited for on the thread that runs it, and copied back when it is done. To an MPI that is
CUDA-aware all_reduce, broadcast and reduce, which need no memory beside their tensors, hand a
contiguous CUDA tensor as it lies, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import gpus
from .dtypes import element_type
from .runtime import MPI

# MPI-3 counts are C ints; larger tensors are sent as one element of a larger datatype, or
# reduced in pieces of this many elements.
MAX_COUNT = 2**30


class NoValuesError(TypeError):
    """A tensor has a shape and nothing else: it is fake, or on device meta."""


def require_reachable(
    tensor: torch.Tensor, name: str, what: str, layouts: Collection[torch.layout]
) -> None:
    """Raise unless ``tensor`` is one this backend can communicate.

    Raises:
        NoValuesError: if it has a shape, but no values.
        TypeError: if it is no tensor, of none of the ``layouts``, or stands for others.
        ValueError: if it is on a device other than cpu or cuda.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: {name} must be a tensor, not {type(tensor).__name__}")
    if tensor.layout not in layouts:
        raise TypeError(f"{what}: {name} is {tensor.layout}; use {name}.to_dense()")
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        raise NoValuesError(f"{what}: {name} has a shape, but no values")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(
            f"{what}: {name} is on device {tensor.device}; this backend moves cpu and cuda "
            "tensors, so copy it there first"
        )
    if tensor.layout is torch.strided and tensor.numel() > 0 and tensor.data_ptr() == 0:
        raise TypeError(
            f"{what}: {name} is a {type(tensor).__name__} that has no memory, but stands for other "
            "tensors; pass those, or use torch.distributed._functional_collectives"
        )


def require_own_memory(tensor: torch.Tensor) -> None:
    """Raise ValueError if values cannot be written to ``tensor``, each to a place of its own."""
    if any(step == 0 < n - 1 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} whose elements share memory, as expand() "
            "makes it, cannot take in a result; pass tensor.clone()"
        )


def is_host(tensor: torch.Tensor) -> bool:
    """Return whether MPI may touch the tensor's memory without a copy to the host."""
    return tensor.is_cpu


def is_direct(tensor: torch.Tensor) -> bool:
    """Return whether MPI can use the tensor's memory as it lies."""
    return is_host(tensor) and is_plain(tensor)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the elements lie one behind the other, and as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def message(tensor: torch.Tensor, datatype: MPI.Datatype | None = None) -> list:
    """Return mpi4py's ``[memory, count, datatype]`` for a direct tensor."""
    if datatype is None:
        datatype = element_type(tensor.dtype)
    count = tensor.numel()
    memory = MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
    if count > MAX_COUNT:
        return [memory, 1, _large_type(datatype, count)]
    return [memory, count, datatype]


def _large_type(element: MPI.Datatype, count: int) -> MPI.Datatype:
    """Return a datatype that stands for ``count`` elements, for counts past a C int."""
    block = element.Create_contiguous(MAX_COUNT)
    whole, rest = divmod(count, MAX_COUNT)
    extent = MAX_COUNT * element.Get_size()
    parts = [block] * whole + [element.Create_contiguous(rest)]
    offsets = [index * extent for index in range(whole + 1)]
    large = MPI.Datatype.Create_struct([1] * len(parts), offsets, parts).Commit()
    # The type must outlive the call that uses it; these calls move gigabytes, so the few
    # hundred bytes each leaves behind do not matter.
    return large


class Staging:
    """Host copies for one operation: made on issue, awaited on run, copied back at the end.

    Args:
        in_place: whether the operation needs no other memory than its tensors, so that those of
            a GPU may go to a CUDA-aware MPI as they lie, by :meth:`call`.
    """

    __slots__ = ("_arrivals", "_device", "_in_place", "_returns")

    def __init__(self, in_place: bool = False) -> None:
        self._in_place = in_place
        self._arrivals: list[torch.cuda.Event] = []
        self._device: torch.device | None = None
        self._returns: list[tuple[torch.Tensor, torch.Tensor]] = []

    def read(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a direct tensor with the values of ``tensor`` (itself if it is direct).

        Args:
            tensor: any dense cpu or cuda tensor.
            dtype: dtype of the returned tensor, that of ``tensor`` if None.
        """
        wanted = tensor.dtype if dtype is None else dtype
        if wanted == tensor.dtype and (is_direct(tensor) or self._lend(tensor)):
            return tensor
        return self._copy_in(tensor, wanted)

    def read_copy(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a direct tensor with the values of ``tensor``, never sharing its memory."""
        return self._copy_in(tensor, tensor.dtype if dtype is None else dtype)

    def write(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return direct memory to receive ``tensor``'s new values (itself if it is direct)."""
        wanted = tensor.dtype if dtype is None else dtype
        if wanted == tensor.dtype and (is_direct(tensor) or self._lend(tensor)):
            return tensor
        require_own_memory(tensor)
        host = self._host_memory(tensor, wanted)
        self._mark(tensor)  # what the device still does with the old values comes first
        self._returns.append((tensor, host))
        return host

    def update(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return direct memory that holds the values now and whose new values go back."""
        host = self.read(tensor, dtype)
        if host is not tensor:
            require_own_memory(tensor)
            self._returns.append((tensor, host))
        return host

    def arrive(self) -> None:
        """Wait until the copies to the host are complete (on the thread that runs MPI)."""
        for event in self._arrivals:
            event.synchronize()

    def finish(self) -> None:
        """Copy results back to the tensors they belong to."""
        self.arrive()
        for tensor, host in self._returns:
            if is_host(tensor):
                tensor.copy_(host)
            else:
                _to_device(tensor, host)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call MPI, which looks at this thread's current GPU if it is lent a GPU's memory."""
        if self._device is None:
            return function(*arguments)
        with torch.cuda.device(self._device):
            return function(*arguments)

    def _lend(self, tensor: torch.Tensor) -> bool:
        """Let MPI have a GPU's memory itself, once the GPU has done with it; False if it can't."""
        if not (self._in_place and not is_host(tensor) and is_plain(tensor) and gpus.takes_cuda()):
            return False
        self._device = tensor.device if tensor.is_cuda else None
        self._mark(tensor)
        return True

    def _copy_in(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        host = self._host_memory(tensor, dtype)
        if is_host(tensor):
            host.copy_(tensor)
            return host
        host.copy_(tensor.to(dtype), non_blocking=True)
        self._mark(tensor)
        return host

    def _mark(self, tensor: torch.Tensor) -> None:
        """Remember the place in the device's queue that :meth:`arrive` waits for."""
        if tensor.is_cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(tensor.device))
            self._arrivals.append(event)

    @staticmethod
    def _host_memory(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        pinned = not is_host(tensor) and torch.cuda.is_available()
        return torch.empty(tensor.shape, dtype=dtype, pin_memory=pinned)


def _to_device(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Copy to the device on a stream of its own, and return when the values are there.

    After that every stream sees them, so waiting for the operation needs no stream order.
    """
    if not torch.cuda.is_available():
        tensor.copy_(host)
        return
    stream = torch.cuda.Stream(tensor.device)
    with torch.cuda.stream(stream):
        tensor.copy_(host, non_blocking=True)
    stream.synchronize()
