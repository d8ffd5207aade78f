"""DistributedDataParallel, with each of its options, trains like one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_mpi4py import Traffic

from tests.ranks import case
from tests.torch_mpi4py import serial
from tests.torch_mpi4py.serial import (
    equal_parameters,
    loss_of,
    mlp,
    sgd,
    train_rank,
    train_serially,
)

TINY_MB = 1e-4


def trained(rank: int, model: nn.Module, **options) -> nn.Module:
    ddp = DDP(model, **options)
    train_rank(ddp, rank)
    return ddp.module


def case_defaults(rank, size):
    """Replicas start apart; DDP gives all of them rank 0's parameters."""
    expected = train_serially(mlp(seed=1), size)
    equal_parameters(trained(rank, mlp(seed=1 + rank)), expected, moved_from=mlp(seed=1))


def case_many_buckets(rank, size):
    equal_parameters(trained(rank, mlp(), bucket_cap_mb=TINY_MB), train_serially(mlp(), size))


def case_gradient_as_bucket_view(rank, size):
    model = trained(rank, mlp(), gradient_as_bucket_view=True, bucket_cap_mb=TINY_MB)
    equal_parameters(model, train_serially(mlp(), size))


def case_static_graph(rank, size):
    model = trained(rank, mlp(), static_graph=True, bucket_cap_mb=TINY_MB)
    equal_parameters(model, train_serially(mlp(), size))


def case_tied_and_frozen(rank, size):
    expected = train_serially(serial.TiedAndFrozen(1), size)
    model = trained(rank, serial.TiedAndFrozen(1 + rank), bucket_cap_mb=TINY_MB)
    equal_parameters(model, expected, moved_from=serial.TiedAndFrozen(1))
    assert model.first.weight is model.second.weight


def case_find_unused_parameters(rank, size):
    """Ranks use different heads in the same step."""

    def head(step, rank):
        return ((step + rank) % 2,)

    def plain(model):  # an optimiser without memory: an unused head has no gradient at all
        return torch.optim.SGD(model.parameters(), lr=0.1)

    expected = train_serially(serial.TwoHeads(), size, arguments=head, optimiser=plain)
    ddp = DDP(serial.TwoHeads(1 + rank), find_unused_parameters=True, bucket_cap_mb=TINY_MB)
    ddp.module.load_state_dict(serial.TwoHeads().state_dict())
    train_rank(ddp, rank, arguments=head, optimizer=plain(ddp))
    equal_parameters(ddp.module, expected)


def case_no_sync(rank, size):
    """Gradients of two shards are added up before one synchronisation."""
    expected = mlp()
    optimizer = sgd(expected)
    for step in range(0, 4, 2):
        optimizer.zero_grad()
        losses = [loss_of(expected, step + i, r) for r in range(size) for i in range(2)]
        (sum(losses) / size).backward()
        optimizer.step()

    ddp = DDP(mlp(), bucket_cap_mb=TINY_MB)
    optimizer = sgd(ddp)
    for step in range(0, 4, 2):
        optimizer.zero_grad()
        with ddp.no_sync():
            loss_of(ddp, step, rank).backward()
        loss_of(ddp, step + 1, rank).backward()
        optimizer.step()
    equal_parameters(ddp.module, expected)


def case_broadcast_buffers(rank, size):
    """Running statistics are rank 0's on all ranks, at each forward."""
    torch.manual_seed(rank)
    ddp = DDP(nn.BatchNorm1d(serial.INPUTS).double(), broadcast_buffers=True)
    alone = nn.BatchNorm1d(serial.INPUTS).double()
    for step in range(3):
        ddp(serial.shard(step, rank)[0]).sum().backward()
        alone(serial.shard(step, 0)[0])
    ddp(serial.shard(3, 0)[0])  # takes rank 0's statistics first; all ranks see one shard
    alone(serial.shard(3, 0)[0])
    torch.testing.assert_close(ddp.module.running_mean, alone.running_mean)
    torch.testing.assert_close(ddp.module.running_var, alone.running_var)


def case_buffers_are_not_broadcast_when_disabled(rank, size):
    ddp = DDP(nn.BatchNorm1d(serial.INPUTS).double(), broadcast_buffers=False)
    alone = nn.BatchNorm1d(serial.INPUTS).double()
    for step in range(3):
        ddp(serial.shard(step, rank)[0]).sum().backward()
        alone(serial.shard(step, rank)[0])
    torch.testing.assert_close(ddp.module.running_mean, alone.running_mean)


