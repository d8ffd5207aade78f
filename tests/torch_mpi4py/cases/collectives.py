"""Every collective of torch.distributed gives what a serial sum or copy gives.

Rank r contributes small whole numbers made from r, so that equality is exact.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.ranks import case
from tests.torch_mpi4py.helpers import raises


def values(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the tensor that ``rank`` contributes."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(count) % 7 + 10 * rank + 1).to(dtype).reshape(shape)


def total(size: int, *shape: int) -> torch.Tensor:
    """Return the sum of all ranks' contributions."""
    return sum(values(rank, *shape) for rank in range(size))


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise unless both are equal in dtype, shape and every element."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert torch.equal(actual, expected), f"{actual} instead of {expected}"


def case_all_reduce(rank, size):
    for shape in ((), (1,), (3, 5), (1000,), (300_000,)):
        tensor = values(rank, *shape)
        assert dist.all_reduce(tensor) is None
        same(tensor, total(size, *shape))


def case_all_reduce_of_different_views_of_one_memory(rank, size):
    """Cached data about a tensor is not used for another tensor at its address."""
    memory = torch.zeros(16)

    def combine(tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM) -> torch.Tensor:
        with torch.no_grad():
            tensor.copy_(values(rank, *tensor.shape))
        dist.all_reduce(tensor, op)
        return tensor.detach().clone()

    for _ in range(3):
        same(combine(memory), total(size, 16))
        same(combine(memory[:8]), total(size, 8))
        same(combine(memory.view(4, 4)), total(size, 4, 4))
        same(combine(memory.view(4, 4).t()), total(size, 4, 4))
        same(combine(memory[:4]), total(size, 4))
        same(combine(memory[:8:2]), total(size, 4))  # as many, from the same address on
        same(combine(memory.view(torch.int32)), total(size, 16).to(torch.int32))
        same(combine(memory, ReduceOp.MAX), values(size - 1, 16))
        same(combine(torch.nn.Parameter(memory)), total(size, 16))
        negative = memory.view(torch.complex64).conj().imag[:1]
        same(combine(negative), total(size, 1))
        same(combine(memory[1:2], ReduceOp.MAX), values(size - 1, 1))
        same(combine(negative, ReduceOp.MAX), values(size - 1, 1))  # not the least of the negated
        for factor in (2.0, 3.0):
            expected = factor * total(size, 16)
            same(combine(memory, dist._make_nccl_premul_sum(factor)), expected)
        work = dist.all_reduce(memory.fill_(rank), async_op=True)
        assert work.wait()
        same(memory, torch.full((16,), float(sum(range(size)))))


def case_async_op_option_decides_whether_a_handle_is_returned(rank, size):
    group = dist.group.WORLD
    for options, method in (
        (dist.AllreduceOptions(), "allreduce"),
        (dist.BroadcastOptions(), "broadcast"),
        (dist.AllreduceCoalescedOptions(), "allreduce_coalesced"),
    ):
        for tensors in ([values(rank, 3)], [values(rank, 3), values(rank, 4)]):
            options.asyncOp = True
            assert getattr(group, method)(tensors, options).wait()
            options.asyncOp = False
            assert getattr(group, method)(tensors, options) is None


def case_all_reduce_async(rank, size):
    tensors = [values(rank, 4 + i) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, work in reversed(list(enumerate(works))):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        same(tensors[i], total(size, 4 + i))
        same(work.result()[0], tensors[i])


def case_futures(rank, size):
    tensor = values(rank, 6)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), 2 * total(size, 6))
    # A callback may issue a collective itself, as PowerSGD's does.
    first = dist.all_reduce(values(rank, 3), async_op=True).get_future()

    def again(done):
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    same(first.then(again).wait(), size * total(size, 3))


def case_broadcast(rank, size):
    for root in range(size):
        tensor = values(rank, 2, 3)
        dist.broadcast(tensor, root)
        same(tensor, values(root, 2, 3))
        tensor = values(rank, 50_000)
        dist.broadcast(tensor, group_src=root, async_op=True).wait()
        same(tensor, values(root, 50_000))


def case_reduce(rank, size):
    for root in range(size):
        tensor = values(rank, 5)
        dist.reduce(tensor, root)
        if rank == root:
            same(tensor, total(size, 5))
        tensor = values(rank, 3, 3)
        dist.reduce(tensor, root, op=ReduceOp.MAX, async_op=True).wait()
        if rank == root:
            same(tensor, values(size - 1, 3, 3))


def case_all_gather(rank, size):
    outputs = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(outputs, values(rank, 2, 3))
    for r in range(size):
        same(outputs[r], values(r, 2, 3))
    outputs = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(outputs, values(rank, 4), async_op=True).wait()
    for r in range(size):
        same(outputs[r], values(r, 4))


