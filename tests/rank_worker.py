"""One rank of a battery; it runs the planned cases and writes down each.

Ranks wait for each other between cases on a communicator of their own, so that one case
cannot spoil the next. A rank that does not come back from a case in time is ended from
outside Python (faulthandler), which also writes the stacks of its threads.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch_mpi4py
from torch_mpi4py import MPI, gpus

from tests.ranks import CASE_SECONDS, GROUP_SECONDS, ON_GPUS

MEETING_SECONDS = 15.0
EXIT_SECONDS = 45.0


def start_group(backend: str, store: Path, seconds: float) -> None:
    """Make the default process group."""
    timeout = timedelta(seconds=seconds)
    if backend == "mpi4py":
        dist.init_process_group("mpi4py", init_method="mpi://", timeout=timeout)
        return
    world = MPI.COMM_WORLD
    dist.init_process_group(
        backend,
        store=dist.FileStore(str(store), world.size),
        rank=world.rank,
        world_size=world.size,
        timeout=timeout,
    )


def run_case(function, folder: Path, index: int, backend: str, comm: MPI.Intracomm) -> str:
    """Run one case on this rank and return its traceback, empty if all is well."""
    rank, size = comm.Get_rank(), comm.Get_size()
    torch.manual_seed(index)
    own_group = not getattr(function, "group", True)
    try:
        if not own_group:
            seconds = getattr(function, "timeout", GROUP_SECONDS)
            start_group(backend, folder / f"{index}.store", seconds)
        function(rank, size)
        error = ""
    except Exception:
        error = traceback.format_exc()
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
    except Exception:
        error += "\nin destroy_process_group:\n" + traceback.format_exc()
    return error


def meet(comm: MPI.Intracomm) -> None:
    """Wait for the other ranks without keeping a core busy."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def main() -> None:
    """Run the plan in the folder named on the command line."""
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "plan.json").read_text())
    torch.set_num_threads(1)
    warnings.filterwarnings("error", module="torch_mpi4py")  # a user would read them
    comm = MPI.COMM_WORLD.Dup()
    rank = comm.Get_rank()
    if ON_GPUS in os.environ:  # whatever a case makes then lies on a GPU, unless it says where
        local_rank = gpus.local_rank(rank, comm.allgather(MPI.Get_processor_name()))
        torch.set_default_device(gpus.device_name(local_rank, torch.cuda.device_count()))
    functions = []
    for name in plan["cases"]:
        module, _, function = name.partition(":")
        functions.append(getattr(importlib.import_module(module), function))
    gc.freeze()  # what has been imported is no garbage, and takes 0.1 s to look through
    excepthook = sys.excepthook
    meet(comm)
    for index, function in enumerate(functions):
        seconds = getattr(function, "seconds", CASE_SECONDS)
        with open(folder / f"{index}.{rank}.begun", "w") as stacks:
            faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
            begin = time.monotonic()
            error = run_case(function, folder, index, plan["backend"], comm)
            sys.excepthook = excepthook  # torch wraps it anew in every init_process_group
            report = {"seconds": time.monotonic() - begin, "error": error}
            partial = folder / f"{index}.{rank}.partial"
            partial.write_text(json.dumps(report))
            partial.rename(folder / f"{index}.{rank}.json")
            # One that only waits ends after the one that is stuck: mpiexec ends the others with the
            # first (MPICH's at once), and then those who are stuck have written no stacks.
            faulthandler.dump_traceback_later(seconds + MEETING_SECONDS, exit=True, file=stacks)
            meet(comm)
            faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True)


if __name__ == "__main__":
    assert torch_mpi4py.library()
    main()
