"""Two ranks with a batch each against one process with one batch, in turns.

Runs under ``mpiexec -n 2``; rank 0 writes the samples, in training samples per second, to the
file named on the command line. All variants train LeNet on the same images by the same loop:
choose a batch, forward, backward, (synchronise,) update. ``one`` is rank 0 training alone while
the other rank sleeps; ``apart`` is both ranks training without a word to each other, which is all
that two processes can do on this machine; ``sync`` and ``ddp`` keep the replicas equal.
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
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_mpi4py import MPI

from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.parallel.invariants import assert_replicas_equal
from course_lib.training.data import DataSet, load_available
from course_lib.training.loops import set_seed
from course_lib.training.models import LeNet

# Images a step on each rank, and steps to a sample of some 0.2 s. PyTorch's own MNIST example
# takes 64; with more images a step there is more to compute for every byte to send.
STEPS = {64: 40, 256: 12}
WARM_STEPS = 3
ROUNDS = 17

Synchronise = Callable[[nn.Module], None]


def meet(comm: MPI.Intracomm) -> None:
    """Wait for the other rank and leave the core to it meanwhile."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def trainer(model: nn.Module, data: DataSet, batch: int, synchronise: Synchronise) -> Callable:
    """Return a function that trains for so many steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())

    def steps(count: int) -> None:
        order = torch.randperm(len(data), generator=generator)[: count * batch]
        for chosen in order.split(batch):
            images, labels = data[chosen]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            synchronise(model)
            optimizer.step()

    return steps


def seconds(comm: MPI.Intracomm, steps: Callable[[int], None], count: int, ranks: int) -> float:
    """Return how long the slowest of the first ``ranks`` ranks takes for ``count`` steps."""
    own = 0.0
    meet(comm)
    if comm.Get_rank() < ranks:
        steps(WARM_STEPS)
        start = time.perf_counter()
        steps(count)
        own = time.perf_counter() - start
    meet(comm)
    return comm.allreduce(own, MPI.MAX)


def take_turns(comm: MPI.Intracomm, data: DataSet, batch: int) -> dict[str, list[float]]:
    """Return samples/s of every variant; check that synchronised replicas stayed equal."""
    size, count = comm.Get_size(), STEPS[batch]
    set_seed(0)
    synced, wrapped = LeNet(), DDP(LeNet())
    # Fewer images than a sample needs are gone through again, so that all variants do as many.
    times = -(-count * batch // len(data))
    data = DataSet(data.images.repeat(times, 1, 1, 1), data.labels.repeat(times))
    variants = {
        "one": (trainer(LeNet(), data, batch, lambda _: None), 1),
        "apart": (trainer(LeNet(), data, batch, lambda _: None), size),
        "sync": (trainer(synced, data, batch, sync_gradients), size),
        "ddp": (trainer(wrapped, data, batch, lambda _: None), size),
    }
    samples: dict[str, list[float]] = {variant: [] for variant in variants}
    names = list(variants)
    for turn in range(ROUNDS):
        first = turn % len(names)
        for variant in names[first:] + names[:first]:
            steps, ranks = variants[variant]
            took = seconds(comm, steps, count, ranks)
            samples[variant].append(ranks * count * batch / took)
    assert_replicas_equal(synced)
    assert_replicas_equal(wrapped)
    return samples


def main() -> None:
    """Measure at every batch size."""
    torch.set_num_threads(1)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    comm = MPI.COMM_WORLD.Dup()
    data, _, name = load_available("mnist", "digits", size=28)
    batches = [{"batch": batch, "samples": take_turns(comm, data, batch)} for batch in STEPS]
    result = {"ranks": comm.Get_size(), "data": name, "batches": batches}
    if comm.Get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
