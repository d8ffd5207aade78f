"""An operation reads memory when its turn has come, and writes it as gloo does: past autograd.

Each program runs on a gloo group and on one of ours, where gloo can run it; elsewhere it is
compared with itself on plain tensors, or with each operation waited for at once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional

from tests.torch_mpi4py.helpers import equal, sizes

MODES = (contextlib.nullcontext, torch.no_grad, torch.inference_mode)
Start = Callable[[torch.Tensor, dist.ProcessGroup, bool], Any]


@contextlib.contextmanager
def gloo_group() -> Iterator[dist.ProcessGroup]:
    group = dist.new_group(backend="gloo")
    yield group
    dist.destroy_process_group(group)


def start_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup, later: bool) -> Any:
    return dist.all_reduce(tensor, group=group, async_op=later)


def start_broadcast(tensor: torch.Tensor, group: dist.ProcessGroup, later: bool) -> Any:
    return dist.broadcast(tensor, dist.get_world_size() - 1, group=group, async_op=later)


def start_reduce(tensor: torch.Tensor, group: dist.ProcessGroup, later: bool) -> Any:
    return dist.reduce(tensor, 0, group=group, async_op=later)


STARTS = (start_all_reduce, start_broadcast, start_reduce)


def values(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(8.0) % 3 + rank).to(dtype).reshape(1, 2, 2, 2)


def channels_last(rank: int) -> torch.Tensor:
    return values(rank).contiguous(memory_format=torch.channels_last)


def transposed(rank: int) -> torch.Tensor:
    return values(rank).reshape(2, 4).t()


def negative(rank: int) -> torch.Tensor:
    """Values with torch's bit that says they count with the other sign."""
    return torch._neg_view(-values(rank))


KINDS: tuple[Callable[[int], torch.Tensor], ...] = (
    values,
    lambda rank: values(rank, torch.bfloat16),
    channels_last,
    transposed,
    lambda rank: values(rank)[..., 0],
    negative,
)
GLOO_TAKES = 4  # the first kinds: what is dense in memory


