"""Ranks on another host die; MPI, mpi4py and torch all say so, and the rest go on.

A program for :mod:`tests.hosts.test_deaths`: four ranks, two on each of two hosts. Each part
prints a line on the ranks that passed it.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch_mpi4py as mpi
from torch_mpi4py import MPI

from tests.torch_mpi4py.dying import all_have, die, passed
from tests.torch_mpi4py.helpers import equal, raises, still_works

# Twice what is promised on one host.
NOTICED_WITHIN_S = 4.0
GOES_ON_WITHIN_S = 1.0


def dies_in_a_collective() -> None:
    """Rank 3, on the other host; the calls after its death are the ones that used to go wrong."""
    raw = MPI.COMM_WORLD.Dup()
    raw.Set_errhandler(MPI.ERRORS_RETURN)
    unchecked = dist.new_group(timeout=timedelta(seconds=20))
    unchecked.check_collectives = False
    still_works(unchecked)
    all_have("begun")
    if dist.get_rank() == 3:
        die()
    start = time.monotonic()
    with raises(mpi.RankFailedError, "rank 3 died", within=NOTICED_WITHIN_S):
        dist.all_reduce(torch.ones(3))
    everything_else_fails_too(raw, unchecked)
    renewed = time.monotonic()
    shrunk = mpi.shrink()
    assert shrunk.dead == [3], shrunk
    still_works()
    took = time.monotonic() - renewed
    assert took < GOES_ON_WITHIN_S, f"shrunk after {took:.2f} s, {renewed - start:.2f} s before"
    large = torch.full((1 << 20,), dist.get_rank() + 1.0)
    dist.all_reduce(large)
    equal(large, [6.0] * (1 << 20))
    passed("a death on the other host")


def everything_else_fails_too(raw: MPI.Intracomm, unchecked: dist.ProcessGroup) -> None:
    """None of these calls may return, crash or give a wrong result."""
    for elements in (1, 1 << 16):
        ones, sums, tensor = np.ones(elements), np.zeros(elements), torch.ones(elements)
        fails(dist.all_reduce, tensor, group=unchecked)
        for comm in (raw, mpi.world()):
            fails(comm.Allreduce, ones, sums)
            fails(comm.Bcast, ones, root=3)
            fails(comm.Barrier)


def fails(call: Callable[..., object], *arguments: object, **options: object) -> None:
    try:
        call(*arguments, **options)
    except (MPI.Exception, mpi.CommunicationError):
        return
    raise AssertionError(f"{call} returned in spite of a death")


def main() -> None:
    """Lose a rank of the other host."""
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=20))
    names = mpi.world().allgather(socket.gethostname())
    assert names == ["h1", "h1", "h2", "h2"], names
    dies_in_a_collective()
    sys.exit(7)


if __name__ == "__main__":
    main()
