"""MPI needs contiguous host memory, so other tensors are copied there and back.

A contiguous CPU tensor is handed to MPI where it lies. Anything else (a strided view, a CUDA
tensor, a dtype that must be widened) gets a host copy: made when the turn of the operation has
come, on the thread that runs it, and copied back when it is done. If MPI is CUDA-aware, all_reduce,
broadcast and reduce, which need no memory besides their tensors, hand it a contiguous CUDA tensor
directly, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import cuda_copies, gpus
from .dtypes import PACKED, element_type
from .errors import DeliveryError
from .runtime import MPI

# MPI-3 counts are C ints; larger tensors are sent as one element of a larger datatype, or
# reduced in pieces of this many elements.
MAX_COUNT = 2**30

SINGLE_FORMATS: dict[int, Literal["f", "d"]] = {MPI.FLOAT.handle: "f", MPI.DOUBLE.handle: "d"}
"""By the MPI datatype: the format in which Python reads and writes a single number."""


class NoValuesError(TypeError):
    """A tensor is fake: it has a shape and no values."""


def require_reachable(
    tensor: torch.Tensor, name: str, what: str, layouts: Collection[torch.layout]
) -> None:
    """Raise unless ``tensor`` is one this backend can communicate.

    Raises:
        NoValuesError: if it has a shape, but no values.
        TypeError: if it is no tensor, of none of the ``layouts``, or represents others.
        ValueError: if it is on a device other than cpu or cuda.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: {name} must be a tensor, not {type(tensor).__name__}")
    if tensor.layout not in layouts:
        raise TypeError(f"{what}: {name} is {tensor.layout}; use {name}.to_dense()")
    if isinstance(tensor, FakeTensor):
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
    """Raise ValueError if ``tensor`` has no separate memory for each of its elements."""
    if tensor.is_contiguous():
        return
    if any(step == 0 < n - 1 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} whose elements share memory (expand() "
            "makes such tensors) cannot hold a result; pass tensor.clone()"
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
    """Return mpi4py's ``[memory, count, datatype]`` for a direct tensor.

    The memory of a single floating-point number can be read and written by Python.
    """
    if datatype is None:
        datatype = element_type(tensor.dtype)
    count = tensor.numel()
    memory: Any = MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
    if count == 1 and datatype.handle in SINGLE_FORMATS:
        memory = memoryview(memory).cast(SINGLE_FORMATS[datatype.handle])
    if count > MAX_COUNT:
        return [memory, 1, _large_type(datatype, count)]
    return [memory, count, datatype]


def _large_type(element: MPI.Datatype, count: int) -> MPI.Datatype:
    """Return a datatype of ``count`` elements, for counts past a C int."""
    block = element.Create_contiguous(MAX_COUNT)
    whole, rest = divmod(count, MAX_COUNT)
    extent = MAX_COUNT * element.Get_size()
    parts = [block] * whole + [element.Create_contiguous(rest)]
    offsets = [index * extent for index in range(whole + 1)]
    large = MPI.Datatype.Create_struct([1] * len(parts), offsets, parts).Commit()
    # The type must outlive the call that uses it; these calls move gigabytes, so the few
    # hundred bytes each leaves behind do not matter.
    return large


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of ``tensor``, outside autograd.

    MPI writes to memory without asking autograd, so copies must do the same, on any thread and in
    any mode: nothing is recorded, a leaf is no error, no version is counted, and what was made in
    inference mode can be written.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # what is made in it could be written in it alone
            return tensor.data
    return tensor.data


def host_memory(
    shape: torch.Size | tuple[int, ...], dtype: torch.dtype, pinned: bool = False
) -> torch.Tensor:
    """Return new memory of the host, whatever device and mode the program has set.

    Args:
        shape: of the tensor returned.
        dtype: of its elements.
        pinned: whether a GPU will read or write it.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return host_memory(shape, dtype, pinned)
    if pinned:
        return torch.empty(shape, dtype=dtype, device=_HOST, pin_memory=True)
    return torch.empty(shape, dtype=dtype, device=_HOST)


_HOST = torch.device("cpu")


class Staging:
    """Host copies for one operation: made when its turn has come, and copied back at the end.

    They are announced when the operation is issued. Their values are read later, since operations
    before it in the queue may still write them.

    Args:
        in_place: whether the operation needs no other memory than its tensors, so that those of
            a GPU may go to a CUDA-aware MPI as they lie, by :meth:`call`.
    """

    __slots__ = ("_device", "_in_place", "_joins", "_marks", "_reads", "_returns")

    def __init__(self, in_place: bool = False) -> None:
        self._in_place = in_place
        self._marks: dict[torch.device, torch.cuda.Event] = {}
        self._device: torch.device | None = None
        self._reads: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._joins: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        self._returns: list[tuple[torch.Tensor, torch.Tensor]] = []

    def read(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a direct tensor for the values of ``tensor`` (the same memory if it is direct).

        Args:
            tensor: any dense cpu or cuda tensor.
            dtype: dtype of the returned tensor, that of ``tensor`` if None.
        """
        tensor = raw(tensor)
        wanted = tensor.dtype if dtype is None else dtype
        return tensor if self._fits(tensor, wanted) else self._copy_in(tensor, wanted)

    def read_copy(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a direct tensor for the values of ``tensor``, never sharing its memory."""
        return self._copy_in(raw(tensor), tensor.dtype if dtype is None else dtype)

    def write(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return direct memory for ``tensor``'s new values (its own if it is direct)."""
        tensor = raw(tensor)
        wanted = tensor.dtype if dtype is None else dtype
        if self._fits(tensor, wanted):
            return tensor
        return self._copy_out(tensor, self._host_memory(tensor, wanted))

    def update(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return direct memory that gets the values, and whose new values go back."""
        tensor = raw(tensor)
        wanted = tensor.dtype if dtype is None else dtype
        if self._fits(tensor, wanted):
            return tensor
        return self._copy_out(tensor, self._copy_in(tensor, wanted))

    def join(
        self, tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return new flat memory for the values of all ``tensors``, one behind the other."""
        block = self._block(tensors, tensors[0].dtype if dtype is None else dtype)
        self._joins.append((block, [*map(raw, tensors)]))
        return block

    def collect(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return new flat memory, which goes back to ``tensors``, one behind the other."""
        for tensor in tensors:
            require_own_memory(tensor)
        block = self._block(tensors, tensors[0].dtype)
        self._returns += zip(map(raw, tensors), _parts(block, tensors), strict=True)
        return block

    def mark(self, tensor: torch.Tensor) -> None:
        """Have :meth:`arrive` wait for what the tensor's device has been given so far."""
        if tensor.is_cuda and tensor.device not in self._marks:
            self._marks[tensor.device] = cuda_copies.moment(tensor.device)

    def plan(self, run: Callable[[MPI.Intracomm], None]) -> Callable[[MPI.Intracomm], None]:
        """Return a function that does ``run`` between the copies to the host and those back."""

        def staged(comm: MPI.Intracomm) -> None:
            self.arrive()
            run(comm)
            self.finish()

        return staged

    def arrive(self) -> None:
        """Read the values (on the thread that runs MPI, once nothing before it writes them)."""
        if self._marks:
            cuda_copies.wait(self._marks)
        for block, tensors in self._joins:
            if self._marks or tensors[0].dtype in PACKED:
                self._reads += zip(_parts(block, tensors), tensors, strict=True)
            else:  # in one go
                torch.cat([_flat(part, block.dtype) for part in tensors], out=block)
        if self._reads:
            self._copy(self._reads)

    def finish(self) -> None:
        """Copy results back to the tensors they belong to.

        Raises:
            DeliveryError: if that fails.
        """
        if not self._returns:
            return
        try:
            if self._marks:
                cuda_copies.wait(self._marks)
            self._copy(self._returns)
        except Exception as error:
            raise undelivered(error) from error

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call MPI, which looks at this thread's current GPU if it is lent a GPU's memory."""
        if self._device is None:
            return function(*arguments)
        with torch.cuda.device(self._device):
            return function(*arguments)

    def _fits(self, tensor: torch.Tensor, dtype: torch.dtype) -> bool:
        return dtype == tensor.dtype and (is_direct(tensor) or self._lend(tensor))

    def _lend(self, tensor: torch.Tensor) -> bool:
        """Let MPI have a GPU's memory itself, once the GPU has done with it; False if it can't."""
        if not (self._in_place and not is_host(tensor) and is_plain(tensor) and gpus.takes_cuda()):
            return False
        self._device = tensor.device if tensor.is_cuda else None
        self.mark(tensor)
        return True

    def _copy_in(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        host = self._host_memory(tensor, dtype)
        self.mark(tensor)
        self._reads.append((host, tensor))
        return host

    def _copy_out(self, tensor: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        require_own_memory(tensor)
        self.mark(tensor)  # what the device still does with the old values comes first
        self._returns.append((tensor, host))
        return host

    def _copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        if pairs[0][0].dtype in PACKED:
            pairs = [(one.view(torch.uint8), other.view(torch.uint8)) for one, other in pairs]
        if self._marks:
            cuda_copies.copy(pairs)
            return
        for target, source in pairs:
            target.copy_(source)

    @staticmethod
    def _host_memory(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return host_memory(tensor.shape, dtype, tensor.is_cuda)

    def _block(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        for tensor in tensors:
            self.mark(tensor)
        return host_memory((sum(map(torch.Tensor.numel, tensors)),), dtype, bool(self._marks))


def _parts(block: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of ``block``, one behind the other, in the shapes of ``like``."""
    parts = block.split([tensor.numel() for tensor in like]) if len(like) > 1 else (block,)
    # A view takes longer than a short copy.
    return [
        part if tensor.dim() == 1 else part.view(tensor.shape)
        for part, tensor in zip(parts, like, strict=True)
    ]


def _flat(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``tensor`` in one dimension and as ``dtype``, without a copy where possible."""
    if tensor.dim() == 1 and tensor.dtype == dtype:
        return tensor
    return tensor.to(dtype).reshape(-1)


def undelivered(error: Exception) -> DeliveryError:
    """Return what to raise for an error met after MPI has done its part, on all ranks."""
    return DeliveryError(
        "the operation succeeded, but its result could not be written to this rank's tensor: "
        f"{type(error).__name__}: {error}. The group is still usable."
    )
