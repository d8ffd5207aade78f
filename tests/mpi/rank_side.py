"""The one idea: what one rank of a battery does: every case in order, each with a time limit.

Started by tests.mpi.launches.py as ``python -m tests.mpi.rank_side FOLDER SECONDS MODULE...``.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import course_lib.mpi  # registers the backend
from tests.mpi.launches import cases_in

GROUP_TIMEOUT = timedelta(seconds=20)


def main() -> None:
    folder, seconds, *modules = sys.argv[1:]
    torch.set_num_threads(1)
    course_lib.mpi.world()
    start_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    # Cases may break their group; this communicator is the battery's own.
    comm = course_lib.mpi.MPI.COMM_WORLD.Dup()
    log = open(Path(folder) / f"rank-{rank}.jsonl", "w", buffering=1)  # noqa: SIM115
    stack = open(Path(folder) / f"rank-{rank}.stack", "w")  # noqa: SIM115
    for module in modules:
        loaded = importlib.import_module(f"tests.mpi.failures.{module}")
        for case in cases_in(module):
            if size not in case.sizes:
                continue
            name = f"{module}.{case.name}"
            faulthandler.dump_traceback_later(float(seconds), exit=True, file=stack)
            print(json.dumps({"case": name}), file=log)
            error = outcome(getattr(loaded, case.name), rank, size)
            print(json.dumps({"case": name, "error": error}), file=log)
            if any(comm.allgather(bool(error))):
                start_group()  # so that one failure does not become many
            faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(float(seconds), exit=True, file=stack)
    dist.destroy_process_group()


def outcome(case, rank: int, size: int) -> str:
    """Return the traceback of a case that failed, nothing if it went well."""
    started = time.monotonic()
    torch.manual_seed(0)
    try:
        case(rank, size)
    except Exception:
        if dist.is_initialized():
            dist.group.WORLD.abort()  # the others may wait for this rank
        return f"(after {time.monotonic() - started:.1f} s)\n{traceback.format_exc()}"
    return ""


def start_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=GROUP_TIMEOUT)


if __name__ == "__main__":
    main()
