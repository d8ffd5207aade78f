"""Ranks that disagree: one error on every rank that names each, and the group goes on."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch_mpi4py import MismatchError

from tests.torch_mpi4py.helpers import raises, sizes, still_works


def disagree(call: Callable[[], object], *words: str) -> None:
    """Expect a MismatchError on this rank that names every rank, then a working group."""
    names = [f"rank {r}: " for r in range(dist.get_world_size())]
    for asynchronous in (False, True):
        with raises(MismatchError, *names, *words):
            work = call(async_op=asynchronous)
            if asynchronous:
                work.wait()
        still_works()


@sizes(2, 3, 4)
def case_shape(rank: int, size: int) -> None:
    value = torch.ones(4 if rank == 0 else 3)
    disagree(
        lambda async_op: dist.all_reduce(value, async_op=async_op),
        "rank 0: all_reduce(SUM) of 4 float32",
        "rank 1: all_reduce(SUM) of 3 float32",
    )
    assert value.eq(1).all(), "data moved"


@sizes(2, 3, 4)
def case_dtype(rank: int, size: int) -> None:
    value = torch.ones(4, dtype=torch.int32 if rank == size - 1 else torch.float32)
    disagree(lambda async_op: dist.all_reduce(value, async_op=async_op), "int32", "float32")
    assert value.eq(1).all(), "data moved"


@sizes(2, 3, 4)
def case_reduce_op(rank: int, size: int) -> None:
    op = dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM
    value = torch.ones(4)
    disagree(lambda async_op: dist.all_reduce(value, op, async_op=async_op), "(MAX)", "(SUM)")


@sizes(2, 3, 4)
def case_root(rank: int, size: int) -> None:
    value = torch.full((4,), float(rank))
    root = 1 if rank == 0 else 0
    disagree(
        lambda async_op: dist.broadcast(value, src=root, async_op=async_op), "root 1", "root 0"
    )
    assert value.eq(rank).all(), "data moved"


@sizes(2, 3, 4)
def case_operation(rank: int, size: int) -> None:
    value = torch.ones(4)

    def call(async_op: bool) -> object:
        if rank == 0:
            return dist.broadcast(value, src=0, async_op=async_op)
        return dist.all_reduce(value, async_op=async_op)

    disagree(call, "rank 0: broadcast", "rank 1: all_reduce")


@sizes(2, 3, 4)
def case_order(rank: int, size: int) -> None:
    first, second = torch.ones(2), torch.ones(3)
    order = [first, second] if rank == 0 else [second, first]
    works = [dist.all_reduce(value, async_op=True) for value in order]
    for work in works:
        with raises(MismatchError, "of 2 float32", "of 3 float32"):
            work.wait()
    still_works()


@sizes(2, 3, 4)
def case_barrier_meets_all_reduce(rank: int, size: int) -> None:
    with raises(MismatchError, "barrier", "all_reduce"):
        if rank == 0:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1))
    still_works()


@sizes(2, 3, 4)
def case_all_gather_sizes(rank: int, size: int) -> None:
    # Rank 0 believes that everyone gives two elements; the others give one.
    count = 2 if rank == 0 else 1
    outputs = [torch.zeros(count) for _ in range(size)]
    disagree(lambda async_op: dist.all_gather(outputs, torch.ones(count), async_op=async_op))


@sizes(2, 3, 4)
def case_reduce_scatter_sizes(rank: int, size: int) -> None:
    count = 2 if rank == 0 else 1
    output, source = torch.zeros(count), torch.ones(count * size)
    disagree(lambda async_op: dist.reduce_scatter_tensor(output, source, async_op=async_op))


@sizes(2, 3, 4)
def case_gather_and_scatter_sizes(rank: int, size: int) -> None:
    count = 2 if rank == 0 else 1
    outputs = [torch.zeros(count) for _ in range(size)] if rank == 0 else None
    disagree(lambda async_op: dist.gather(torch.ones(count), outputs, async_op=async_op))
    output = torch.zeros(count)
    disagree(lambda async_op: dist.scatter(output, outputs, async_op=async_op))


@sizes(2, 3, 4)
def case_all_to_all_counts(rank: int, size: int) -> None:
    # Rank 0 sends rank 1 two elements, which expects one.
    sources = [torch.ones(2 if rank == 0 and r == 1 else 1) for r in range(size)]
    outputs = [torch.zeros(1) for _ in range(size)]
    for asynchronous in (False, True):
        with raises(MismatchError, "rank 0 sends 2 elements to rank 1, which expects 1"):
            work = dist.all_to_all(outputs, sources, async_op=asynchronous)
            if asynchronous:
                work.wait()
        still_works()


@sizes(2, 3, 4)
def case_in_a_coalescing_manager(rank: int, size: int) -> None:
    with raises(MismatchError, "of 4 float32", "of 3 float32"), dist._coalescing_manager():
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(4 if rank == 0 else 3))
    still_works()


@sizes(2)
def case_mismatch_check_disabled(rank: int, size: int) -> None:
    group = dist.new_group()
    group.check_collectives = False
    still_works(group)
    assert not group.check_collectives
    group.check_collectives = True
    with raises(MismatchError):
        dist.all_reduce(torch.ones(1 + rank), group=group)
    dist.destroy_process_group(group)
