"""What comes with PyTorch and stands on a backend gives the same results here as on gloo.

Other modules compare much of this with a serial model, to rounding; here it is bit for bit.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.ranks import case
from tests.torch_mpi4py.beside_gloo import same_as_gloo, values_of
from tests.torch_mpi4py.cases.data_parallel import TINY_MB
from tests.torch_mpi4py.serial import INPUTS, loss_of, mlp, sgd, shard

CPU = torch.profiler.ProfilerActivity.CPU
own_group = case(group=False, seconds=90)
# Sums of more than two bfloat16: gloo rounds after each addition, this backend once at the end.
BFLOAT16_TOLERANCE = 2e-2


def trained(rank: int, model: nn.Module, optimizer=None, steps: int = 4) -> list[torch.Tensor]:
    """Train and return this rank's losses."""
    optimizer = optimizer or sgd(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step, rank)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


@own_group
def case_ddp_static_graph(rank, size):
    def program(folder: Path):
        model = DDP(mlp(seed=rank), static_graph=True, bucket_cap_mb=TINY_MB)
        return trained(rank, model), values_of(model)

    same_as_gloo(program, rank, size)


@own_group
def case_replicate(rank, size):
    from torch.distributed._composable.replicate import replicate

    def program(folder: Path):
        model = replicate(mlp(), bucket_cap_mb=TINY_MB)
        return trained(rank, model), values_of(model)

    same_as_gloo(program, rank, size)


