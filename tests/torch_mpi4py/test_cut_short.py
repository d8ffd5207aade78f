"""A gather to all that a death or a revocation cuts short raises, and never returns what is not so.

Open MPI's own way of a short ``Allgatherv`` ends with a broadcast by rank 0, whose failure it does
not report. Here rank 0 dies, or does not come, when the others are in that broadcast.
"""

from __future__ import annotations

import re

import pytest

from tests import ranks

pytestmark = pytest.mark.timeout(250)

PROGRAM = """
import os, signal, sys, time
import numpy as np
import torch, torch.distributed as dist
import torch_mpi4py as mpi
from torch_mpi4py import MPI
from torch_mpi4py.group import collectives

def die(*_):
    time.sleep(0.3)  # if the others are not in the broadcast by then, they raise all the same
    os.kill(os.getpid(), signal.SIGKILL)

def ends(part, call, *classes):
    try:
        call()
    except classes as error:
        print(f"rank {comm.rank} of {comm.size}: {part}: {type(error).__name__}", flush=True)
    else:
        print(f"rank {comm.rank} of {comm.size}: {part}: returned", flush=True)

def gathers_to_all():
    mine, everyone = np.ones(1), np.full(comm.size, -1.0)
    comm.Allgatherv(mine, [everyone, [1] * comm.size])
    print("as it was:", everyone.tolist(), flush=True)

comm = mpi.world()
everyone = comm.allgather(comm.rank)  # leaves its memory to the next
comm.stop_meeting()  # so that the others wait for rank 0 in MPI
comm.timeout = 3 if comm.rank == 1 else 60
if comm.rank != 0:
    ends("left alone", gathers_to_all, mpi.DeadlineError, mpi.RevokedError)
comm = mpi.renew_world()

comm.stop_meeting()
comm.timeout = 60
comm.allgather(comm.rank)
if comm.rank == 0:  # as the object's call begins: how long are they?
    sizes = np.zeros(comm.size, dtype=np.int64)
    MPI.Intracomm.Allgather(comm, np.full(1, len(MPI.pickle.dumps(0))), sizes)
    die()
ends("objects", lambda: comm.allreduce(comm.rank), mpi.RankFailedError)
mpi.shrink()

comm = mpi.world()
dist.init_process_group("mpi4py", init_method="mpi://")
outputs = [torch.full((rank + 1,), -1.0) for rank in range(comm.size)]
if comm.rank == 0:
    collectives.by_rank = die  # the last thing before the call
ends("tensors", lambda: dist.all_gather(outputs, outputs[comm.rank]), mpi.RankFailedError)
mpi.shrink()

comm = mpi.world()
if comm.rank == 0:
    die()
raw = lambda: MPI.Intracomm.Allgatherv(comm, np.ones(1), [np.ones(comm.size), [1] * comm.size])
ends("mpi4py alone", raw, MPI.Exception)
"""
# What Open MPI does unless it is told otherwise.
ITS_OWN_WAY = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "0"}


@pytest.mark.parametrize("variables", [{}, ITS_OWN_WAY], ids=["our way", "its own way"])
def test_gather_cut_short_by_a_failure_does_not_return(variables: dict[str, str]) -> None:
    finished = ranks.run(5, "-c", PROGRAM, limit=150, variables=variables)
    said = re.findall(r"^rank (\d) of (\d): ([\w ]+): (\w+)$", finished.output, re.MULTILINE)
    by_mpi_alone = "returned" if variables else "Exception"  # else this test tests nothing
    assert sorted(said) == sorted(
        [("1", "5", "left alone", "DeadlineError")]
        + [(str(rank), "5", "left alone", "RevokedError") for rank in (2, 3, 4)]
        + [(str(rank), "5", "objects", "RankFailedError") for rank in (1, 2, 3, 4)]
        + [(str(rank), "4", "tensors", "RankFailedError") for rank in (1, 2, 3)]
        + [(str(rank), "3", "mpi4py alone", by_mpi_alone) for rank in (1, 2)]
    ), finished.output
    assert "as it was" not in finished.output
    assert not finished.left_behind