def outcome(tensor: torch.Tensor, source: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Return what a program can see of ``tensor``: values, gradient, version."""
    found = [tensor.detach().clone().contiguous()]
    if tensor.requires_grad:
        (tensor * tensor).sum().backward()
        leaf = tensor if source is None else source
        found.append(leaf.grad.clone().contiguous())
    if not tensor.is_inference():
        found.append(torch.tensor(tensor._version))
    return found


def do(start: Start, tensor: torch.Tensor, group: Any, later: bool, mode: Any) -> None:
    with mode():
        work = start(tensor, group, later)
    if work is not None:
        work.wait()


def written_to_parameter(make, start, group, later, mode) -> list[torch.Tensor]:
    parameter = nn.Parameter(make(dist.get_rank()))
    do(start, parameter, group, later, mode)
    return outcome(parameter)


def written_to_result(make, start, group, later, mode) -> list[torch.Tensor]:
    """``sqrt`` keeps its result for the backward pass, so what is written there counts in it."""
    leaf = (make(dist.get_rank()) + 1).square().requires_grad_()
    result = leaf.sqrt()
    do(start, result, group, later, mode)
    return outcome(result, leaf)


def written_to_view(make, start, group, later, mode) -> list[torch.Tensor]:
    leaf = make(dist.get_rank()).clone().requires_grad_()
    part = (leaf * 1).chunk(2, dim=1)[1]  # a view to which autograd lets nothing be written
    do(start, part, group, later, mode)
    return outcome(part, leaf)


def written_to_inference_tensor(make, start, group, later, mode) -> list[torch.Tensor]:
    with torch.inference_mode():
        tensor = make(dist.get_rank()).clone()
    do(start, tensor, group, later, mode)
    assert tensor.is_inference()
    return outcome(tensor)


WRITERS = (
    written_to_parameter,
    written_to_result,
    written_to_view,
    written_to_inference_tensor,
)


def case_results_are_written_as_gloo_writes_them(rank, size):
    # Gloo's reduce leaves sums of some ranks in the tensors of the others.
    starts = (start_all_reduce, start_broadcast)
    choices = itertools.product(WRITERS, starts, (False, True), MODES)
    with gloo_group() as gloo:
        for write, start, later, mode in choices:
            for make in KINDS[:GLOO_TAKES]:
                if write is written_to_view and not make(rank).is_contiguous():
                    continue  # gloo writes between the elements of parts that are not dense
                with torch.device("cpu"):  # gloo refuses parameters on GPUs
                    expected = write(make, start, gloo, later, mode)
                found = write(make, start, dist.group.WORLD, later, mode)
                where = write.__name__, start.__name__, later, mode.__name__, make(0).dtype
                assert len(found) == len(expected), where
                for mine, theirs in zip(found, expected, strict=True):
                    assert torch.equal(mine.cpu(), theirs), (*where, mine, theirs)


def case_layouts_unsupported_by_gloo_give_results_of_plain_memory(rank, size):
    """Layouts that gloo rejects give the same results as plain memory."""
    for write, start, later, mode in itertools.product(WRITERS, STARTS, (False, True), MODES):
        for make in KINDS[GLOO_TAKES:]:

            def make_plain(rank: int, make=make) -> torch.Tensor:
                return make(rank).contiguous().resolve_neg().clone()

            expected = write(make_plain, start, dist.group.WORLD, later, mode)
            found = write(make, start, dist.group.WORLD, later, mode)
            for mine, theirs in zip(found, expected, strict=True):
                assert torch.equal(mine, theirs), (write.__name__, start.__name__, mine, theirs)


def exchanges(rank: int, size: int, make: Callable[[], torch.Tensor]) -> Iterator[tuple]:
    """Yield the outputs of each collective that has some, made by ``make``, and a starter."""
    ones, kind = torch.ones(2, 3), make().dtype
    mine, everyone = (ones * (rank + 1)).to(kind), [(ones * (r + 1)).to(kind) for r in range(size)]
    outputs = [make() for _ in range(size)]
    yield outputs, lambda: dist.all_gather(outputs, mine, async_op=True), everyone
    output = make()
    parts = [mine for _ in range(size)]
    total = (ones * (size * (size + 1) / 2)).to(kind)
    yield [output], lambda: dist.reduce_scatter(output, parts, async_op=True), [total]
    average = make()
    yield (
        [average],
        lambda: dist.all_reduce(average, dist.ReduceOp.AVG, async_op=True),
        [make()],
    )
    scattered = make()
    given = everyone if rank == 0 else None
    yield [scattered], lambda: dist.scatter(scattered, given, async_op=True), [everyone[rank]]
    gathered = [make() for _ in range(size)] if rank == 0 else []
    wanted = everyone if rank == 0 else []
    yield gathered, lambda: dist.gather(mine, gathered or None, async_op=True), wanted
    exchanged = [make() for _ in range(size)]
    yield exchanged, lambda: dist.all_to_all(exchanged, parts, async_op=True), everyone
    if size > 1:
        received = make()

        def pass_on() -> Any:
            neighbours = (rank + 1) % size, (rank - 1) % size
            sent = dist.isend(mine, neighbours[0])
            dist.irecv(received, neighbours[1]).wait()
            return sent

        yield [received], pass_on, [everyone[rank - 1]]


def case_collectives_write_outside_autograd(rank, size):
    makers: tuple[Callable[[torch.dtype], torch.Tensor], ...] = (
        lambda dtype: nn.Parameter(torch.ones(2, 3, dtype=dtype)),
        lambda dtype: nn.Parameter(torch.ones(3, 2, dtype=dtype).t()),
        lambda dtype: torch.zeros(2, 3, dtype=dtype, requires_grad=True).exp(),
        lambda dtype: torch.zeros(2, 6, dtype=dtype, requires_grad=True).exp()[:, ::2],
    )
    for maker, dtype, mode in itertools.product(makers, (torch.float32, torch.bfloat16), MODES):
        for outputs, start, expected in exchanges(rank, size, functools.partial(maker, dtype)):
            versions = [output._version for output in outputs]
            with mode():
                work = start()
            work.wait()
            for output, wanted in zip(outputs, expected, strict=True):
                equal(output.detach(), wanted.detach())
            assert [output._version for output in outputs] == versions
    for mode in MODES:
        with torch.inference_mode():
            pairs = exchanges(rank, size, lambda: torch.ones(3, 2, dtype=torch.bfloat16).t())
            made = [(outputs, start, expected) for outputs, start, expected in pairs]
        for outputs, start, expected in made:
            with mode():
                work = start()
            work.wait()
            for output, wanted in zip(outputs, expected, strict=True):
                equal(output, wanted)


def case_functional_collectives_run_in_inference_mode(rank, size):
    for mode in MODES:
        for dtype, inside in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            with mode():
                tensor = torch.full((4,), rank + 1.0, dtype=dtype)
                summed = functional.all_reduce(tensor, "sum", dist.group.WORLD)
                if inside:
                    summed = functional.wait_tensor(summed)
            dist.group.WORLD._wait_for_pending_works()  # so that a thread of ours has run it
            equal(functional.wait_tensor(summed), [size * (size + 1) / 2] * 4)


def case_results_of_inference_mode_are_usable_outside_it(rank, size):
    """Nothing that we make in it gets into the program's own tensors."""
    weight = nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16).t())
    sparse = torch.eye(3).to_sparse()
    with torch.inference_mode():
        dist.all_reduce(weight)
        dist.all_reduce(sparse)
    (weight * 2).sum().backward()
    assert not sparse._values().is_inference()
    with torch.inference_mode():
        sparse = torch.eye(3).to_sparse()
    dist.all_reduce(sparse, async_op=True).wait()
    equal(sparse.to_dense(), torch.eye(3) * size)