@own_group
def case_zero_redundancy_optimizer(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def program(folder: Path):
        model = DDP(mlp(), bucket_cap_mb=TINY_MB)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        losses = trained(rank, model, optimizer)
        optimizer.consolidate_state_dict(to=0)
        state = optimizer.state_dict()["state"] if rank == 0 else {}
        return losses, values_of(model), state

    same_as_gloo(program, rank, size)


@own_group
def case_join_with_ddp_and_zero(rank, size):
    """Rank r has r + 2 batches; both the model and the optimizer shadow those who go on."""

    from torch.distributed.optim import ZeroRedundancyOptimizer

    def program(folder: Path):
        model = DDP(mlp(), bucket_cap_mb=TINY_MB)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        with Join([model, optimizer]):
            losses = trained(rank, model, optimizer, steps=rank + 2)
        return losses, values_of(model)

    same_as_gloo(program, rank, size)


@own_group
def case_fsdp1(rank, size):
    def program(folder: Path):
        results = []
        for precision in (None, MixedPrecision(param_dtype=torch.float32)):
            model = FSDP(
                mlp(),
                device_id=torch.get_default_device(),
                auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
                mixed_precision=precision,
                use_orig_params=True,
            )
            losses = trained(rank, model)
            with FSDP.summon_full_params(model):
                results.append((losses, values_of(model)))
        return results

    # The second model computes in float32, and gloo adds three numbers in another order.
    same_as_gloo(program, rank, size, tolerance=1e-5)


def fsdp2(model: nn.Module, **options) -> nn.Module:
    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@own_group
def case_fsdp2(rank, size):
    def program(folder: Path):
        model = fsdp2(mlp())
        return trained(rank, model), values_of(model)

    same_as_gloo(program, rank, size)


@own_group
def case_fsdp2_in_bfloat16(rank, size):
    """Parameters travel as bfloat16, gradients as float32 and as bfloat16."""

    def program(folder: Path):
        results = []
        for reduce_dtype in (torch.float32, torch.bfloat16):
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
            model = fsdp2(mlp(), mp_policy=policy)
            results.append((trained(rank, model), values_of(model)))
        return results

    same_as_gloo(program, rank, size, tolerance=BFLOAT16_TOLERANCE)


@own_group
def case_checkpoint(rank, size):
    """Saved by ``save`` and by ``async_save``, loaded into another model, trained on."""

    def program(folder: Path):
        model = fsdp2(mlp())
        optimizer = sgd(model)
        trained(rank, model, optimizer, steps=2)
        parameters, momentum = get_state_dict(model, optimizer)
        state = {"model": parameters, "optimizer": momentum}
        dcp.save(state, checkpoint_id=folder / "now")
        # Saving meets on a thread: in the default group its calls would mix with those of training.
        own = dist.new_group()
        pending = dcp.async_save(state, checkpoint_id=folder / "later", process_group=own)
        trained(rank, model, optimizer, steps=2)  # what is saved was copied before
        pending.result()
        results = [values_of(model)]
        for name in ("now", "later"):
            other = fsdp2(mlp(seed=9))
            optimizer = sgd(other)
            parameters, momentum = get_state_dict(other, optimizer)
            state = {"model": parameters, "optimizer": momentum}
            dcp.load(state, checkpoint_id=folder / name)
            set_state_dict(other, optimizer, model_state_dict=parameters, optim_state_dict=momentum)
            trained(rank, other, optimizer, steps=2)
            results.append(values_of(other))
        return results

    straight_on, from_now, from_later = same_as_gloo(program, rank, size)
    torch.testing.assert_close(from_now, straight_on, rtol=0, atol=0)
    torch.testing.assert_close(from_later, straight_on, rtol=0, atol=0)


@own_group
def case_loss_parallel(rank, size):
    """The classes of the last layer are split, and the loss is computed on the pieces."""
    classes = 12

    def model_and_data():
        torch.manual_seed(2)
        layers = (nn.Linear(INPUTS, 24), nn.ReLU(), nn.Linear(24, 24), nn.Linear(24, classes))
        inputs, _ = shard(0, 0)
        return nn.Sequential(*layers).double(), inputs, torch.arange(len(inputs)) % classes

    def program(folder: Path):
        model, inputs, labels = model_and_data()
        plan = {
            "0": ColwiseParallel(),
            "2": RowwiseParallel(output_layouts=Replicate()),
            "3": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(model, init_device_mesh(torch.get_default_device().type, (size,)), plan)
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
        gradients = [parameter.grad.full_tensor() for parameter in model.parameters()]
        return loss.full_tensor().detach(), gradients

    loss, gradients = same_as_gloo(program, rank, size)
    model, inputs, labels = model_and_data()
    alone = nn.functional.cross_entropy(model(inputs), labels)
    alone.backward()
    torch.testing.assert_close(loss, alone.detach(), rtol=1e-10, atol=1e-10)
    wanted = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(gradients, wanted, rtol=1e-10, atol=1e-10)


@case(group=False, sizes=(2,), seconds=90)
def case_profile_has_the_operations_that_gloos_has(rank, size):
    def program(folder: Path):
        ones, sparse = torch.ones(1000), torch.eye(3).to_sparse()
        model = DDP(mlp())
        with torch.profiler.profile(activities=[CPU], record_shapes=True) as found:
            dist.all_reduce(ones)
            dist.all_reduce(ones, async_op=True).wait()
            dist.all_reduce(sparse)
            dist.broadcast(ones, 0)
            dist.all_gather([torch.empty(1000) for _ in range(size)], ones)
            dist.barrier()
            dist.send(ones, 1) if rank == 0 else dist.recv(ones, 0)
            funcol.wait_tensor(funcol.all_reduce(ones, "sum", dist.group.WORLD))
            loss_of(model, 0, rank).backward()
        counts = Counter[str]()
        for event in found.events():
            backend, _, name = event.name.partition(":")
            if backend in {"gloo", "mpi4py"}:
                counts[name.removeprefix("sparse_")] += 1
                if name in {"all_reduce", "broadcast", "send", "recv"}:
                    counts[f"{name} {event.input_shapes}"] += 1
        return {name: count for name, count in counts.items() if "3, 3" not in name}

    assert same_as_gloo(program, rank, size)["all_reduce [[1000]]"] == 3


@own_group
def case_collective_inside_a_gradient_of_torch_func(rank, size):
    def program(folder: Path):
        def loss(x: torch.Tensor) -> torch.Tensor:
            total = (x * x * x).sum()
            dist.all_reduce(total)
            dist.all_reduce(total, async_op=True).wait()
            dist.broadcast(total, 0)
            return total

        def slope(x: torch.Tensor) -> torch.Tensor:
            return torch.func.grad(loss)(x).sum()

        x = torch.arange(3, dtype=torch.float64) + rank
        return torch.func.grad_and_value(loss)(x), torch.func.grad(slope)(x)

    same_as_gloo(program, rank, size)


@case(sizes=(2,))
def case_profile_shows_an_asynchronous_operation_until_its_end(rank, size):
    one, found = torch.ones(1), []
    for ends_in_time in (True, False):
        dist.barrier()
        if rank == 0:
            with torch.profiler.profile(activities=[CPU]) as profile:
                work = dist.all_reduce(one, async_op=True)
                torch.zeros(3).add_(1)
                if ends_in_time:
                    dist.send(one, 1)
                    work.wait()
            if not ends_in_time:
                dist.send(one, 1)
                work.wait()
            found.append({event.name: event.time_range for event in profile.events()})
        else:
            dist.recv(torch.ones(1), 0)
            dist.all_reduce(one)
    for times in found:
        assert times["mpi4py:all_reduce"].start < times["aten::add_"].start
        assert times["mpi4py:all_reduce"].end > times["aten::add_"].end
