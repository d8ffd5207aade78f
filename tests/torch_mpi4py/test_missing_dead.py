"""Ranks that meet at the store hear of a death there, and go on without the dead rank."""

from __future__ import annotations

import pytest

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
    while store.add("begun", 0) < dist.get_world_size() - 1:
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
store.add("begun", 1)
begin = time.monotonic()
try:
    CALL
except mpi.RankFailedError as error:
    assert "rank DIES died" in str(error), error
    assert time.monotonic() - begin < 30, "it waited for the dead"
    print("named", flush=True)
until = time.monotonic() + 60
while not dist.group.WORLD.failed_ranks():  # a shrink before the death would name no rank
    assert time.monotonic() < until
    time.sleep(0.01)
mpi.shrink()
still_works()
mpi.monitored_barrier(timeout=60)
dist.new_group(range(dist.get_world_size()))
print("goes on", flush=True)
"""
CALLS = {
    "barrier": "mpi.monitored_barrier(timeout=60)",
    "group": "dist.new_group([0, 1, 2])",
}


def survivors_go_on(call: str, dies: int, size: int = 3) -> None:
    program = PROGRAM.replace("CALL", call).replace("DIES", str(dies))
    finished = ranks.run(size, "-c", program, limit=200)
    assert finished.output.count("named") == 2, finished.output
    assert finished.output.count("goes on") == size - 1, finished.output


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_dead_rank_is_named(call: str) -> None:
    survivors_go_on(call, 1)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_dead_rank_serving_the_store_is_named(call: str) -> None:
    survivors_go_on(call, 0)


def test_shrinking_frees_ranks_waiting_in_new_group() -> None:
    """Rank 3, which dies, is no member; rank 2 is one, and does not come."""
    survivors_go_on("rank == 2 or dist.new_group([0, 1, 2])", 3, size=4)