def start_callback(tensor: torch.Tensor, group: dist.ProcessGroup, later: bool) -> Any:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.get_future().then(lambda summed: summed.value()[0].sum()).wait()
    return work


def case_completed_calls_free_their_tensors(rank, size):
    """Their memory is freed though the group makes no further call."""
    starts = (*STARTS, start_callback)
    for start, later, late in itertools.product(starts, (False, True), (0.0, 0.3)):
        memory = numpy.ones(8, "f4")
        kept = weakref.ref(memory)
        time.sleep(late if rank == 0 else 0)  # a wait so long is watched
        work = start(torch.from_numpy(memory), dist.group.WORLD, later)
        if later:
            work.wait()
        del memory, work
        deadline = time.monotonic() + 10  # for a thread that has yet to leave the call
        while kept() is not None:
            assert time.monotonic() < deadline, (start, later, late)
            time.sleep(1e-3)


# --- operations that wait for nothing -----------------------------------------------------

Wait = Callable[[Any], None]


def conjugated(rank: int) -> torch.Tensor:
    return torch.complex(values(rank), values(rank + 1)).conj()


def sum_twice(tensor: torch.Tensor, wait: Wait) -> list[torch.Tensor]:
    wait(dist.all_reduce(tensor, async_op=True))
    wait(dist.all_reduce(tensor, async_op=True))
    return [tensor]


def broadcast_and_sum(tensor: torch.Tensor, wait: Wait) -> list[torch.Tensor]:
    wait(dist.broadcast(tensor, 0, async_op=True))
    wait(dist.all_reduce(tensor, async_op=True))
    wait(dist.broadcast(tensor, dist.get_world_size() - 1, async_op=True))
    wait(dist.reduce(tensor, 0, async_op=True))
    return [tensor]


