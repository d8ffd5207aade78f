"""All variants take turns in the same ranks, so that noise hits them alike.

Runs under ``mpiexec``; rank 0 writes the samples, in seconds, to the file named on the
command line. One sample is the mean over a short loop, on the slowest rank.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch_mpi4py
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_mpi4py import MPI

from course_lib.training.models import MLP, LeNet

SIZES = tuple(4 * 4**power for power in range(13))  # bytes: 4 B to 64 MiB
SMALL = 64 * 1024
ROUNDS = 11
LONG, LONG_ROUNDS = 64 * 2**20, 7  # such calls take a tenth of a second
LOOP_SECONDS = 0.02
WARM_CALLS = 3  # after another variant's turn the first call is slow, gloo's by milliseconds
LEAST_LOOPS = 5
LEAST_LOOPS_SMALL = 40
BATCHES = {8: 61, 32: 61, 256: 11}  # images a rank, and rounds: less time for long steps
USUAL_BATCH = 32  # more ranks than two are measured with this one only

Variants = dict[str, Callable[[], None]]


def slowest(comm: MPI.Intracomm, seconds: float) -> float:
    """Return the largest of all ranks' ``seconds``."""
    value = numpy.array([seconds])
    comm.Allreduce(MPI.IN_PLACE, value, MPI.MAX)
    return float(value[0])


def timed(comm: MPI.Intracomm, call: Callable[[], None], loops: int) -> float:
    """Return seconds per call, after calls that do not count."""
    for _ in range(WARM_CALLS):
        call()
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return slowest(comm, (time.perf_counter() - start) / loops)


def take_turns(
    comm: MPI.Intracomm, variants: Variants, rounds: int, least_loops: int
) -> dict[str, list[float]]:
    """Return ``rounds`` samples of each variant, taken in turns, each time another one first."""
    loops = {}
    for name, call in variants.items():
        once = min(timed(comm, call, least_loops) for _ in range(2))
        loops[name] = max(least_loops, min(500, round(LOOP_SECONDS / once)))
    samples: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(timed(comm, variants[name], loops[name]))
    return samples


def all_reduces(comm: MPI.Intracomm, gloo: dist.ProcessGroup) -> list[dict]:
    """Measure all_reduce of float32 zeros at every size."""
    unchecked = dist.new_group()
    unchecked.check_collectives = False
    rows = []
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        message = [tensor.numpy(), size // 4, MPI.FLOAT]
        variants: Variants = {
            "ours": lambda: dist.all_reduce(tensor),  # noqa: B023 used within this turn
            "gloo": lambda: dist.all_reduce(tensor, group=gloo),  # noqa: B023
            "raw": lambda: comm.Allreduce(MPI.IN_PLACE, message, MPI.SUM),  # noqa: B023
        }
        # The check costs a few per cent, less than the weather: one right after the other, in
        # either order, and twice as often.
        pair: Variants = {
            "checked": variants["ours"],
            "unchecked": lambda: dist.all_reduce(tensor, group=unchecked),  # noqa: B023
        }
        if size <= SMALL:
            variants["asynchronous"] = lambda: dist.all_reduce(tensor, async_op=True).wait()  # noqa: B023
        least_loops = LEAST_LOOPS_SMALL if size <= SMALL else LEAST_LOOPS
        rounds = LONG_ROUNDS if size >= LONG else ROUNDS
        samples = take_turns(comm, variants, rounds, least_loops)
        samples |= take_turns(comm, pair, 2 * rounds, least_loops)
        rows.append({"bytes": size, "samples": samples})
    return rows


def step_of(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    """Return a function that trains ``model`` by one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def send_nothing(_, bucket):  # type: ignore[no-untyped-def]  # DDP reads no text annotations
    """A communication hook that leaves every rank its own gradients."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def silent(model: DDP) -> DDP:
    """Return ``model`` after telling it to send nothing: all that DDP does but communicate."""
    model.register_comm_hook(None, send_nothing)
    return model


def ddp_steps(comm: MPI.Intracomm, gloo: dist.ProcessGroup) -> list[dict]:
    """Measure a training step under DDP; ``silent`` is the same without communication."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "MLP": lambda: MLP(inputs=784, hidden=(512, 512)),
        "LeNet": lambda: LeNet(),
    }
    batches = BATCHES if comm.Get_size() == 2 else {USUAL_BATCH: BATCHES[USUAL_BATCH]}
    rows = []
    for batch, rounds in batches.items():
        inputs, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
        for name, make in makers.items():
            variants = {
                "ours": step_of(DDP(make()), inputs, labels),
                "gloo": step_of(DDP(make(), process_group=gloo), inputs, labels),
                "silent": step_of(silent(DDP(make())), inputs, labels),
            }
            parameters = sum(parameter.numel() for parameter in make().parameters())
            row = {"model": name, "batch": batch, "parameters": parameters}
            rows.append(row | {"samples": take_turns(comm, variants, rounds, LEAST_LOOPS)})
    return rows


def main() -> None:
    """Measure everything on this number of ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo")
    comm = MPI.COMM_WORLD.Dup()
    result = {
        "ranks": dist.get_world_size(),
        "library": torch_mpi4py.library(),
        "torch": torch.__version__,
        "all_reduce": all_reduces(comm, gloo),
        "ddp_step": ddp_steps(comm, gloo),
    }
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
