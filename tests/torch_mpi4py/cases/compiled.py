"""What torch.compile makes of a function that communicates does what the function does.

Most cases compile with the backend "eager", which reads functions as the others do and then runs
their graphs as they are, so that results are equal bit for bit.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_mpi4py import Traffic, monitored_barrier

from tests.ranks import case
from tests.torch_mpi4py import serial
from tests.torch_mpi4py.cases.collectives import same, values
from tests.torch_mpi4py.serial import equal_parameters, mlp, sgd, train_rank, train_serially

pair = case(sizes=(2,))
BACKENDS = ("eager", "aot_eager")
TINY_MB = 1e-4


def compiled(function: Any, backend: str = "eager", **options: Any) -> Any:
    """Return ``function`` compiled, with nothing known of what was compiled before."""
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, **options)


def like_eager(
    function: Callable, *arguments: Any, backend: str = "eager", fullgraph: bool = False
) -> None:
    """Raise unless compiling changes nothing: not in the first call, nor in a later one.

    Args:
        function: called with ``values`` of this rank and ``arguments``.
        backend: what runs the graphs.
        fullgraph: all of the function must become one graph, communication included.
    """
    rank = dist.get_rank()
    expected = function(values(rank, 6), *arguments)
    fast = compiled(function, backend, fullgraph=fullgraph)
    for _ in range(2):
        same(fast(values(rank, 6), *arguments), expected)


# --- one call in a compiled function --------------------------------------------------------


@pair
def case_calls_inside_the_graph(rank, size):
    """Torch has Dynamo put the functional form in place of these."""
    group = dist.new_group(range(size))

    def all_reduce(x):
        x = x * 2
        dist.all_reduce(x)
        dist.all_reduce(x, dist.ReduceOp.MAX, group)
        return x + 1

    def all_gather(x):
        parts = [torch.zeros_like(x) for _ in range(size)]
        dist.all_gather(parts, x * 2)
        return torch.stack(parts) + 1

    def single(x):
        gathered = x.new_zeros(size * x.numel())
        dist.all_gather_into_tensor(gathered, x * 2)
        scattered = torch.zeros_like(x)
        dist.reduce_scatter_tensor(scattered, gathered + 1)
        exchanged = torch.zeros_like(x)
        dist.all_to_all_single(exchanged, scattered * 2)
        return exchanged + 1

    for function in (all_reduce, all_gather, single):
        like_eager(function, fullgraph=True)


@pair
def case_functional(rank, size):
    world = dist.group.WORLD
    group = dist.new_group(range(size))
    halves = [3] * size
    calls = (
        lambda x, g: funcol.all_reduce(x * 2, "sum", g),
        lambda x, g: funcol.all_reduce(x * 2, "max", g) + g.size() + g.rank(),
        lambda x, g: funcol.all_gather_tensor(x * 2, 0, g),
        lambda x, g: funcol.reduce_scatter_tensor(x * 2, "sum", 0, g),
        lambda x, g: funcol.all_to_all_single(x * 2, halves, halves, g),
        lambda x, g: funcol.broadcast(x * 2, 0, g),
        lambda x, g: funcol.permute_tensor(x * 2, [1, 0], g),
        lambda x, g: torch.cat(funcol.all_reduce_coalesced([x, x * 2], "sum", g)),
        lambda x, g: torch.cat(funcol.all_gather_into_tensor_coalesced([x, x * 2], g)),
        lambda x, g: torch.cat(
            funcol.reduce_scatter_tensor_coalesced([x, x * 2], "sum", [0, 0], g)
        ),
        lambda x, g: funcol.wait_tensor(funcol.all_reduce(x * 2, "sum", g)),
    )
    for call in calls:
        for backend in BACKENDS:
            like_eager(
                lambda x, g, call=call: call(x, g) + 1, world, backend=backend, fullgraph=True
            )
    like_eager(lambda x: calls[0](x, world) + 1, fullgraph=True)  # not an argument
    like_eager(lambda x: calls[0](x, group) + 1, fullgraph=True)
    like_eager(lambda x, g: calls[1](x, g) + 1, group, fullgraph=True)


@pair
def case_collectives_with_a_root(rank, size):
    def broadcast(x):
        x = x * 2
        dist.broadcast(x, 0)
        return x + 1

    def reduce(x):
        x = x * 2
        dist.reduce(x, 0)
        return x + 1 if rank == 0 else x.new_zeros(1)

    def gather(x):
        parts = [torch.zeros_like(x) for _ in range(size)] if rank == 0 else None
        dist.gather(x * 2, parts)
        return torch.stack(parts) + 1 if parts else x

    def scatter(x):
        mine = torch.zeros_like(x)
        dist.scatter(mine, [x * 2, x * 3] if rank == 0 else None)
        return mine + 1

    def gather_single(x):
        whole = x.new_zeros(size, *x.shape) if rank == 0 else None
        dist.gather_single(x * 2, whole)
        return whole + 1 if rank == 0 else x

    functions = [broadcast, reduce, gather, scatter]
    if hasattr(dist, "gather_single"):  # torch 2.14
        functions.append(gather_single)
    for function in functions:
        for backend in BACKENDS:
            like_eager(function, backend=backend)


@pair
def case_lists_and_barriers(rank, size):
    def reduce_scatter(x):
        mine = torch.zeros(3)
        dist.reduce_scatter(mine, list((x * 2).chunk(size)))
        return mine + 1

    def all_to_all(x):
        parts = [torch.zeros(3) for _ in range(size)]
        dist.all_to_all(parts, list((x * 2).chunk(size)))
        return torch.cat(parts) + 1

    def barriers(x):
        x = x * 2
        dist.barrier()
        monitored_barrier()
        return x + 1

    for function in (reduce_scatter, all_to_all, barriers):
        like_eager(function)


@pair
def case_messages(rank, size):
    other = 1 - rank

    def blocking(x):
        x = x * 2
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        return x + 1

    def any_source(x):
        x = x * 2
        if rank == 0:
            dist.send(x, 1)
            return x
        return x + dist.recv(x)

    def at_once(x):
        received = torch.zeros_like(x)
        works = [dist.isend(x * 2, other), dist.irecv(received, other)]
        for work in works:
            work.wait()
        return received + 1

    def batch(x):
        received = torch.zeros_like(x)
        sent = dist.P2POp(dist.isend, x * 2, other)
        for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, other)]):
            work.wait()
        return received + 1

    for function in (blocking, any_source, at_once, batch):
        like_eager(function)


@pair
def case_handles(rank, size):
    def wait(x):
        x = x * 2
        dist.all_reduce(x, async_op=True).wait()
        return x + 1

    def poll(x):
        x = x * 2
        work = dist.broadcast(x, 0, async_op=True)
        while not work.is_completed():
            pass
        return x + int(work.is_success())

    def several(x):
        parts = [torch.zeros_like(x) for _ in range(size)]
        whole = x.new_zeros(size * x.numel())
        mine = torch.zeros(3)
        works = [
            dist.all_gather(parts, x * 2, async_op=True),
            dist.all_gather_into_tensor(whole, x * 3, async_op=True),
            dist.reduce_scatter_tensor(mine, x, async_op=True),
        ]
        for work in works:
            work.wait()
        return torch.cat([*parts, whole, mine]) + 1

    def future(x):
        work = dist.all_reduce(x * 2, async_op=True)
        return work.get_future().then(lambda done: done.value()[0] * 3).wait() + 1

    def coalesced(x):
        x, y = x * 2, x * 3
        with dist._coalescing_manager(async_ops=True) as works:
            dist.all_reduce(x)
            dist.all_reduce(y)
        works.wait()
        return x + y

    for function in (wait, poll, several, future, coalesced):
        like_eager(function)


@pair
def case_groups(rank, size):
    """Of the world, of some and of one rank; given, found, made and ended inside."""
    everyone, alone = dist.new_group(range(size)), [dist.new_group([r]) for r in range(size)][rank]

    def given(x, group):
        x = x * 2
        dist.broadcast(x, dist.get_global_rank(group, 0), group)
        dist.all_reduce(x, group=group, async_op=True).wait()
        return x + group.size() + group.rank()

    def made(x):
        x = x * 2
        group = dist.new_group(range(size))
        dist.all_reduce(x, group=group)
        dist.broadcast(x, 0, group)
        dist.destroy_process_group(group)
        return x + 1

    for group in (dist.group.WORLD, everyone, alone):
        like_eager(given, group)
        like_eager(lambda x, group=group: given(x, group))
    like_eager(made)


@pair
def case_dtypes_and_layouts(rank, size):
    def function(x):
        x = x * 2
        dist.broadcast(x, 0)
        dist.all_reduce(x.t(), async_op=True).wait()
        return x + 1

    fast = compiled(function)
    for dtype in (torch.bfloat16, torch.float64, torch.int64, torch.complex64):
        x = values(rank, 2, 3, dtype=dtype)
        same(fast(x), function(x))


@pair
def case_changing_sizes(rank, size):
    def function(x):
        x = x * 2
        dist.broadcast(x, 0)
        return funcol.all_reduce(x, "sum", dist.group.WORLD) + 1

    fast = compiled(function)
    for count in (3, 4, 5, 9):
        same(fast(values(rank, count)), function(values(rank, count)))


@pair
def case_errors_and_tools(rank, size):
    """An error is the program's to catch; counting and emulating are done in the function too."""

    def refused(x):
        x = x * 2
        try:
            dist.broadcast(x, size)
        except ValueError:
            return x + 1
        return x

    def counted(x):
        x = x * 2
        with Traffic() as traffic:
            dist.broadcast(x, 0)
        return x + sum(count.messages for count in traffic.collectives.values())

    like_eager(refused)
    like_eager(counted)