def gather_into_views_and_sum(tensor: torch.Tensor, wait: Wait) -> list[torch.Tensor]:
    """Outputs are parts of what is summed next, and one part is the next input."""
    whole = torch.stack([tensor] * dist.get_world_size())
    parts = list(whole.unbind())
    wait(dist.all_reduce(tensor, async_op=True))
    wait(dist.all_gather(parts, tensor, async_op=True))
    wait(dist.all_reduce(whole, async_op=True))
    wait(dist.all_gather(parts, parts[-1], async_op=True))
    wait(dist.reduce_scatter(tensor, parts, async_op=True))
    wait(dist.all_reduce(tensor, async_op=True))
    return [tensor, whole]


def scatter_into_what_is_exchanged(tensor: torch.Tensor, wait: Wait) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [tensor + r for r in range(size)]
    wait(dist.reduce_scatter(parts[0], parts, async_op=True))
    wait(dist.all_to_all(parts, parts, async_op=True))
    wait(dist.scatter(tensor, parts if rank == 0 else None, 0, async_op=True))
    wait(dist.gather(tensor, parts if rank == 0 else None, 0, async_op=True))
    wait(dist.all_reduce(parts[-1], async_op=True))
    return [tensor, *parts]


def blocks_of_one_tensor(tensor: torch.Tensor, wait: Wait) -> list[torch.Tensor]:
    size = dist.get_world_size()
    block = torch.cat([tensor.reshape(-1)] * size)
    wait(dist.all_reduce(block, async_op=True))
    wait(dist.reduce_scatter_tensor(tensor_of(block, size), block, async_op=True))
    wait(dist.all_gather_into_tensor(block, tensor_of(block, size), async_op=True))
    wait(dist.all_to_all_single(block, block, async_op=True))
    wait(dist.all_reduce(block, async_op=True))
    return [block]


def tensor_of(block: torch.Tensor, size: int) -> torch.Tensor:
    """Return this rank's part of ``block``."""
    return block.chunk(size)[dist.get_rank()]


def sum_and_broadcast_conjugates(tensor: torch.Tensor, wait: Wait) -> list[torch.Tensor]:
    """As ``dist.all_reduce`` would do if it took them."""
    group = dist.group.WORLD
    wait(group.allreduce([tensor]))
    wait(group.broadcast(tensor, 0))
    wait(group.allreduce([tensor]))
    return [tensor]


PROGRAMS = (
    sum_twice,
    broadcast_and_sum,
    gather_into_views_and_sum,
    scatter_into_what_is_exchanged,
    blocks_of_one_tensor,
)


def check_chains(rank: int, size: int) -> None:
    runs = [*itertools.product(PROGRAMS, KINDS), (sum_and_broadcast_conjugates, conjugated)]
    for program, make in runs:
        works: list[Any] = []
        found = program(make(rank), works.append)
        for work in reversed(works):
            work.wait()
        expected = program(make(rank), lambda work: work.wait())
        for mine, wanted in zip(found, expected, strict=True):
            assert torch.equal(mine, wanted), (program.__name__, mine, wanted)


def case_operation_reads_results_of_earlier_operations(rank, size):
    check_chains(rank, size)
    sparse = torch.eye(3).to_sparse()
    works = [dist.all_reduce(sparse, async_op=True) for _ in range(2)]
    for work in reversed(works):
        work.wait()
    equal(sparse.to_dense(), torch.eye(3) * size**2)
    works = []
    summed = torch.full((3,), rank + 1.0, dtype=torch.bfloat16)
    factor = torch.full((), 1.0)
    works.append(dist.all_reduce(factor, async_op=True))
    doubled = dist._make_nccl_premul_sum(factor)
    works.append(dist.all_reduce(summed, doubled, async_op=True))
    for work in works:
        work.wait()
    equal(summed, [size * size * (size + 1) / 2] * 3)


# --- devices and dtypes -------------------------------------------------------------------


@contextlib.contextmanager
def default_device(name: str) -> Iterator[None]:
    before = torch.get_default_device()
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)