@case()
def case_all_gather_uneven(rank, size):
    if dist.get_backend() == "gloo":
        return
    outputs = [torch.zeros(r + 1, 2) for r in range(size)]
    dist.all_gather(outputs, values(rank, rank + 1, 2))
    for r in range(size):
        same(outputs[r], values(r, r + 1, 2))


def case_all_gather_into_tensor(rank, size):
    joined = torch.cat([values(r, 2, 3) for r in range(size)])
    output = torch.zeros(2 * size, 3)
    dist.all_gather_into_tensor(output, values(rank, 2, 3))
    same(output, joined)
    output = torch.zeros(size, 2, 3)
    dist.all_gather_into_tensor(output, values(rank, 2, 3), async_op=True).wait()
    same(output, joined.view(size, 2, 3))


def case_gather(rank, size):
    for root in range(size):
        outputs = [torch.zeros(3) for _ in range(size)] if rank == root else None
        dist.gather(values(rank, 3), outputs, dst=root)
        if rank == root:
            for r in range(size):
                same(outputs[r], values(r, 3))


def case_gather_single(rank, size):
    if not hasattr(dist, "gather_single"):  # torch before 2.14
        return
    for root in range(size):
        output = torch.zeros(size, 3) if rank == root else None
        dist.gather_single(values(rank, 3), output, dst=root)
        if rank == root:
            same(output, torch.stack([values(r, 3) for r in range(size)]))
    pair = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        output = torch.zeros(pair.size(), 2) if rank == 0 else None
        dist.gather_single(values(rank, 2), output, group=pair, async_op=True).wait()
        if rank == 0:
            same(output, torch.stack([values(r, 2) for r in sorted({0, size - 1})]))
            with raises(ValueError, "elements of output must be"):
                pair.gather_single(torch.zeros(1), torch.zeros(1, 2))


def case_scatter(rank, size):
    for root in range(size):
        sources = [values(r + root, 3) for r in range(size)] if rank == root else None
        output = torch.zeros(3)
        dist.scatter(output, sources, src=root)
        same(output, values(rank + root, 3))


def case_reduce_scatter(rank, size):
    sources = [values(rank + r, 4) for r in range(size)]
    output = torch.zeros(4)
    dist.reduce_scatter(output, sources)
    same(output, sum(values(r + rank, 4) for r in range(size)))


def case_reduce_scatter_uneven(rank, size):
    if dist.get_backend() == "gloo":
        return
    sources = [values(rank + r, r + 1) for r in range(size)]
    output = torch.zeros(rank + 1)
    dist.reduce_scatter(output, sources)
    same(output, sum(values(r + rank, rank + 1) for r in range(size)))


def case_reduce_scatter_tensor(rank, size):
    source = torch.cat([values(rank + r, 2, 3) for r in range(size)])
    output = torch.zeros(2, 3)
    expected = sum(values(r + rank, 2, 3) for r in range(size))
    dist.reduce_scatter_tensor(output, source)
    same(output, expected)
    dist.reduce_scatter_tensor(output, source.clone(), op=ReduceOp.MAX, async_op=True).wait()
    same(output, values(size - 1 + rank, 2, 3))


def case_all_to_all_single(rank, size):
    source = torch.stack([values(10 * rank + r, 3) for r in range(size)])
    output = torch.zeros(size, 3)
    dist.all_to_all_single(output, source)
    same(output, torch.stack([values(10 * r + rank, 3) for r in range(size)]))


def case_all_to_all_single_uneven(rank, size):
    # Rank s sends s + d rows to rank d.
    sent = [rank + d for d in range(size)]
    received = [s + rank for s in range(size)]
    source = torch.cat([values(10 * rank + d, rank + d, 2) for d in range(size)])
    output = torch.zeros(sum(received), 2)
    dist.all_to_all_single(output, source, received, sent, async_op=True).wait()
    same(output, torch.cat([values(10 * s + rank, s + rank, 2) for s in range(size)]))


def case_all_to_all_list(rank, size):
    if dist.get_backend() == "gloo":
        return
    sources = [values(10 * rank + d, d + 1) for d in range(size)]
    outputs = [torch.zeros(rank + 1) for _ in range(size)]
    dist.all_to_all(outputs, sources)
    for s in range(size):
        same(outputs[s], values(10 * s + rank, rank + 1))


def case_barrier(rank, size):
    for _ in range(20):
        dist.barrier()
    dist.barrier(async_op=True).wait()