# --- callbacks, hooks and gradients ---------------------------------------------------------


@pair
def case_callbacks(rank, size):
    """A callback runs on a thread of the backend's, and communicates there."""

    def again(done):
        x = done.value()[0] * 2
        dist.broadcast(x, 0)
        dist.all_reduce(x)
        return x + 1

    def result(callback):
        return dist.all_reduce(values(rank, 6), async_op=True).get_future().then(callback).wait()

    fast = compiled(again)
    for _ in range(3):
        same(result(fast), result(again))


class Summed(torch.autograd.Function):
    """Communicates in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return rank 0's gradient."""
        gradient = gradient.clone()
        dist.broadcast(gradient, 0)
        return gradient


@pair
def case_gradients(rank, size):
    world = dist.group.WORLD

    def own(x):
        return Summed.apply(x * x) * (rank + 1)

    def functional(x):
        gathered = funcol.all_gather_tensor_autograd(x * x, 0, world)
        return gathered * (rank + 1)

    def inside(x):
        x = x.clone().requires_grad_()
        own(x).sum().backward()
        return x.grad

    def outside(function):
        x = values(rank, 6).requires_grad_()
        function(x).sum().backward()
        return x.grad

    for function in (own, functional):
        for backend in BACKENDS:
            fast = compiled(function, backend)
            for _ in range(2):
                same(outside(fast), outside(function))
    like_eager(inside)


