"""Cases that go wrong on purpose, to see that the runner says how."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

from tests.ranks import case


def case_passes(rank, size):
    dist.barrier()


def case_fails_on_rank_1(rank, size):
    assert rank != 1, "wrong on rank one"


@case(seconds=10)  # enough to reach the wait, on a machine that may stall
def case_hangs_on_rank_1(rank, size):
    if rank == 1:
        threading.Event().wait()


def case_after_the_hang(rank, size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size
