"""One rank passes nonsense: one clear error there, at once, and the group goes on."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch_mpi4py import ClosedGroupError, CommunicationError, MismatchError

from tests.torch_mpi4py.helpers import equal, raises, sizes, still_works

AT_ONCE = 10.0  # on a machine that may stall; who waited for others would wait for 30 s


def refused(kind, *words: str):
    return raises(kind, *words, within=AT_ONCE)


def case_device(rank: int, size: int) -> None:
    meta = torch.empty(3, device="meta")
    if rank == size - 1:
        with refused(ValueError, "device meta", "cpu"):
            dist.all_reduce(meta)
        with refused(ValueError, "device meta"):
            dist.broadcast(meta, src=0)
        with refused(ValueError, "device meta"):
            dist.all_gather([meta] * size, torch.ones(3))
        with refused(ValueError, "device meta"):
            dist.all_gather_into_tensor(torch.empty(3 * size, device="meta"), meta)
        with refused(ValueError, "device meta"):
            dist.reduce_scatter_tensor(torch.ones(1), torch.empty(size, device="meta"))
    still_works()


def case_sparse(rank: int, size: int) -> None:
    if rank == 0:
        with refused((TypeError, RuntimeError), "sparse"):
            dist.broadcast(torch.eye(3).to_sparse(), src=0)
        with refused((TypeError, RuntimeError), "sparse"):
            dist.reduce(torch.eye(3).to_sparse(), dst=0)
        with refused(TypeError, "sparse", "SUM"):
            dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.MAX)
        with refused(TypeError, "sparse_csr"):
            dist.all_reduce(torch.eye(3).to_sparse_csr())
    still_works()


@sizes(2)
def case_uneven_parts_larger_than_an_int(rank: int, size: int) -> None:
    """None of this memory is ever touched."""
    parts = [torch.empty(2**31 - 5, dtype=torch.uint8), torch.empty(7, dtype=torch.uint8)]
    with refused(ValueError, "unequal parts", "2147483647"):
        dist.all_gather(parts, parts[rank])
    with refused(ValueError, "unequal parts", "2147483647"):
        dist.all_to_all(parts, [*parts])
    still_works()
    values = torch.zeros(1, 2**30 + 8, dtype=torch.int8)
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0]]), values, values.shape, is_coalesced=True, check_invariants=False
    )
    with refused(MismatchError, "sparse", "2147483664", "still usable"):
        dist.all_reduce(sparse)
    still_works()


def case_argument_that_is_not_a_tensor(rank: int, size: int) -> None:
    if rank == 0:
        with refused((TypeError, ValueError)):
            dist.all_reduce([1.0, 2.0])
        with refused((TypeError, ValueError)):
            dist.broadcast(3, src=0)
    still_works()


def case_mixed_dtypes_in_a_list(rank: int, size: int) -> None:
    if rank == 0:
        outputs = [torch.empty(2) for _ in range(size)]
        outputs[-1] = outputs[-1].double()
        with refused((TypeError, ValueError), "dtype"):
            dist.all_gather(outputs, torch.ones(2))
        with refused((TypeError, ValueError), "dtype"):
            dist.reduce_scatter(torch.empty(2, dtype=torch.int32), [torch.ones(2)] * size)
        with refused((TypeError, ValueError), "dtype"):
            dist.all_to_all(outputs, [torch.ones(2)] * size)
        with refused((TypeError, ValueError), "dtype"):
            dist.all_gather_into_tensor(torch.empty(2 * size).double(), torch.ones(2))
        with refused((TypeError, ValueError), "dtype"):
            dist.all_to_all_single(torch.empty(size).double(), torch.ones(size))
    still_works()


def case_output_of_wrong_size(rank: int, size: int) -> None:
    if rank == 0:
        with refused(ValueError, "output"):
            dist.all_gather_into_tensor(torch.empty(2 * size + 1), torch.ones(2))
        with refused(ValueError, "output"):
            dist.all_gather([torch.empty(2)] * (size + 1), torch.ones(2))
        with refused(ValueError, "output"):
            dist.all_gather([torch.empty(3) for _ in range(size)], torch.ones(2))
        with refused(ValueError, "input"):
            dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * size + 1))
        with refused(ValueError, "input"):
            dist.reduce_scatter(torch.empty(2), [torch.ones(2)] * (size + 1))
        with refused(ValueError, "output"):
            dist.gather(torch.ones(2), [torch.empty(3) for _ in range(size)], dst=0)
        with refused(ValueError, "input"):
            dist.scatter(torch.ones(2), [torch.ones(3) for _ in range(size)], src=0)
        with refused(ValueError):
            dist.all_to_all([torch.empty(1)] * (size + 1), [torch.ones(1)] * size)
    still_works()


def case_split_sizes(rank: int, size: int) -> None:
    if rank == 0:
        with refused(ValueError, "output_split_sizes"):
            dist.all_to_all_single(torch.empty(size), torch.ones(size), [2] * size, [1] * size)
        with refused(ValueError, "input_split_sizes"):
            dist.all_to_all_single(torch.empty(size), torch.ones(size), None, [1] * (size + 1))
    if rank == 0 and size > 1:
        with refused(ValueError, "rows"):
            dist.all_to_all_single(torch.empty(size + 1), torch.ones(size + 1))
    still_works()


def case_rank_out_of_range(rank: int, size: int) -> None:
    wrong = (ValueError, RuntimeError)
    if rank == 0:
        for peer in (size, -1, 99):
            with refused(wrong):
                dist.broadcast(torch.ones(1), src=peer)
            with refused(wrong):
                dist.reduce(torch.ones(1), dst=peer)
            with refused(wrong):
                dist.send(torch.ones(1), dst=peer)
        with refused(wrong, str(size)):
            dist.recv(torch.ones(1), src=size)
        with refused(wrong):
            dist.new_group([0, size])
    still_works()


def case_message_to_own_rank(rank: int, size: int) -> None:
    with refused(ValueError):
        dist.send(torch.ones(1), dst=rank)
    with refused(ValueError):
        dist.recv(torch.ones(1), src=rank)
    still_works()


def case_negative_tag(rank: int, size: int) -> None:
    if size > 1:
        with refused(ValueError, "tag"):
            dist.isend(torch.ones(1), dst=(rank + 1) % size, tag=-3)
    still_works()


def case_unsupported_operation(rank: int, size: int) -> None:
    bad = [
        (torch.ones(2), dist.ReduceOp.BAND, "BAND"),
        (torch.ones(2), dist.ReduceOp.BOR, "BOR"),
        (torch.ones(2).half(), dist.ReduceOp.BXOR, "BXOR"),
        (torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX, "MAX"),
        (torch.ones(2, dtype=torch.complex128), dist.ReduceOp.MIN, "MIN"),
        (torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG, "AVG"),
        (torch.ones(2, dtype=torch.int32), dist._make_nccl_premul_sum(2.0), "PREMUL_SUM"),
    ]
    if rank == 0:
        for tensor, op, word in bad:
            with refused((TypeError, RuntimeError, ValueError), word):
                dist.all_reduce(tensor, op)
    still_works()


def case_memory_that_cannot_hold_a_result(rank: int, size: int) -> None:
    shared = torch.ones(1).expand(3)
    if rank == 0:
        with refused(ValueError, "share memory"):
            dist.all_reduce(shared)
        with refused(ValueError, "share memory"):
            dist.all_gather([shared] * size, torch.ones(3))
        with refused(ValueError, "share memory"):
            dist.reduce_scatter(shared, [torch.ones(3)] * size)
    still_works()
    dist.broadcast(shared if rank == 0 else torch.zeros(3), src=0)  # it can be read


def case_asynchronous_call_raises_argument_errors_at_once(rank: int, size: int) -> None:
    if rank == 0:
        with refused(ValueError, "meta"):
            dist.all_reduce(torch.empty(2, device="meta"), async_op=True)
    still_works()


def case_destroyed_group(rank: int, size: int) -> None:
    group = dist.new_group()
    still_works(group)
    dist.destroy_process_group(group)
    with refused((ClosedGroupError, ValueError), "group"):
        dist.all_reduce(torch.ones(1), group=group)
    with refused(ClosedGroupError, "destroyed"):
        group.allreduce([torch.ones(1)])
    with refused(ClosedGroupError, "destroyed"):
        group.send([torch.ones(1)], (rank + 1) % size, 0)
    with refused(ClosedGroupError, "destroyed"):
        group.barrier()
    still_works()


@sizes(2, 3, 4)
def case_group_without_this_rank(rank: int, size: int) -> None:
    group = dist.new_group([0])
    value = torch.full((1,), 7.0)
    dist.all_reduce(value, group=group)  # torch warns, and does nothing on ranks outside
    equal(value, [7.0])
    if rank == 0:
        dist.destroy_process_group(group)
    still_works()


@sizes(2, 3, 4)
def case_message_longer_than_the_tensor(rank: int, size: int) -> None:
    for count in (100, 10_000, 300_000):  # within one packet, and by rendezvous
        group = dist.new_group()
        if rank == 0:
            dist.isend(torch.ones(2 * count), dst=1, group=group).wait()
        elif rank == 1:
            memory = torch.zeros(4 * count)
            with raises(CommunicationError, "longer"):
                dist.recv(memory[:count], src=0, group=group)
            equal(memory[count:], torch.zeros(3 * count))
        _finish(group, rank)
    still_works()


def _finish(group: dist.ProcessGroup, rank: int) -> None:
    dist.barrier()
    dist.destroy_process_group(group)


@sizes(2, 3, 4)
def case_message_shorter_than_the_tensor(rank: int, size: int) -> None:
    for count in (10, 300_000):
        if rank == 0:
            dist.send(torch.ones(count // 2), dst=1)
        elif rank == 1:
            with raises(CommunicationError, f"{count // 2} elements", f"room for {count}"):
                dist.recv(torch.zeros(count), src=0)
    still_works()
