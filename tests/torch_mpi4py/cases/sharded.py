"""Parameters split over ranks (FSDP, DTensor, tensor parallel) train the same."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from tests.ranks import case
from tests.torch_mpi4py import serial
from tests.torch_mpi4py.cases.collectives import same, values
from tests.torch_mpi4py.serial import (
    TOLERANCE,
    equal_parameters,
    mlp,
    sgd,
    train_rank,
    train_serially,
)


def case_fsdp1(rank, size):
    expected = train_serially(mlp(), size)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        model = FSDP(
            mlp(),
            device_id=torch.get_default_device(),
            sharding_strategy=strategy,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            use_orig_params=True,
        )
        train_rank(model, rank)
        with FSDP.summon_full_params(model):
            for name, value in expected.named_parameters():
                found = dict(model.named_parameters())
                (match,) = [
                    p for n, p in found.items() if n.replace("_fsdp_wrapped_module.", "") == name
                ]
                torch.testing.assert_close(match, value, rtol=TOLERANCE, atol=TOLERANCE)


def shard_layers(model: nn.Module, mesh) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def case_fsdp2(rank, size):
    model = shard_layers(mlp(), init_device_mesh(torch.get_default_device().type, (size,)))
    assert isinstance(next(model.parameters()), DTensor)
    train_rank(model, rank)
    equal_parameters(model, train_serially(mlp(), size), moved_from=mlp())


def case_fsdp2_uneven_layers(rank, size):
    """A width that no number of ranks from 2 to 4 divides."""
    model = shard_layers(mlp(width=13), init_device_mesh(torch.get_default_device().type, (size,)))
    train_rank(model, rank)
    equal_parameters(model, train_serially(mlp(width=13), size))


@case(sizes=(4,))
def case_hybrid_sharding(rank, size):
    """Sharded in pairs, replicated over the pairs."""
    mesh = init_device_mesh(
        torch.get_default_device().type, (2, 2), mesh_dim_names=("replicate", "shard")
    )
    model = shard_layers(mlp(), mesh)
    train_rank(model, rank)
    equal_parameters(model, train_serially(mlp(), size))


def case_dtensor_redistribute(rank, size):
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    whole = values(0, 2 * size, 3 * size)
    rows = distribute_tensor(whole.clone(), mesh, [Shard(0)])
    same(rows.to_local(), whole.chunk(size, 0)[rank])
    columns = rows.redistribute(mesh, [Shard(1)])
    same(columns.to_local().contiguous(), whole.chunk(size, 1)[rank].contiguous())
    same(columns.full_tensor(), whole)
    partial = DTensor.from_local(values(rank, 4, size), mesh, [Partial()])
    expected = sum(values(r, 4, size) for r in range(size))
    same(partial.redistribute(mesh, [Replicate()]).to_local(), expected)
    same(partial.redistribute(mesh, [Shard(1)]).full_tensor(), expected)


def case_dtensor_uneven_shards(rank, size):
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    whole = values(0, 2 * size + 1, 3)
    rows = distribute_tensor(whole.clone(), mesh, [Shard(0)])
    same(rows.full_tensor(), whole)
    same(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)


def case_dtensor_matmul(rank, size):
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    a, b = values(0, 4, 2 * size), values(1, 2 * size, 3)
    product = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])
    same(product.full_tensor(), a @ b)


def tensor_parallel(model: nn.Module, mesh) -> nn.Module:
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def case_tensor_parallel(rank, size):
    """All ranks see one batch; the layers are split."""
    if 12 % size:
        raise AssertionError("width 12 must be divisible by the number of ranks")
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    model = tensor_parallel(mlp(width=12), mesh)
    train_rank(model, rank=0)
    equal_parameters(model, train_serially(mlp(width=12), 1))


@case(sizes=(4,))
def case_tensor_parallel_within_data_parallel(rank, size):
    """FSDP2 over two groups, tensor parallel within each."""
    mesh = init_device_mesh(
        torch.get_default_device().type, (2, 2), mesh_dim_names=("data", "tensor")
    )
    model = tensor_parallel(mlp(width=12), mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    train_rank(model, rank // 2)
    equal_parameters(model, train_serially(mlp(width=12), 2))


def case_gradient_clipping_uses_the_global_norm(rank, size):
    model = shard_layers(mlp(), init_device_mesh(torch.get_default_device().type, (size,)))
    serial.loss_of(model, 0, rank).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
    expected = mlp()
    (sum(serial.loss_of(expected, 0, r) for r in range(size)) / size).backward()
    wanted = nn.utils.clip_grad_norm_(expected.parameters(), 0.1)
    torch.testing.assert_close(norm, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def shared_folder(rank: int) -> str:
    """Return a folder that all ranks know; rank 0 makes it."""
    import tempfile

    name = [tempfile.mkdtemp(prefix="checkpoint") if rank == 0 else None]
    dist.broadcast_object_list(name, src=0)
    return name[0]


def case_distributed_checkpoint(rank, size):
    """Save sharded parameters and momentum, go on, come back, and go on the same."""
    import shutil

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder = shared_folder(rank)
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    model = shard_layers(mlp(), mesh)
    optimizer = sgd(model)
    train_rank(model, rank, optimizer=optimizer, steps=2)
    parameters, momentum = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": momentum}, checkpoint_id=folder)

    fresh = shard_layers(mlp(seed=9), mesh)
    fresh_optimizer = sgd(fresh)
    parameters, momentum = get_state_dict(fresh, fresh_optimizer)
    dcp.load({"model": parameters, "optimizer": momentum}, checkpoint_id=folder)
    set_state_dict(fresh, fresh_optimizer, model_state_dict=parameters, optim_state_dict=momentum)
    train_rank(model, rank, optimizer=optimizer, steps=2)
    train_rank(fresh, rank, optimizer=fresh_optimizer, steps=2)
    for found, wanted in zip(fresh.parameters(), model.parameters(), strict=True):
        same(found.to_local(), wanted.to_local())
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


def case_checkpoint_of_many_ranks_read_by_one(rank, size):
    """What ``size`` ranks saved is loaded into other layouts, and without any group."""
    import shutil

    import torch.distributed.checkpoint as dcp

    folder = shared_folder(rank)
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    whole = values(3, 2 * size + 1, 2 * size)
    dcp.save({"w": distribute_tensor(whole.clone(), mesh, [Shard(0)])}, checkpoint_id=folder)
    other = {"w": distribute_tensor(torch.zeros_like(whole), mesh, [Shard(1)])}
    dcp.load(other, checkpoint_id=folder)
    same(other["w"].full_tensor(), whole)
    if rank == 0:
        alone = {"w": torch.zeros_like(whole)}
        dcp.load(alone, checkpoint_id=folder, no_dist=True)
        same(alone["w"], whole)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
