"""The way of CUDA tensors, driven by CPU tensors: host copies before, copies back after.

``is_host`` is the one place that decides it, and ``takes_cuda`` whether MPI can do without copies.
Streams, events and the current GPU need a GPU and are not run here; which tensors are copied, when,
and what comes back is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
import torch.distributed as dist
from torch_mpi4py import buffers, gpus, process_group

from tests.torch_mpi4py.helpers import equal, sizes, still_works


@contextlib.contextmanager
def no_tensor_is_on_the_host() -> Iterator[mock.Mock]:
    """Have every tensor staged, and count the copies back."""
    # MPI must still be able to read what staging hands out, so host copies are told by identity.
    staged: dict[int, torch.Tensor] = {}  # kept, so that no other tensor gets the address
    plain_memory = buffers.Staging._host_memory

    def host_memory(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        host = plain_memory(tensor, dtype)
        staged[host.data_ptr()] = host
        return host

    with (
        # What was found to be on the host before, at the same address, would not be asked again.
        mock.patch.dict(process_group._known_all_reduces, clear=True),
        mock.patch.object(buffers, "is_host", lambda tensor: tensor.data_ptr() in staged),
        mock.patch.object(buffers.Staging, "_host_memory", staticmethod(host_memory)),
        mock.patch.object(buffers, "_to_device", wraps=buffers._to_device) as copied_back,
    ):
        yield copied_back


def case_collectives(rank: int, size: int) -> None:
    total = size * (size + 1) / 2
    with no_tensor_is_on_the_host() as copied_back:
        value = torch.full((2, 3), rank + 1.0)
        dist.all_reduce(value)
        equal(value, torch.full((2, 3), total))
        assert copied_back.call_count == 1
        value = torch.full((3,), rank + 1.0)
        dist.all_reduce(value, dist.ReduceOp.AVG, async_op=True).wait()
        equal(value, [total / size] * 3)
        half = torch.full((3,), rank + 1.0, dtype=torch.bfloat16)
        dist.all_reduce(half)
        equal(half, [total] * 3)
        value = torch.full((3,), float(rank))
        copied_back.reset_mock()
        dist.broadcast(value, src=size - 1)
        equal(value, [size - 1.0] * 3)
        assert copied_back.call_count == (rank != size - 1), "the root needs no copy back"
        value = torch.full((3,), rank + 1.0)
        dist.reduce(value, dst=0)
        equal(value, [total if rank == 0 else rank + 1.0] * 3)


def case_cuda_aware(rank: int, size: int) -> None:
    """Such an MPI gets the tensors themselves where nothing but they is needed, else copies."""
    total = size * (size + 1) / 2
    with (
        no_tensor_is_on_the_host() as copied_back,
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
        assert copied_in.call_count == copied_back.call_count == 0
    with (
        no_tensor_is_on_the_host() as copied_back,
        mock.patch.object(gpus, "takes_cuda", return_value=True),
    ):
        for tensor, op, expected in (
            (torch.full((3,), rank + 1.0, dtype=torch.bfloat16), dist.ReduceOp.SUM, total),
            (torch.full((3,), rank + 1.0), dist.ReduceOp.AVG, total / size),
            (torch.full((3, 2), rank + 1.0)[:, 0], dist.ReduceOp.SUM, total),
        ):
            copied_back.reset_mock()
            dist.all_reduce(tensor, op)
            equal(tensor, [expected] * 3)
            assert copied_back.call_count == 1, (tensor.dtype, op)


def case_gathers_and_scatters(rank: int, size: int) -> None:
    everyone = torch.arange(float(size)).repeat_interleave(2)
    with no_tensor_is_on_the_host():
        output = torch.full((2 * size,), -1.0)
        dist.all_gather_single(output, torch.full((2,), float(rank)))
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
        dist.reduce_scatter_single(part, everyone)
        equal(part, [float(rank * size)] * 2)
        output = torch.full((size,), -1.0)
        dist.all_to_all_single(output, torch.arange(float(size)) + 10 * rank)
        equal(output, [10.0 * r + rank for r in range(size)])


@sizes(2, 3, 4)
def case_point_to_point(rank: int, size: int) -> None:
    with no_tensor_is_on_the_host() as copied_back:
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
        assert copied_back.call_count == 1


def case_ddp(rank: int, size: int) -> None:
    with no_tensor_is_on_the_host() as copied_back:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        copied_back.reset_mock()
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
        equal(model.module.weight.grad, [[(size + 1) / 2] * 2])
        assert copied_back.call_count == 1
    still_works()
