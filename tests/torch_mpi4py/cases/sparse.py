"""Sparse COO tensors add up as dense ones do, and embeddings train with sparse gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_mpi4py import MismatchError

from tests.torch_mpi4py.helpers import equal, raises, sizes, still_works

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)


def rows_of(rank: int, dtype: torch.dtype, uncoalesced: bool = True) -> torch.Tensor:
    """A 9 x 2 tensor with other rows on each rank, one of them twice; rank 1 has none."""
    rows = [] if rank == 1 else [0, rank + 2, 8, *([8] if uncoalesced else [])]
    values = torch.tensor([[rank + 1, i + 1] for i in range(len(rows))]).reshape(-1, 2)
    indices = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, values.to(dtype), (9, 2), check_invariants=True)


def same_bits(sparse: torch.Tensor, dense: torch.Tensor) -> None:
    assert sparse.is_coalesced()
    assert sparse.dtype == dense.dtype
    assert torch.equal(sparse.to_dense(), dense), f"{sparse.to_dense()} is not {dense}"


def case_sum_equals_dense_sum(rank, size):
    for dtype in DTYPES:
        for uncoalesced in (False, True):
            sparse = rows_of(rank, dtype, uncoalesced)
            dense = sparse.to_dense()
            dist.all_reduce(dense)
            dist.all_reduce(sparse)
            same_bits(sparse, dense)


def case_average(rank, size):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        sparse = rows_of(rank, dtype)
        dense = sparse.to_dense()
        dist.all_reduce(dense, dist.ReduceOp.AVG)
        dist.all_reduce(sparse, dist.ReduceOp.AVG)
        same_bits(sparse, dense)


def case_tensors_without_values(rank, size):
    sparse = torch.zeros(3, 4).to_sparse()
    dist.all_reduce(sparse)
    same_bits(sparse, torch.zeros(3, 4))


def case_all_dimensions_sparse_and_asynchronous(rank, size):
    sparse = (torch.eye(4) * (rank + 1)).to_sparse()
    work = dist.group.WORLD.allreduce([sparse])
    assert work.get_future().wait()[0] is not None
    work.wait()
    same_bits(sparse, torch.eye(4) * size * (size + 1) / 2)


@sizes(2, 3, 4)
def case_mismatch_is_reported(rank, size):
    other = torch.ones(4) if rank == 0 else torch.ones(4).to_sparse()
    with raises(MismatchError, "all_reduce(SUM) of 4", "of sparse 4"):
        dist.all_reduce(other)
    with raises(MismatchError, "sparse 3 x 2", "sparse 2 x 3"):
        dist.all_reduce(torch.ones(3, 2).to_sparse() if rank else torch.ones(2, 3).to_sparse())
    still_works()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 3, sparse=True)
        self.linear = nn.Linear(3, 1, bias=False)
        with torch.no_grad():  # small whole numbers, so that no order of sums matters
            self.embedding.weight.copy_(torch.arange(30).reshape(10, 3) % 5 - 2)
            self.linear.weight.fill_(2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embedding(words))


def words_of(rank: int, step: int) -> torch.Tensor:
    return torch.tensor([rank, (rank + step) % 10, 7, 7])


@sizes(2, 4)
def case_ddp_of_a_sparse_embedding_equals_one_process(rank, size):
    replica, serial = DDP(Words()), Words()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.25) for model in (replica, serial)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        replica(words_of(rank, step)).sum().backward()
        for other in range(size):
            (serial(words_of(other, step)).sum() / size).backward()
        gradient = replica.module.embedding.weight.grad
        assert gradient.is_sparse
        equal(gradient.to_dense(), serial.embedding.weight.grad.to_dense())
        for optimizer in optimizers:
            optimizer.step()
    for mine, wanted in zip(replica.module.parameters(), serial.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert not torch.equal(serial.embedding.weight, Words().embedding.weight)
