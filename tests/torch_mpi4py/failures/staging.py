"""The way of CUDA tensors, driven by CPU tensors: host copies before, copies back after.

``is_host`` is the one place that decides it, and ``takes_cuda`` whether MPI can do without copies.
Streams, events and the current GPU need a GPU and are not run here; which tensors are copied, when,
and what comes back is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch_mpi4py import DeliveryError
from torch_mpi4py.core import buffers, gpus
from torch_mpi4py.group import collectives, process_group

from tests.torch_mpi4py.cases import buffers as cases
from tests.torch_mpi4py.helpers import equal, raises, sizes, still_works


class Copied:
    """How many tensors were copied back, and where MPI's own memory lies."""

    def __init__(self) -> None:
        self.back = 0
        self.hosts: dict[int, torch.Tensor] = {}  # kept, so that no other gets the address


@contextlib.contextmanager
def no_tensor_is_on_the_host() -> Iterator[Copied]:
    """Have every tensor staged, and count the copies back."""
    # MPI must still be able to read what staging hands out, so host copies are told by identity.
    copied = Copied()
    plain_memory, plain_finish = buffers.host_memory, buffers.Staging.finish

    def host_memory(*arguments: Any) -> torch.Tensor:
        host = plain_memory(*arguments)
        copied.hosts[host.data_ptr()] = host
        return host

    def finish(staging: buffers.Staging) -> None:
        copied.back += len(staging._returns)
        plain_finish(staging)

    with (
        # What was found to be on the host before, at the same address, would not be asked again.
        mock.patch.dict(process_group._known_all_reduces, clear=True),
        mock.patch.object(buffers, "is_host", lambda tensor: tensor.data_ptr() in copied.hosts),
        mock.patch.object(buffers, "host_memory", host_memory),
        mock.patch.object(collectives, "host_memory", host_memory),
        mock.patch.object(buffers.Staging, "finish", finish),
    ):
        yield copied


def case_collectives(rank: int, size: int) -> None:
    total = size * (size + 1) / 2
    with no_tensor_is_on_the_host() as copied:
        value = torch.full((2, 3), rank + 1.0)
        dist.all_reduce(value)
        equal(value, torch.full((2, 3), total))
        assert copied.back == 1
        value = torch.full((3,), rank + 1.0)
        dist.all_reduce(value, dist.ReduceOp.AVG, async_op=True).wait()
        equal(value, [total / size] * 3)
        half = torch.full((3,), rank + 1.0, dtype=torch.bfloat16)
        dist.all_reduce(half)
        equal(half, [total] * 3)
        value = torch.full((3,), float(rank))
        copied.back = 0
        dist.broadcast(value, src=size - 1)
        equal(value, [size - 1.0] * 3)
        assert copied.back == (rank != size - 1), "the root needs no copy back"
        value = torch.full((3,), rank + 1.0)
        dist.reduce(value, dst=0)
        equal(value, [total if rank == 0 else rank + 1.0] * 3)


def case_cuda_aware(rank: int, size: int) -> None:
    """Such an MPI gets the tensors themselves where nothing but they is needed, else copies."""
    total = size * (size + 1) / 2
    with (
        no_tensor_is_on_the_host() as copied,
        mock.patch.object(gpus, "takes_cuda", return_value=True),
        mock.patch.object(buffers.Staging, "_copy_in") as copied_in,
    ):
        value = torch.full((2, 3), rank + 1.0)
        dist.all_reduce(value)
        equal(value, torch.full((2, 3), total))
        value = torch.full((3,), float(rank))
        dist.broadcast(value, src=size - 1)
        equal(value, [size - 1.0] * 3)
        value = torch.full((3,), rank + 1.0)
        dist.reduce(value, dst=0)
        assert rank or value.tolist() == [total] * 3
        assert copied_in.call_count == copied.back == 0
    with (
        no_tensor_is_on_the_host() as copied,
        mock.patch.object(gpus, "takes_cuda", return_value=True),
    ):
        for tensor, op, expected in (
            (torch.full((3,), rank + 1.0, dtype=torch.bfloat16), dist.ReduceOp.SUM, total),
            (torch.full((3,), rank + 1.0), dist.ReduceOp.AVG, total / size),
            (torch.full((3, 2), rank + 1.0)[:, 0], dist.ReduceOp.SUM, total),
        ):
            copied.back = 0
            dist.all_reduce(tensor, op)
            equal(tensor, [expected] * 3)
            assert copied.back == 1, (tensor.dtype, op)