@pair
def case_hooks(rank, size):
    def trained(compile_it):
        model = mlp()
        model[0].register_forward_hook(lambda layer, given, out: dist.broadcast(out.detach(), 0))
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        train_rank(compile_it(model), rank)
        return model

    equal_parameters(trained(compiled), trained(lambda model: model), tolerance=0)


# --- models ---------------------------------------------------------------------------------


@contextlib.contextmanager
def dynamo(**settings: Any) -> Iterator[None]:
    """Have Dynamo so configured, and small enough first buckets for its way with DDP."""
    first_bucket = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = 64
    try:
        with torch._dynamo.config.patch(settings):
            yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = first_bucket


def same_training(train: Callable[[Callable], nn.Module]) -> None:
    """Raise unless ``train``, given what compiles or something that doesn't, trains the same."""
    expected = list(train(lambda model: model).parameters())
    for backend in BACKENDS:
        model = train(lambda model, backend=backend: compiled(model, backend))
        for found, wanted in zip(model.parameters(), expected, strict=True):
            same(local(found), local(wanted))


def local(parameter: Tensor) -> Tensor:
    """Return the part of a parameter that is on this rank."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


@pair
def case_compiled_ddp(rank, size):
    """Dynamo cuts the graph where DDP's buckets end, or doesn't."""
    hook = default_hooks.allreduce_hook
    ways: tuple[tuple[dict, Any], ...] = (
        ({}, None),
        ({}, hook),
        ({"static_graph": True}, None),
        ({"find_unused_parameters": True}, None),
        ({"gradient_as_bucket_view": True}, None),
    )

    def train(compile_it, options=(), hook=None):
        ddp = DDP(mlp(1 + rank), bucket_cap_mb=TINY_MB, **dict(options))
        if hook is not None:
            ddp.register_comm_hook(None, hook)
        train_rank(compile_it(ddp), rank)
        return ddp.module

    for options, hook in ways:
        with dynamo(optimize_ddp=True):
            same_training(lambda c, o=options, h=hook: train(c, o, h))
    with dynamo(optimize_ddp=False):
        same_training(train)
    with dynamo(optimize_ddp=True):
        equal_parameters(train(compiled), train_serially(mlp(1), size), moved_from=mlp(1))


@pair
def case_ddp_of_a_compiled_model(rank, size):
    def train(compile_it):
        model = mlp(1 + rank)
        train_rank(DDP(compile_it(model), bucket_cap_mb=TINY_MB), rank)
        return model

    with dynamo():
        same_training(train)


def train_by_steps(rank: int, compile_it: Callable, *, optimizes: bool) -> nn.Module:
    """Train with DDP, forward and backward in one function, on request the optimiser too."""
    ddp = DDP(mlp(1 + rank), bucket_cap_mb=TINY_MB)
    optimizer = sgd(ddp)

    def step(inputs):
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        if optimizes:
            optimizer.step()

    fast = compile_it(step)
    for number in range(4):
        fast(serial.shard(number, rank)[0])
        if not optimizes:
            optimizer.step()
    return ddp.module


@pair
def case_compiled_step(rank, size):
    with dynamo():  # a compiled optimiser may round differently
        fast = train_by_steps(rank, compiled, optimizes=True)
    equal_parameters(fast, train_by_steps(rank, lambda step: step, optimizes=True))


@pair
def case_compiled_backward_of_ddp(rank, size):
    """Compiled autograd puts the reductions of DDP's gradients into the graph."""
    torch._dynamo.utils.counters.clear()
    with dynamo(optimize_ddp="python_reducer", compiled_autograd=True):
        fast = train_by_steps(rank, compiled, optimizes=False)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] > 0
    expected = train_by_steps(rank, lambda step: step, optimizes=False)
    equal_parameters(fast, expected, tolerance=0)


