"""Ranks that talk until a cable is cut, and say what became of it.

A program for :mod:`tests.hosts.test_cut_cable`, which runs several of them at a time::

    python -m tests.hosts.cut_loops FOLDER NAME KIND ELEMENTS SECONDS END
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch_mpi4py as mpi


def main(folder: Path, name: str, kind: str, elements: int, seconds: float, end: str) -> None:
    """Sum ``elements`` float32 numbers again and again, and end as ``end`` says."""
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    comm, rank = mpi.world(), dist.get_rank()
    tensor, sums = torch.zeros(elements), np.zeros(elements, np.float32)
    calls = {
        "dist": lambda: dist.all_reduce(tensor),
        "comm": lambda: comm.Allreduce(tensor.numpy(), sums),
    }
    calls[kind]()
    dist.group.WORLD.set_timeout(timedelta(seconds=seconds))
    comm.timeout = seconds
    try:
        while True:
            start = time.monotonic()
            calls[kind]()
            (folder / f"{name}-going-{rank}").touch()
    except mpi.CommunicationError as error:
        said = {"seconds": time.monotonic() - start, "error": f"{type(error).__name__}: {error}"}
        (folder / f"{name}-new-{rank}").write_text(json.dumps(said))
        (folder / f"{name}-new-{rank}").rename(folder / f"{name}-said-{rank}")
        if end == "raise":
            raise
    try:
        mpi.shrink(seconds)
    except mpi.CommunicationError as error:
        (folder / f"{name}-alone-{rank}").write_text(str(error))
    sys.exit(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]), float(sys.argv[5]), sys.argv[6])
