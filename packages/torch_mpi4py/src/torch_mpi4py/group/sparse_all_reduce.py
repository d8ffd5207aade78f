"""Adds up sparse COO tensors, e.g. the gradients of ``nn.Embedding(sparse=True)``.

Each rank may have different rows, and a different number of them. Every rank gathers the indices
and values of all, and adds up the values with the same index.
"""

from __future__ import annotations

import contextlib
import math

import numpy
import torch
from torch.distributed import ReduceOp

from ..core import cuda_copies
from ..core.buffers import Staging, undelivered
from ..core.call import Call
from ..core.dtypes import Reduction, element_type, reduction
from ..core.errors import MismatchError
from ..core.runtime import MPI
from .collectives import MOST_UNEQUAL, Plan, by_rank, gather_to_all, scale_after


class SparseCall(Call):
    """The part that must be equal on all ranks: the shape with the number of sparse dimensions."""

    layout = 1

    def over(self, link: tuple[float, ...]) -> SparseCall:
        return SparseCall(self.name, self.counts, self.dtype, self.op, link=link)

    def _counts(self) -> str:
        return f"sparse {' x '.join(map(str, self.counts[:-1]))}"

    def largest_part_bytes(self, result: list[torch.Tensor], ranks: int) -> int:
        return sum(part.nbytes for tensor in result for part in _parts(tensor))


def sparse_all_reduce(tensor: torch.Tensor, op: ReduceOp) -> tuple[Call, Plan, int]:
    """Return how to add up ``tensor`` over all ranks; each gets the result in place, coalesced.

    Returns:
        What the ranks compare, the plan, and how many values this rank hands over.

    Raises:
        TypeError: for another operation than SUM and AVG.
    """
    how = reduction(tensor.dtype, op)
    if int(getattr(op, "op", op)) not in (int(ReduceOp.SUM), int(ReduceOp.AVG)):
        raise TypeError(
            "all_reduce: sparse tensors can be combined by SUM and AVG only; use tensor.to_dense()"
        )
    staging = Staging()
    staging.mark(tensor)
    call = SparseCall("all_reduce", (*tensor.shape, tensor.sparse_dim()), tensor.dtype, how.code)

    def run(comm: MPI.Intracomm) -> None:
        staging.arrive()
        # Values made in inference mode can only belong to a tensor made in it.
        with torch.inference_mode(tensor.is_inference()), torch.no_grad(), _current_gpu(tensor):
            add_up(comm)

    def add_up(comm: MPI.Intracomm) -> None:
        indices, values = (part.cpu().contiguous() for part in _parts(tensor.detach().coalesce()))
        rows = indices.t().contiguous()  # so that what belongs to one rank lies together
        counts = numpy.empty(comm.Get_size(), numpy.int64)
        comm.Allgather(numpy.array([len(rows)], numpy.int64), counts)
        _require_few(int(counts.sum()) * max(rows.shape[1], math.prod(values.shape[1:])))
        all_rows = _gathered(comm, rows, counts)
        all_values = _gathered(comm, values, counts)
        try:
            tensor.copy_(_sum(tensor, all_rows.t(), all_values, how, comm.Get_size()))
            if tensor.is_cuda:
                cuda_copies.wait({tensor.device: cuda_copies.moment(tensor.device)})
        except Exception as error:
            raise undelivered(error) from error

    return call, run, tensor._values().numel()


def _current_gpu(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    return cuda_copies.current_gpu([tensor.device] if tensor.is_cuda else [])


def _require_few(elements: int) -> None:
    """Raise on all ranks alike, since none knows beforehand how many the others have."""
    if elements > MOST_UNEQUAL:
        raise MismatchError(
            f"all_reduce: the ranks' sparse tensors have {elements} values together, more than "
            f"the {MOST_UNEQUAL} that are supported; reduce them in parts. No data was moved and "
            "the group is still usable."
        )


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor._indices(), tensor._values()


def _gathered(comm: MPI.Intracomm, own: torch.Tensor, counts: numpy.ndarray) -> torch.Tensor:
    """Return the rows of all ranks, ``counts[r]`` of them from rank r."""
    whole = own.new_empty((int(counts.sum()), *own.shape[1:]))
    width = own[:1].numel() if len(own) else whole[:1].numel()
    memory = MPI.buffer.fromaddress(own.data_ptr(), own.nbytes)
    element = element_type(own.dtype)
    receive = by_rank(whole, [int(count) * width for count in counts], element)
    gather_to_all(comm, [memory, own.numel(), element], receive)
    return whole


def _sum(
    tensor: torch.Tensor,
    indices: torch.Tensor,
    values: torch.Tensor,
    how: Reduction,
    ranks: int,
) -> torch.Tensor:
    summed = torch.sparse_coo_tensor(
        indices,
        values.to(how.wire_dtype),
        tensor.shape,
        device=values.device,
        check_invariants=False,
    ).coalesce()
    scale_after(summed._values(), how, ranks)
    return summed.to(tensor.dtype)