def case_sync_batch_norm(rank, size):
    """On GPUs it norms as one batch does; torch has none for host tensors: its own error comes."""
    model = nn.SyncBatchNorm(serial.INPUTS).double()
    if torch.get_default_device().type == "cuda":
        alone = nn.BatchNorm1d(serial.INPUTS).double()
        whole = alone(torch.cat([serial.shard(0, r)[0] for r in range(size)]))
        torch.testing.assert_close(model(serial.shard(0, rank)[0]), whole.chunk(size)[rank])
        torch.testing.assert_close(model.running_var, alone.running_var)
        return
    try:
        model(serial.shard(0, rank)[0])
    except ValueError as error:
        assert "GPU" in str(error) or "device" in str(error)
    else:
        assert size == 1, "SyncBatchNorm now takes host tensors: compare it with serial"


def _hooked(rank: int, hook, state=None) -> nn.Module:
    ddp = DDP(mlp(), bucket_cap_mb=TINY_MB)
    ddp.register_comm_hook(state, hook)
    train_rank(ddp, rank)
    return ddp.module


def case_allreduce_hook(rank, size):
    equal_parameters(_hooked(rank, default_hooks.allreduce_hook), train_serially(mlp(), size))


def case_traffic_counts_one_all_reduce_per_bucket(rank, size):
    """One all-reduce a bucket in backward, called from C++, and none under no_sync."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    ddp = DDP(model, bucket_cap_mb=1e-4)
    for expected in ((1, 512), (2, 512)):  # the buckets are cut after the first step
        with Traffic() as traffic:
            ddp(torch.ones(1, 8)).sum().backward()
        assert traffic.collectives["all_reduce"] == expected
        assert (traffic.sent.messages, traffic.under_way) == (0, 0)
    with Traffic() as traffic, ddp.no_sync():
        ddp(torch.ones(1, 8)).sum().backward()
    assert "all_reduce" not in traffic.collectives


def case_half_precision_hooks(rank, size):
    """Gradients lose precision on the way: 11 bits in fp16, 8 in bf16, over four steps."""
    expected = train_serially(mlp(), size)

    def bfloat16(state, bucket):
        # Under its own name torch refuses this hook without a CUDA build, on any backend.
        return default_hooks.bf16_compress_hook(state, bucket)

    for hook, tolerance in ((default_hooks.fp16_compress_hook, 2e-3), (bfloat16, 2e-2)):
        equal_parameters(_hooked(rank, hook), expected, tolerance)


def case_hooks_built_into_torch(rank, size):
    """ALLREDUCE works; FP16_COMPRESS, which the README advises against, fails and spoils nothing.

    FP16_COMPRESS takes the value of a future in C++ as a list of tensors, and a future made in
    Python holds a Python object there. If this case finds that it works, the README may say so.
    """
    ddp = DDP(mlp(), bucket_cap_mb=TINY_MB)
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    train_rank(ddp, rank)
    equal_parameters(ddp.module, train_serially(mlp(), size))

    ddp = DDP(mlp())
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    try:
        train_rank(ddp, rank)
    except RuntimeError as error:
        assert "should return TensorList" in str(error), error
    else:
        raise AssertionError("FP16_COMPRESS now works: take it out of the README's limits")
    equal_parameters(_hooked(rank, default_hooks.allreduce_hook), train_serially(mlp(), size))


def case_powersgd_with_several_buckets(rank, size):
    """PowerSGD approximates the mean gradient, and so it does for one rank with all shards.

    The approximation and its error feedback are linear in the gradient, so both agree. (gloo
    is no reference: with several buckets its threads wait for each other in the callbacks.)
    """

    def train(group, shards):
        model = mlp(width=64)
        ddp = DDP(model, bucket_cap_mb=0.01, process_group=group)
        state = powersgd.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=3
        )
        ddp.register_comm_hook(state, powersgd.powerSGD_hook)
        optimizer = sgd(ddp)
        for step in range(6):
            optimizer.zero_grad()
            batches = [serial.shard(step, r) for r in shards]
            inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
            nn.functional.cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
        assert state.total_numel_before_compression > state.total_numel_after_compression > 0
        assert len(state.error_dict) > 1, "more than one bucket was meant"
        return model

    alone, _ = dist.new_subgroups(1)
    equal_parameters(train(dist.group.WORLD, [rank]), train(alone, range(size)), 1e-7)


def case_post_local_sgd(rank, size):
    """Local steps between averages: all ranks agree after each average."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local
    from torch.distributed.algorithms.model_averaging import averagers
    from torch.distributed.optim import PostLocalSGDOptimizer

    ddp = DDP(mlp())
    # Each rank is a "node" of its own, so that steps are local to it.
    subgroup, _ = dist.new_subgroups(1)
    state = local.PostLocalSGDState(None, subgroup, start_localSGD_iter=2)
    ddp.register_comm_hook(state, local.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(ddp.parameters(), lr=0.1), averager)
    train_rank(ddp, rank, optimizer=optimizer, steps=5)  # steps 2 and 4 average

    replicas = [mlp() for _ in range(size)]
    optimizers = [torch.optim.SGD(replica.parameters(), lr=0.1) for replica in replicas]
    for step in range(5):
        for r, replica in enumerate(replicas):
            optimizers[r].zero_grad()
            loss_of(replica, step, r).backward()
        for parameters in zip(*(replica.parameters() for replica in replicas), strict=True):
            if step < 2:
                mean = sum(p.grad for p in parameters) / size
                for p in parameters:
                    p.grad.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
        if step in (2, 4):
            with torch.no_grad():
                for parameters in zip(*(m.parameters() for m in replicas), strict=True):
                    mean = sum(parameters) / size
                    for p in parameters:
                        p.copy_(mean)
    equal_parameters(ddp.module, replicas[rank])