def case_monitored_barrier_of_torch(rank, size):
    """Before 2.14 torch refuses its own function on any group that is not gloo's."""
    if dist.get_backend() == "gloo":
        return
    if torch.__version__ < (2, 14):
        with raises(ValueError, "GLOO"):
            dist.monitored_barrier()
        return
    dist.monitored_barrier()
    if rank != size - 1:
        with raises(dist.DistBackendError, str(size - 1)):
            dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=True)
    dist.barrier()
    dist.monitored_barrier()


def case_all_reduce_coalesced(rank, size):
    tensors = [values(rank, 3), values(rank, 2, 2)]
    dist.all_reduce_coalesced(tensors)
    same(tensors[0], total(size, 3))
    same(tensors[1], total(size, 2, 2))
    tensors = [values(rank, 3), values(rank, 2, 2)]
    dist.all_reduce_coalesced(tensors, async_op=True).wait()
    same(tensors[1], total(size, 2, 2))


def case_all_gather_coalesced(rank, size):
    if dist.get_backend() == "gloo":
        return
    outputs = [[torch.zeros(3), torch.zeros(2, 2)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [values(rank, 3), values(rank, 2, 2)])
    for r in range(size):
        same(outputs[r][0], values(r, 3))
        same(outputs[r][1], values(r, 2, 2))


def case_coalescing_manager(rank, size):
    if dist.get_backend() == "gloo":
        return
    manager = dist.distributed_c10d._coalescing_manager
    tensors = [values(rank, n) for n in (2, 3, 4)]
    with manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same(tensor, total(size, tensor.numel()))

    sources = [values(rank, n) for n in (2, 5)]
    outputs = [torch.zeros(n * size) for n in (2, 5)]
    with manager(async_ops=True) as pending:
        for output, source in zip(outputs, sources, strict=True):
            dist.all_gather_into_tensor(output, source)
    pending.wait()
    for output, n in zip(outputs, (2, 5), strict=True):
        same(output, torch.cat([values(r, n) for r in range(size)]))

    sources = [torch.cat([values(rank + r, n) for r in range(size)]) for n in (2, 5)]
    outputs = [torch.zeros(n) for n in (2, 5)]
    with manager():
        for output, source in zip(outputs, sources, strict=True):
            dist.reduce_scatter_tensor(output, source)
    for output, n in zip(outputs, (2, 5), strict=True):
        same(output, sum(values(r + rank, n) for r in range(size)))

    # With a device, every call goes through the group itself.
    tensors = [values(rank, 2), values(rank, 3)]
    with manager(device=torch.device("cpu"), async_ops=True) as pending:
        works = [dist.broadcast(tensor, 0, async_op=True) for tensor in tensors]
    pending.wait()
    assert len(works) == 2
    same(tensors[1], values(0, 3))


def case_coalescing_works_after_an_error(rank, size):
    """After an error inside the manager, the next use works."""
    if dist.get_backend() == "gloo":
        return
    manager = dist.distributed_c10d._coalescing_manager
    try:
        with manager(device=torch.device("cpu")):
            raise KeyError("inside")
    except KeyError:
        dist.distributed_c10d._world.pg_coalesce_state.clear()
    tensor = values(rank, 3)
    with manager(device=torch.device("cpu")):
        dist.all_reduce(tensor)
    tensor = values(rank, 3)
    dist.all_reduce(tensor)
    same(tensor, total(size, 3))


def case_small_and_large_all_reduces_keep_order(rank, size):
    """Order is kept between calls that run on different threads."""
    small = torch.ones(1)
    for i in range(100):
        large = values(rank, 20_000)
        work = dist.all_reduce(large, async_op=True)
        dist.broadcast(small.fill_(i * 10 + rank), i % size)
        assert small.item() == i * 10 + i % size
        work.wait()
        same(large, total(size, 20_000))


def case_views_and_strides(rank, size):
    matrix = values(rank, 6, 8)
    expected = matrix.clone()
    expected[:, 2:5] = total(size, 6, 8)[:, 2:5]
    dist.all_reduce(matrix[:, 2:5])
    same(matrix, expected)

    transposed = values(rank, 4, 5).t()
    dist.all_reduce(transposed)
    same(transposed, total(size, 4, 5).t())

    row = values(rank, 4, 5)
    dist.broadcast(row[::2, 1], 0)
    expected = values(rank, 4, 5)
    expected[::2, 1] = values(0, 4, 5)[::2, 1]
    same(row, expected)


def case_strided_inputs_and_outputs(rank, size):
    if dist.get_backend() == "gloo":
        return
    table = torch.zeros(3, size)
    dist.all_gather(list(table.unbind(1)), values(rank, 3))
    same(table, torch.stack([values(r, 3) for r in range(size)], 1))
    output = torch.zeros(size, 6)[:, ::2]
    dist.all_gather_into_tensor(output, values(rank, 1, 6)[:, ::2])
    same(output.contiguous(), torch.cat([values(r, 1, 6)[:, ::2] for r in range(size)]))
    scattered = torch.zeros(6)[::2]
    sources = list(values(0, 3, size).unbind(1)) if rank == 0 else None
    dist.scatter(scattered, sources, src=0)
    same(scattered.contiguous(), values(0, 3, size)[:, rank].contiguous())
    swapped = torch.zeros(3, size).t()
    dist.all_to_all_single(swapped, values(rank, 3, size).t())
    expected = [values(s, 3, size).t()[rank] for s in range(size)]
    same(swapped.contiguous(), torch.stack(expected))


def case_zero_size(rank, size):
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    dist.all_gather([torch.zeros(0) for _ in range(size)], empty)
    if dist.get_backend() == "gloo":
        return
    dist.all_gather_into_tensor(torch.zeros(0, 3), torch.zeros(0, 3))
    dist.reduce_scatter_tensor(torch.zeros(0), torch.zeros(0))
    dist.all_to_all_single(torch.zeros(0, 2), torch.zeros(0, 2))
    dist.reduce(empty, 0)
    dist.gather(empty, [torch.zeros(0) for _ in range(size)] if rank == 0 else None)
    dist.scatter(torch.zeros(0), [torch.zeros(0) for _ in range(size)] if rank == 0 else None)
    # Only some parts empty.
    outputs = [torch.zeros(r) for r in range(size)]
    dist.all_gather(outputs, values(rank, rank) if rank else torch.zeros(0))
    for r in range(1, size):
        same(outputs[r], values(r, r))


def case_input_is_part_of_output(rank, size):
    """FSDP2 gathers in place."""
    if dist.get_backend() == "gloo":
        return
    whole = torch.zeros(size, 3)
    whole[rank] = values(rank, 3)
    dist.all_gather_into_tensor(whole, whole[rank])
    same(whole, torch.stack([values(r, 3) for r in range(size)]))

    parts = [torch.zeros(3) for _ in range(size)]
    parts[rank].copy_(values(rank, 3))
    dist.all_gather(parts, parts[rank])
    same(torch.stack(parts), whole)

    turned = torch.zeros(size, 2, 2)  # its values are in the place, but in another order
    turned[rank] = values(rank, 2, 2)
    dist.all_gather_into_tensor(turned, turned[rank].t())
    same(turned, torch.stack([values(r, 2, 2).t() for r in range(size)]))

    source = torch.stack([values(rank + r, 3) for r in range(size)])
    dist.reduce_scatter_tensor(source[rank], source)
    same(source[rank], sum(values(r + rank, 3) for r in range(size)))

    swap = torch.stack([values(10 * rank + r, 3) for r in range(size)])
    dist.all_to_all_single(swap, swap)
    same(swap, torch.stack([values(10 * r + rank, 3) for r in range(size)]))


def case_tensors_that_require_grad(rank, size):
    """Parameters are broadcast and reduced as they are."""
    parameter = torch.nn.Parameter(values(rank, 3))
    with torch.no_grad():
        dist.all_reduce(parameter)
    same(parameter.detach(), total(size, 3))
    dist.broadcast(parameter.data, 0)


def case_inputs_are_not_modified(rank, size):
    """Tensors that are only sent are not changed."""
    source = values(rank, 4)
    outputs = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(outputs, source)
    same(source, values(rank, 4))
    sources = [values(rank + r, 4) for r in range(size)]
    dist.reduce_scatter(torch.zeros(4), sources)
    for r in range(size):
        same(sources[r], values(rank + r, 4))
    if dist.get_backend() == "gloo":
        return
    kept = values(rank, 4)
    dist.reduce(kept, 0)
    if rank != 0:
        same(kept, values(rank, 4))
    whole = torch.cat(sources)
    copy = whole.clone()
    factor = dist._make_nccl_premul_sum(2.0)
    dist.reduce_scatter_tensor(torch.zeros(4), whole, op=factor)
    same(whole, copy)


def case_autograd_collectives(rank, size):
    """torch.distributed.nn: gradients flow through collectives."""
    import torch.distributed.nn as dnn

    # The default group of these functions is the one at torch's import of them: name it.
    world = dist.group.WORLD
    x = values(rank, 3).requires_grad_()
    dnn.functional.all_reduce(x, group=world).mul(rank + 1).sum().backward()
    same(x.grad, torch.full((3,), float(size * (size + 1) // 2)))
    x = values(rank, 3).requires_grad_()
    gathered = torch.stack(dnn.functional.all_gather(x, group=world))
    (gathered * (rank + 1)).sum().backward()
    same(x.grad, torch.full((3,), float(size * (size + 1) // 2)))