def case_gathers_and_scatters(rank: int, size: int) -> None:
    everyone = torch.arange(float(size)).repeat_interleave(2)
    with no_tensor_is_on_the_host():
        output = torch.full((2 * size,), -1.0)
        dist.all_gather_into_tensor(output, torch.full((2,), float(rank)))
        equal(output, everyone)
        outputs = [torch.full((r + 1,), -1.0) for r in range(size)]
        dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
        for r, part in enumerate(outputs):
            equal(part, torch.full((r + 1,), float(r)))
        outputs = [torch.full((2,), -1.0) for _ in range(size)] if rank == 0 else None
        dist.gather(torch.full((2,), float(rank)), outputs)
        assert rank or torch.equal(torch.cat(outputs), everyone)
        part = torch.full((2,), -1.0)
        dist.scatter(part, [torch.full((2,), float(r)) for r in range(size)] if not rank else None)
        equal(part, [float(rank)] * 2)
        dist.reduce_scatter_tensor(part, everyone)
        equal(part, [float(rank * size)] * 2)
        output = torch.full((size,), -1.0)
        dist.all_to_all_single(output, torch.arange(float(size)) + 10 * rank)
        equal(output, [10.0 * r + rank for r in range(size)])


@sizes(2, 3, 4)
def case_point_to_point(rank: int, size: int) -> None:
    with no_tensor_is_on_the_host() as copied:
        value = torch.full((3,), -1.0)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % size),
                dist.P2POp(dist.irecv, value, (rank - 1) % size),
            ]
        )
        for work in works:
            work.wait()
        equal(value, [float((rank - 1) % size)] * 3)
        assert copied.back == 1


def case_ddp(rank: int, size: int) -> None:
    with no_tensor_is_on_the_host() as copied:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        copied.back = 0
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
        equal(model.module.weight.grad, [[(size + 1) / 2] * 2])
        assert copied.back == 1
    still_works()


def case_operation_reads_results_of_earlier_operations(rank: int, size: int) -> None:
    with no_tensor_is_on_the_host():
        cases.check_chains(rank, size)


def case_results_are_written_as_gloo_writes_them(rank: int, size: int) -> None:
    with no_tensor_is_on_the_host():
        cases.case_results_are_written_as_gloo_writes_them(rank, size)


def case_collectives_write_outside_autograd(rank: int, size: int) -> None:
    with no_tensor_is_on_the_host():
        cases.case_collectives_write_outside_autograd(rank, size)


def case_premultiplied_sum_factor_is_staged(rank: int, size: int) -> None:
    scale = mock.patch.object(collectives, "scale_before", wraps=collectives.scale_before)
    with no_tensor_is_on_the_host() as copied, scale as scaled:
        operation = dist._make_nccl_premul_sum(torch.tensor(2.0))
        value = torch.full((3,), rank + 1.0)
        dist.all_reduce(value, operation)
        equal(value, [size * (size + 1.0)] * 3)
        dist.reduce(value, 0, operation)
        dist.reduce_scatter(value[0], [*value[:1].clone()] * size, operation)
        assert scaled.call_count == 3
        for call in scaled.call_args_list:
            assert call.args[1].data_ptr() in copied.hosts


def case_unwritable_result_raises_on_one_rank_only(rank: int, size: int) -> None:
    """As where the GPU has no memory left: the others have the result, and the group lives."""
    plain_copy = buffers.Staging._copy

    def copy(staging: buffers.Staging, pairs: list) -> None:
        if rank == size - 1 and pairs is staging._returns:
            raise torch.OutOfMemoryError("no memory left")
        plain_copy(staging, pairs)

    fails = contextlib.nullcontext() if rank < size - 1 else raises(DeliveryError, "no memory left")
    value = torch.full((3,), rank + 1.0)
    with no_tensor_is_on_the_host(), mock.patch.object(buffers.Staging, "_copy", copy):
        with fails:
            dist.all_reduce(value)
        with fails:
            dist.all_gather([torch.empty(3) for _ in range(size)], value, async_op=True).wait()
        if size > 1:
            work = dist.isend(torch.ones(3), (rank + 1) % size)
            receive = dist.irecv(torch.empty(3), (rank - 1) % size)
            with fails:
                receive.wait()
            work.wait()
            assert receive.is_completed()
    if rank < size - 1:
        equal(value, [size * (size + 1) / 2] * 3)
    still_works()
