"""From the moment a rank kills itself to the survivors' next all-reduce.

Runs under ``mpiexec -n 5``, three ranks die one after the other; rank 0 writes the seconds to the
file named on the command line. All ranks are on one machine, so their clocks are one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch_mpi4py as mpi

DEATHS = 3


def after_a_death(file: Path) -> float:
    """Let the last rank die in the midst of all-reduces; return the seconds on the slowest rank."""
    dist.barrier()
    number = torch.ones(1)
    for _ in range(20):
        dist.all_reduce(number)
    if dist.get_rank() == dist.get_world_size() - 1:
        file.write_text(repr(time.perf_counter()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(number)
    except mpi.RankFailedError:
        mpi.shrink()
    number = torch.ones(1)
    dist.all_reduce(number)
    done = time.perf_counter()
    assert number.item() == dist.get_world_size()
    last = torch.tensor(done, dtype=torch.float64)
    dist.all_reduce(last, dist.ReduceOp.MAX)
    return last.item() - float(file.read_text())


def main() -> None:
    """Measure every death."""
    torch.set_num_threads(1)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
    ranks = dist.get_world_size()
    output = Path(sys.argv[1])
    file = output.with_suffix(".death")
    seconds = [after_a_death(file) for _ in range(DEATHS)]
    if dist.get_rank() == 0:
        output.write_text(json.dumps({"ranks": ranks, "seconds": seconds}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
