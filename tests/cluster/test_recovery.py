"""A loss that the learner was told of is not told again when it shows on another rank, later."""

from __future__ import annotations

from tests import ranks

PROGRAM = """
import time
from datetime import timedelta
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from torch.nn.parallel import DistributedDataParallel
import torch_mpi4py
from ipyranks import rank_functions

shell = InteractiveShell.instance()
dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
torch_mpi4py.world()
held, free = dist.new_group(), dist.new_group()
model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=held)
shell.user_ns.update(held=held, model=model, free=free)
rank_functions.note_told(["model"])  # another rank has seen it; here the group is still whole
dist.barrier()
for group in (held, free):
    if dist.get_rank() == 0:
        group.comm.Revoke()
    until = time.monotonic() + 40
    while not group.comm.Is_revoked() and time.monotonic() < until:
        torch_mpi4py.MPI.COMM_SELF.Iprobe()  # only a call makes progress
print("lost:", *sorted(rank_functions.condition().lost), flush=True)
dist.barrier()
"""


def test_lost_rank_inside_ddp_is_reported_once() -> None:
    finished = ranks.run(2, "-c", PROGRAM, limit=120)
    assert finished.returncode == 0, finished.output
    assert finished.output.count("lost: free\n") == 2, finished.output
