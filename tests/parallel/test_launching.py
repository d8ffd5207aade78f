"""Which backend the ranks of a program get: decided from what all of them have."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.parallel import launching
from tests import ranks

TWO = ["here 0:1:0", "here 0:2:0"]


@pytest.mark.parametrize(
    ("identities", "nccl", "wanted", "chosen"),
    [
        (TWO, True, "", True),
        (TWO, True, "nccl", True),
        (TWO, True, "mpi4py", False),
        (TWO, True, "gloo", False),
        (TWO, False, "", False),
        ([TWO[0], TWO[0]], True, "", False),
        ([*TWO, ""], True, "", False),
        (["", ""], True, "nccl", False),
    ],
)
def test_nccl_is_chosen_when_each_rank_has_a_gpu(
    identities: list[str], nccl: bool, wanted: str, chosen: bool
) -> None:
    assert launching.chooses_nccl(identities, nccl, wanted) is chosen


def test_ranks_exchange_gpus_through_the_store() -> None:
    store = dist.HashStore()
    for rank, gpu in enumerate(TWO):
        meeting = {"store": store, "rank": rank, "world_size": 2}
        if rank == 0:
            store.set("GPU of rank 1", TWO[1])  # the other one was quicker
        assert launching._told_to_all(meeting, gpu) == TWO


PROGRAM = """
from datetime import timedelta
import torch
import torch.distributed as dist
import torch_mpi4py
from course_lib.parallel.launching import process_group

with process_group(30) as place:
    print(f"rank {place.rank}: {place.backend}, {place.local_rank}, {place.device}", flush=True)
dist.init_process_group("gloo", init_method="mpi://", timeout=timedelta(seconds=30))
total = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(total)
dist.barrier()
print(f"rank {dist.get_rank()}: {total.tolist()}", flush=True)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it is NCCL")
def test_other_backends_under_mpiexec_rendezvous_through_mpi() -> None:
    """As NCCL does where there are GPUs: all that it wants of us is the store."""
    ended = ranks.run(2, "-c", PROGRAM, limit=100)
    assert ended.returncode == 0, ended.output
    for rank in range(2):
        assert f"rank {rank}: mpi4py, {rank}, cpu" in ended.output
        assert f"rank {rank}: [3.0, 3.0, 3.0]" in ended.output
