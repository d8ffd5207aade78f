"""A monitored barrier names a rank that has died, and the others can go on without it."""

from __future__ import annotations

from tests import ranks

PROGRAM = """
import os, signal, time
import torch, torch.distributed as dist
import torch_mpi4py as mpi
from tests.torch_mpi4py.helpers import still_works

dist.init_process_group("mpi4py", init_method="mpi://")
rank = dist.get_rank()
still_works()
store = dist.distributed_c10d._get_default_store()
if rank == DIES:  # after the others' last word to the store, which may end with this rank
    until = time.monotonic() + 60
    while store.add("begun", 0) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
store.add("begun", 1)
begin = time.monotonic()
try:
    mpi.monitored_barrier(timeout=60)
except mpi.RankFailedError as error:
    assert "rank DIES died" in str(error), error
    assert time.monotonic() - begin < 30, "it waited for the dead"
    print("named", flush=True)
mpi.shrink()
still_works()
mpi.monitored_barrier(timeout=60)
print("goes on", flush=True)
"""


def survivors_go_on(dies: int) -> None:
    finished = ranks.run(3, "-c", PROGRAM.replace("DIES", str(dies)), limit=200)
    assert finished.output.count("named") == 2, finished.output
    assert finished.output.count("goes on") == 2, finished.output


def test_the_dead_rank_is_named() -> None:
    survivors_go_on(1)


def test_also_that_which_served_the_store() -> None:
    survivors_go_on(0)
