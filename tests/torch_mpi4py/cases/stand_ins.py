"""Tensors that have no memory: they stand for others, or have a shape and no values."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from tests.ranks import case
from tests.torch_mpi4py.cases.collectives import same, total, values
from tests.torch_mpi4py.helpers import raises, still_works


def case_results_of_functional_collectives(rank, size):
    """They are tensors that wait for the result when it is used, by another collective as well."""

    def pending(*shape):
        result = funcol.all_reduce(values(rank, *shape), "sum", dist.group.WORLD)
        assert isinstance(result, funcol.AsyncCollectiveTensor)
        return result

    tensor = pending(3)
    dist.all_reduce(tensor)
    same(tensor + 0, size * total(size, 3))
    tensor = pending(3)
    dist.broadcast(tensor, 0, async_op=True).wait()
    same(tensor + 0, total(size, 3))
    parts = [pending(3) for _ in range(size)]
    dist.all_gather(parts, pending(3))
    same(parts[-1] + 0, total(size, 3))
    whole = torch.zeros(3 * size)
    dist.all_gather_into_tensor(whole, pending(3))
    same(whole, total(size, 3).repeat(size))
    mine = torch.zeros(2)
    dist.reduce_scatter(mine, [pending(2) for _ in range(size)])
    same(mine, size * total(size, 2))


@case(sizes=(2,))
def case_messages_of_functional_results(rank, size):
    tensor = funcol.all_reduce(values(rank, 3), "sum", dist.group.WORLD)
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    same(tensor + 0, total(size, 3))


def take_every_call(like: torch.Tensor, rank: int, size: int) -> None:
    """Call everything that takes tensors with tensors like ``like``, whose values don't count."""
    parts = [like.clone() for _ in range(size)]
    whole = torch.cat(parts)
    dist.all_reduce(like)
    dist.all_reduce(like, async_op=True).wait()
    dist.broadcast(like, 0)
    dist.reduce(like, 0)
    dist.all_gather(parts, like)
    dist.all_gather_into_tensor(whole, like)
    dist.gather(like, parts if rank == 0 else None)
    dist.scatter(like, parts if rank == 0 else None)
    dist.reduce_scatter(like, parts)
    dist.reduce_scatter_tensor(like, whole)
    if dist.get_backend() != "gloo":  # of torch 2.11 it has none
        dist.all_to_all(parts, [part.clone() for part in parts])
    dist.all_to_all_single(whole, whole.clone())
    for peer in {0, size - 1} - {rank}:
        dist.send(like, peer)
        dist.irecv(like, peer).wait()


def case_fake_tensors(rank, size):
    """As with torch's own groups nothing is sent, and no call waits."""
    with FakeTensorMode():
        take_every_call(torch.ones(3), rank, size)
    dist.barrier()
    if dist.get_backend() != "gloo":
        still_works()


def case_tensors_without_memory_raise(rank, size):
    """The error names the call, and the group can be used."""
    if dist.get_backend() == "gloo":
        return
    replicated = distribute_tensor(torch.ones(3), init_device_mesh("cpu", (size,)), [Replicate()])
    with raises(TypeError, "broadcast", "DTensor", "functional"):
        dist.broadcast(replicated, 0)
    for call in (dist.all_reduce, lambda tensor: dist.broadcast(tensor, 0)):
        with raises(TypeError, "stands for other tensors"):
            torch.func.functionalize(call)(torch.ones(3))
    still_works()
