"""Functional collectives, which DTensor and torch.compile use, return results."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tests.ranks import case
from tests.torch_mpi4py.cases.collectives import same, total, values


def world() -> dist.ProcessGroup:
    return dist.group.WORLD


def case_all_reduce(rank, size):
    source = values(rank, 2, 3)
    same(funcol.all_reduce(source, "sum", world()) + 0, total(size, 2, 3))
    same(source, values(rank, 2, 3))
    same(funcol.all_reduce(source, "max", world()) + 0, values(size - 1, 2, 3))
    if dist.get_backend() != "gloo":
        same(funcol.all_reduce(source * size, "avg", world()) + 0, total(size, 2, 3))


def case_all_gather_tensor(rank, size):
    for dimension in (0, 1):
        result = funcol.all_gather_tensor(values(rank, 2, 3), dimension, world()) + 0
        same(result, torch.cat([values(r, 2, 3) for r in range(size)], dimension))


def case_reduce_scatter_tensor(rank, size):
    source = torch.cat([values(rank + r, 2, 3) for r in range(size)])
    expected = sum(values(r + rank, 2, 3) for r in range(size))
    same(funcol.reduce_scatter_tensor(source, "sum", 0, world()) + 0, expected)
    sideways = torch.cat([values(rank + r, 2, 3) for r in range(size)], 1)
    same(funcol.reduce_scatter_tensor(sideways, "sum", 1, world()) + 0, expected)


def case_coalesced(rank, size):
    sources = [values(rank, 2), values(rank, 3)]
    for i, result in enumerate(funcol.all_reduce_coalesced(sources, "sum", world())):
        same(result + 0, total(size, 2 + i))
    results = funcol.all_gather_into_tensor_coalesced(sources, world())
    for i, result in enumerate(results):
        same(result + 0, torch.cat([values(r, 2 + i) for r in range(size)]))
    sources = [torch.cat([values(rank + r, n) for r in range(size)]) for n in (2, 3)]
    results = funcol.reduce_scatter_tensor_coalesced(sources, "sum", [0, 0], world())
    for i, result in enumerate(results):
        same(result + 0, sum(values(r + rank, 2 + i) for r in range(size)))


def case_all_to_all_single(rank, size):
    sent, received = [rank + d for d in range(size)], [s + rank for s in range(size)]
    source = torch.cat([values(10 * rank + d, rank + d, 2) for d in range(size)])
    result = funcol.all_to_all_single(source, received, sent, world()) + 0
    same(result, torch.cat([values(10 * s + rank, s + rank, 2) for s in range(size)]))


def case_broadcast(rank, size):
    same(funcol.broadcast(values(rank, 3), size - 1, world()) + 0, values(size - 1, 3))


def case_permute(rank, size):
    result = funcol.permute_tensor(values(rank, 3), [(r + 1) % size for r in range(size)], world())
    same(result + 0, values((rank - 1) % size, 3))


def case_gradients(rank, size):
    """The autograd variants send gradients back the way the values came."""
    x = values(rank, 2).requires_grad_()
    gathered = funcol.all_gather_tensor_autograd(x, 0, world())
    (gathered * (rank + 1)).sum().backward()
    same(x.grad, torch.full((2,), float(size * (size + 1) // 2)))


@case(sizes=(2, 3, 4))
def case_messages_of_compiled_programs(rank, size):
    """What ``torch.compile`` makes of ``batch_isend_irecv``, on a group of ours and on gloo's."""
    operators = torch.ops._c10d_functional
    if not hasattr(operators, "batch_p2p_ops"):  # PyTorch 2.11 has no such operator
        return
    peers = [(rank + 1) % size, (rank - 1) % size]
    for backend in ("mpi4py", "gloo"):
        name = dist.new_group(backend=backend).group_name
        received = torch.zeros(3)
        tensors = [torch.full((3,), float(rank)), received]
        results = operators.batch_p2p_ops(["isend", "irecv"], peers, [0, 0], tensors, name)
        sent, result = map(operators.wait_tensor, results)
        same(result, torch.full((3,), float(peers[1])))
        same(received, result)
        assert sent.numel() == 0