def case_join_with_uneven_inputs(rank, size):
    """Rank r has r + 2 batches; a rank with none left adds zeros."""
    expected = mlp()
    optimizer = sgd(expected)
    for step in range(size + 1):
        optimizer.zero_grad()
        losses = [loss_of(expected, step, r) for r in range(size) if step < r + 2]
        (sum(losses) / size).backward()
        optimizer.step()
    ddp = DDP(mlp(), bucket_cap_mb=TINY_MB)
    optimizer = sgd(ddp)
    with Join([ddp]):
        for step in range(rank + 2):
            optimizer.zero_grad()
            loss_of(ddp, step, rank).backward()
            optimizer.step()
    equal_parameters(ddp.module, expected)


def case_zero_redundancy_optimizer(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=0.01)

    expected = train_serially(mlp(), size, optimiser=adam)
    ddp = DDP(mlp(), bucket_cap_mb=TINY_MB)
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    train_rank(ddp, rank, optimizer=zero)
    equal_parameters(ddp.module, expected)
    zero.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(zero.state_dict()["state"]) == len(list(ddp.parameters()))


def case_several_steps_of_a_convolution(rank, size):
    """Images, channels-last gradients and larger buckets."""

    def lenet():
        torch.manual_seed(4)
        layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten())
        model = nn.Sequential(*layers, nn.Linear(8 * 16, CLASSES)).double()
        return model.to(memory_format=torch.channels_last)

    def loss(model, step, r):
        generator = torch.Generator(torch.get_default_device()).manual_seed(step * 10 + r)
        images = torch.randn(3, 1, 8, 8, generator=generator, dtype=torch.float64)
        return model(images).square().mean()

    expected = lenet()
    optimizer = sgd(expected)
    for step in range(3):
        optimizer.zero_grad()
        (sum(loss(expected, step, r) for r in range(size)) / size).backward()
        optimizer.step()
    ddp = DDP(lenet(), bucket_cap_mb=TINY_MB)
    optimizer = sgd(ddp)
    for step in range(3):
        optimizer.zero_grad()
        loss(ddp, step, rank).backward()
        optimizer.step()
    equal_parameters(ddp.module, expected)


CLASSES = serial.CLASSES


@case(sizes=(4,))
def case_two_data_parallel_groups(rank, size):
    """Two models train side by side on halves of the world."""
    half = dist.new_subgroups(2)[0]
    first = rank // 2 * 2
    expected = mlp()
    optimizer = sgd(expected)
    for step in range(serial.STEPS):
        optimizer.zero_grad()
        (sum(loss_of(expected, step, r) for r in (first, first + 1)) / 2).backward()
        optimizer.step()
    equal_parameters(trained(rank, mlp(), process_group=half), expected)