@pair
def case_compiled_fsdp(rank, size):
    mesh = init_device_mesh(torch.get_default_device().type, (size,))

    def train(compile_it, first=False):
        model = mlp()
        for layer in (model[0], model[2]):
            if first:
                layer.forward = compile_it(layer.forward)
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train_rank(model if first else compile_it(model), rank, optimizer=sgd(model))
        return model

    for first in (False, True):
        same_training(lambda compile_it, first=first: train(compile_it, first))


@pair
def case_compiled_tensor_parallel(rank, size):
    mesh = init_device_mesh(torch.get_default_device().type, (size,))

    def train(compile_it):
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = parallelize_module(mlp(width=12), mesh, plan)
        train_rank(compile_it(model), rank=0, optimizer=sgd(model))
        return model

    same_training(train)


@pair
def case_compiled_dtensor(rank, size):
    mesh = init_device_mesh(torch.get_default_device().type, (size,))

    def function(a, b):
        whole = (a @ b).redistribute(mesh, [Replicate()]).to_local()
        return whole + DTensor.from_local(whole, mesh, [Partial()]).full_tensor()

    a = distribute_tensor(values(0, 4, 4), mesh, [Shard(1)])
    b = distribute_tensor(values(1, 4, 4), mesh, [Shard(0)])
    for backend in BACKENDS:
        fast = compiled(function, backend)
        for _ in range(2):
            same(fast(a, b), function(a, b))


@pair
def case_compiled_pipeline_stage(rank, size):
    def train(compile_it):
        torch.manual_seed(rank)
        part = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        stage = PipelineStage(compile_it(part), rank, size, torch.get_default_device())
        schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
        optimizer = sgd(part)
        for step in range(3):
            optimizer.zero_grad()
            given = [torch.full((4, 6), step + 1.0)] if rank == 0 else []
            wanted = {"target": torch.zeros(4, 6)} if rank == size - 1 else {}
            schedule.step(*given, **wanted)
            optimizer.step()
        return part

    same_training(train)


# --- C++ ------------------------------------------------------------------------------------


@case(sizes=(2,), seconds=240)
def case_inductor(rank, size):
    """Inductor, which writes C++, replans memory: communicated tensors must stay in place."""
    if shutil.which("g++") is None:
        return

    def function(x):
        x = x * 2
        dist.broadcast(x, 0)
        dist.all_reduce(x, async_op=True).wait()
        total = funcol.all_reduce(x + 1, "sum", dist.group.WORLD)
        return total + funcol.all_gather_tensor(x, 0, dist.group.WORLD).sum()

    options = {"compile_threads": 1, "cpp_cache_precompile_headers": False}
    fast = compiled(function, "inductor", options=options)
    for _ in range(2):
        same(fast(values(rank, 6)), function(values(rank, 6)))

    def train(compile_it):
        ddp = DDP(mlp(1 + rank), bucket_cap_mb=TINY_MB)
        train_rank(compile_it(ddp), rank)
        return ddp.module

    with dynamo():
        fast_model = train(lambda ddp: compiled(ddp, "inductor", options=options))
    equal_parameters(fast_model, train_serially(mlp(1), size), moved_from=mlp(1))
