"""Carries out the schedule of an all-reduce by sends and receives.

Types narrower than float32 travel and are combined as float32 and are rounded once at the end,
as the mpi4py backend does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from ..agreement import rank_and_size
from .schedules import Schedule, Step

_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_OF_BOOL = {
    "SUM": torch.bitwise_or,
    "PRODUCT": torch.bitwise_and,
    "MIN": torch.bitwise_and,
    "MAX": torch.bitwise_or,
}
_NAMES = {int(getattr(ReduceOp, name)): name for name in _FUNCTIONS}
_NOT_IN_TORCH = (torch.uint16, torch.uint32, torch.uint64)  # it has no sums of them


class Arithmetic:
    """How one tensor is taken apart for the wire, combined, and put together again.

    Args:
        tensor: dense, on any device; it gets the result.
        op: SUM, AVG, PRODUCT, MIN, MAX, and for integers and bool BAND, BOR, BXOR.

    Attributes:
        data: flat (numel,), in the dtype that travels; the tensor's own memory if it can be.

    Raises:
        TypeError: if the operation is not one or has no meaning for the dtype, or if the tensor is
            not one or not dense.
    """

    def __init__(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"only tensors can be reduced, not {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError("only dense tensors can be reduced; use tensor.to_dense()")
        self._tensor = tensor.detach()
        self._name = _name_of(op, tensor.dtype)
        functions = _FUNCTIONS | _OF_BOOL if tensor.dtype == torch.bool else _FUNCTIONS
        self._function = functions[self._name]
        plain = self._tensor.resolve_conj().resolve_neg()
        self.data = plain.contiguous().view(-1).to(_wire_dtype(plain.dtype))

    def combine(self, part: slice, received: torch.Tensor, received_first: bool) -> None:
        """Combine what came from another rank with ``data[part]``, in place.

        The order makes no difference to a number, but may to the sign of a zero or to which of
        two NaN remains, and results must be the same bits on all ranks.
        """
        own = self.data[part]
        first, second = (received, own) if received_first else (own, received)
        self._function(first, second, out=own)

    def finish(self, world_size: int) -> None:
        """Divide for AVG (integers round towards zero) and put the result into the tensor."""
        data = self.data
        if self._name == "AVG":
            whole = not (data.is_floating_point() or data.is_complex())
            data.div_(world_size, rounding_mode="trunc" if whole else None)
        if data.untyped_storage().data_ptr() != self._tensor.untyped_storage().data_ptr():
            self._tensor.copy_(data.view(self._tensor.shape))


def _wire_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype == torch.complex32:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def _name_of(op: ReduceOp, dtype: torch.dtype) -> str:
    if not isinstance(op, ReduceOp | ReduceOp.RedOpType):
        raise TypeError(f"op must be an operation such as dist.ReduceOp.SUM, not {op!r}")
    name = _NAMES.get(int(getattr(op, "op", op)))
    if name is None:
        raise TypeError(
            f"reduce operation {op} is not supported; use one of {', '.join(_FUNCTIONS)}"
        )
    fractional = dtype.is_floating_point or dtype.is_complex
    if fractional and name in ("BAND", "BOR", "BXOR"):
        raise TypeError(f"{name} is for whole numbers and bool, not {dtype}; use SUM, MIN or MAX")
    if dtype.is_complex and name in ("MIN", "MAX"):
        raise TypeError(
            f"{name} does not work on complex numbers, which have no order; reduce abs()"
        )
    if dtype in _NOT_IN_TORCH or (name == "AVG" and dtype == torch.bool):
        raise TypeError(f"{name} of {dtype} is not supported; convert to a signed number first")
    return name


@torch.no_grad()
def run_schedule(
    schedule: Schedule,
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Combine all ranks' ``tensor`` element by element; every rank gets the result in place.

    The result has the same bits on all ranks. It equals ``dist.all_reduce`` exactly for bool
    and for integers whose results fit the dtype; others wrap round as in torch, while Open MPI
    stops at the largest number for sums of 8 and 16 bits. Sums and products of p floating-point
    numbers are off by at most p units in the last place of the sum (product) of magnitudes,
    and so from ``dist.all_reduce`` by at most twice that, since the order of operations
    differs. NaN spreads in MIN and MAX, where an MPI may drop it.

    Args:
        schedule: ``schedule(rank, world_size, numel)``, see :mod:`.schedules`.
        tensor: dense, of one shape and dtype on all ranks; need not be contiguous.
        op: SUM, AVG, PRODUCT, MIN, MAX, and for integers and bool BAND, BOR, BXOR.
        group: process group, the default one if None. On NCCL it must have done a collective
            before, which NCCL requires if not all ranks send at first.

    Returns:
        ``tensor``.

    Raises:
        TypeError: if the operation has no meaning for the dtype, or the tensor is not dense.
        ValueError: if this rank is not in the group.
    """
    rank, size = rank_and_size(group)
    arithmetic = Arithmetic(tensor, op)
    data = arithmetic.data
    steps = schedule(rank, size, data.numel())
    combined = [len(step.receive) for step in steps if step.combine and step.receive]
    incoming = data.new_empty(max(combined, default=0))
    for step in steps:
        _exchange(step, arithmetic, incoming, rank, group)
    arithmetic.finish(size)
    return tensor


def _exchange(
    step: Step,
    arithmetic: Arithmetic,
    incoming: torch.Tensor,
    rank: int,
    group: dist.ProcessGroup | None,
) -> None:
    operations = []
    out, into = step.send, step.receive
    if out:
        message = arithmetic.data[out.start : out.stop]
        operations.append(dist.P2POp(dist.isend, message, group=group, group_peer=out.peer))
    if into:
        part = slice(into.start, into.stop)
        room = incoming[: len(into)] if step.combine else arithmetic.data[part]
        operations.append(dist.P2POp(dist.irecv, room, group=group, group_peer=into.peer))
    if not operations:
        return
    # Both are under way before either is waited for.
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if into and step.combine:
        arithmetic.combine(part, room, received_first=into.peer < rank)
