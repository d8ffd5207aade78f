"""Single calls of all_reduce and of raw MPI, one after the other, cold as in a real program.

Runs under ``mpiexec -n 2``; rank 0 writes the samples, in seconds, to the file named on the command
line. A benchmark that calls all_reduce in a loop keeps its code in the caches. Here no call is
repeated: ``turns`` are single calls that alternate, ``step`` are single calls between which each
rank trains LeNet for a step, which takes milliseconds and empties the caches. So do, in part, turns
of 1 MiB: their data push code out of a core's own cache, which costs the call with more code more.
A barrier of raw MPI comes before each call, so that nobody's waiting is timed; a sample is the
slower rank's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch_mpi4py import MPI

from benchmarks.measure import slowest, step_of
from course_lib.training.models import LeNet

TURN_BYTES = {4: 2000, 2**20: 600}  # rounds of each size
STEP_BYTES = {4: 250}
IMAGES = 64


def variants_of(comm: MPI.Intracomm, size: int) -> dict[str, Callable[[], None]]:
    """Return all_reduce and raw MPI on one buffer of ``size`` bytes."""
    tensor = torch.zeros(size // 4)
    message = [tensor.numpy(), size // 4, MPI.FLOAT]
    return {
        "ours": lambda: dist.all_reduce(tensor),
        "raw": lambda: comm.Allreduce(MPI.IN_PLACE, message, MPI.SUM),
    }


def single(comm: MPI.Intracomm, call: Callable[[], None]) -> float:
    """Return the seconds of one call, on the slower rank."""
    comm.Barrier()
    start = time.perf_counter()
    call()
    return slowest(comm, time.perf_counter() - start)


def alternating(
    comm: MPI.Intracomm, size: int, rounds: int, between: Callable[[], None]
) -> dict[str, list[float]]:
    """Return samples of both variants, which take turns, ``between`` being called before each."""
    variants = variants_of(comm, size)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds):
        for name in list(variants)[:: 1 if turn % 2 else -1]:
            between()
            samples[name].append(single(comm, variants[name]))
    return {name: found[len(found) // 10 :] for name, found in samples.items()}


def main() -> None:
    """Measure on both ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    comm = MPI.COMM_WORLD.Dup()
    model: nn.Module = LeNet()
    step = step_of(model, torch.randn(IMAGES, 1, 28, 28), torch.randint(10, (IMAGES,)))
    turns = [
        {"bytes": size, "samples": alternating(comm, size, rounds, lambda: None)}
        for size, rounds in TURN_BYTES.items()
    ]
    steps = [
        {"bytes": size, "samples": alternating(comm, size, rounds, step)}
        for size, rounds in STEP_BYTES.items()
    ]
    if dist.get_rank() == 0:
        result = {"ranks": dist.get_world_size(), "turns": turns, "step": steps, "images": IMAGES}
        Path(sys.argv[1]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