def case_default_device_does_not_affect_backend_buffers(rank, size):
    """As ``torch.set_default_device("cuda")`` for a model whose gradients are on the host."""
    made = {kind: [make(rank) for make in KINDS] for kind in "ab"}
    for number, context in enumerate((default_device, torch.device)):
        tensors = made["ab"[number]]
        model = nn.Linear(2, 1, bias=False)
        batch = torch.full((1, 2), rank + 1.0)
        sparse = torch.eye(3).to_sparse()
        objects: list[Any] = [None] * size
        half, float8 = torch.ones(4, dtype=torch.bfloat16), torch.ones(4).to(torch.float8_e5m2)
        with context("meta"):
            for tensor in tensors:
                dist.all_reduce(tensor)
                dist.broadcast(tensor, 0)
            dist.all_reduce(sparse)
            outputs = [torch.empty_like(half) for _ in range(size)]
            dist.all_gather(outputs, half)
            dist.gather(half, outputs if rank == 0 else None)
            dist.scatter(half, outputs if rank == 0 else None)
            dist.reduce_scatter(half, outputs)
            dist.all_to_all(outputs, [half] * size)
            dist.broadcast(float8, 0)
            dist.all_gather_object(objects, rank)
            copies: list[Any] = [rank, {"a": rank}]
            dist.broadcast_object_list(copies, 0)
            replica = nn.parallel.DistributedDataParallel(model)
            replica(batch).sum().backward()
            replica(batch).sum().backward()
            dist.barrier()
        equal(sparse.to_dense(), torch.eye(3) * size)
        equal(half, [float(size)] * 4)
        for output in outputs:
            equal(output, [float(size)] * 4)
        assert objects == list(range(size))
        assert copies == [0, {"a": 0}]
        equal(model.weight.grad, [[size + 1.0] * 2])
        expected = [make(rank) for make in KINDS]
        for tensor, wanted in zip(tensors, expected, strict=True):
            dist.all_reduce(wanted)
            dist.broadcast(wanted, 0)
            assert torch.equal(tensor, wanted)


MOVED = [
    getattr(torch, name)
    for name in ("float8_e8m0fnu", "float4_e2m1fn_x2", "float8_e4m3fnuz", "complex32", "uint4")
]


def case_every_dtype_is_transferred(rank, size):
    for dtype in MOVED:

        def of(rank: int, bits: int = dtype.itemsize * 4) -> list[int]:
            return [i + 16 * rank for i in range(bits)]

        def bits(tensor: torch.Tensor) -> list[int]:
            return tensor.view(torch.uint8).tolist()

        tensor = torch.tensor(of(rank), dtype=torch.uint8).view(dtype)
        outputs = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(outputs, tensor)
        assert [bits(output) for output in outputs] == [of(r) for r in range(size)], dtype
        exchanged = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_to_all(exchanged, [tensor] * size)
        assert [bits(output) for output in exchanged] == [of(r) for r in range(size)], dtype
        work = dist.isend(tensor, (rank + 1) % size) if size > 1 else None
        if work is not None:
            received = torch.empty_like(tensor)
            dist.recv(received, (rank - 1) % size)
            work.wait()
            assert bits(received) == of((rank - 1) % size), dtype
        dist.broadcast(tensor, size - 1)
        assert bits(tensor) == of(size - 1), dtype


@sizes(2, 3, 4)
def case_scalar_tensor_is_received(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.bool):
        sent = torch.tensor(rank + 1, dtype=dtype)
        for source in (before, None):
            scalar = torch.zeros((), dtype=dtype)
            work = dist.isend(sent, after)
            assert dist.recv(scalar, source) == before
            work.wait()
            equal(scalar, torch.tensor(before + 1, dtype=dtype))
        scalar = torch.zeros((), dtype=dtype)
        operations = dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, scalar, before)
        for work in dist.batch_isend_irecv([*operations]):
            work.wait()
        equal(scalar, torch.tensor(before + 1, dtype=dtype))
