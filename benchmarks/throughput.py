"""Training samples a second: two ranks against one process, and one script by two launchers.

In :func:`ranks` all variants train LeNet on the same images by the same loop: choose a batch,
forward, backward, (synchronise,) update. ``one`` is rank 0 training alone while the other rank
sleeps; ``apart`` is both ranks training without communication, which is the most that two processes
can do on this machine; ``sync`` and ``ddp`` keep the replicas equal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_mpi4py import launch

from benchmarks.report import Section, Table, Target, by_turns, few, spread, target
from benchmarks.running import execute, in_turns, rounds, slowest, world
from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.parallel.invariants import assert_replicas_equal
from course_lib.training.data import DataSet, load_available
from course_lib.training.loops import set_seed
from course_lib.training.models import LeNet

if TYPE_CHECKING:
    from torch_mpi4py import MPI

# Images a step on each rank, and steps to a sample of some 0.2 s. PyTorch's own MNIST example
# takes 64; with more images a step there is more to compute for every byte to send.
STEPS = {64: 40, 256: 12}
WARM_STEPS = 3
TURNS = 17
NAMES = {
    "one": "one process, the other core idle",
    "apart": "two independent processes",
    "sync": "two ranks, sync_gradients",
    "ddp": "two ranks, DDP",
}
SCRIPT_RANKS, SCRIPT_STEPS, SCRIPT_TURNS = 2, 150, 3
SCRIPT = f"scripts/ddp.py --steps {SCRIPT_STEPS} --epochs 100 --batch 32 --no-progress".split()
SCRIPT_SECONDS = 60
LAUNCHERS = {"mpiexec": "mpiexec, torch_mpi4py", "torchrun": "torchrun, gloo"}


def ranks() -> dict:
    """Measure at every batch size."""
    comm = world()
    data, _, name = load_available("mnist", "digits", size=28)
    batches = [{"batch": batch, "samples": take_turns(comm, data, batch)} for batch in STEPS]
    return {"ranks": comm.Get_size(), "data": name, "batches": batches}


def take_turns(comm: MPI.Intracomm, data: DataSet, batch: int) -> dict[str, list[float]]:
    """Return samples/s of every variant; check that synchronised replicas stayed equal."""
    count = STEPS[batch]
    set_seed(0)
    synced, wrapped = LeNet(), DDP(LeNet())
    # Fewer images than a sample needs are gone through again, so that all variants do as many.
    times = -(-count * batch // len(data))
    data = DataSet(data.images.repeat(times, 1, 1, 1), data.labels.repeat(times))
    variants = {
        "one": trainer(LeNet(), data, batch),
        "apart": trainer(LeNet(), data, batch),
        "sync": trainer(synced, data, batch, sync_gradients),
        "ddp": trainer(wrapped, data, batch),
    }
    samples: dict[str, list[float]] = {variant: [] for variant in variants}
    for variant in in_turns(list(variants), rounds(TURNS)):
        busy = 1 if variant == "one" else comm.Get_size()
        took = seconds(comm, variants[variant], count, busy)
        samples[variant].append(busy * count * batch / took)
    assert_replicas_equal(synced)
    assert_replicas_equal(wrapped)
    return samples


def trainer(
    model: nn.Module,
    data: DataSet,
    batch: int,
    synchronise: Callable[[nn.Module], None] = lambda _: None,
) -> Callable[[int], None]:
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


def seconds(comm: MPI.Intracomm, steps: Callable[[int], None], count: int, busy: int) -> float:
    """Return how long the slowest of the first ``busy`` ranks takes for ``count`` steps."""
    own = 0.0
    meet(comm)
    if comm.Get_rank() < busy:
        steps(WARM_STEPS)
        start = time.perf_counter()
        steps(count)
        own = time.perf_counter() - start
    meet(comm)
    return slowest(comm, own)


def meet(comm: MPI.Intracomm) -> None:
    """Wait for the other rank and leave the core to it meanwhile."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def speedup(measured: dict, variant: str) -> float:
    """Return a variant's throughput over that of one process, for one batch size."""
    return by_turns(measured, variant, "one")


def ranks_section(measured: dict) -> Section:
    """Return table and targets of :func:`ranks`.

    The target applies to every batch: the smaller ones communicate more often for the same work.
    """
    columns = {
        "images per step and rank": lambda row: str(row[0]["batch"]),
        "variant": lambda row: NAMES[row[1]],
        "samples/s: median (quartiles)": lambda row: spread(
            row[0]["samples"][row[1]], "{:,.0f}".format
        ),
        "over one process, per turn": lambda row: f"{speedup(*row):.2f}x",
    }
    about = (
        f"LeNet trains on {measured['data']} (28 x 28), with one thread per rank. Every rank "
        "has the same batch size, so two ranks train on twice as many images a step. A step is one "
        "pass through the whole loop: choose a batch, forward, backward, synchronise, update. The "
        "variants take turns. Samples/s are the sum over all ranks."
    )
    batches = measured["batches"]
    table = Table(columns, [(batch, variant) for batch in batches for variant in NAMES])
    targets = [ceiling_target(batch, way) for batch in batches for way in ("sync", "ddp")]
    return Section("Two ranks compared with one process", [about, table], targets)


def ceiling_target(measured: dict, variant: str) -> Target:
    """Return how near a variant comes to two independent processes."""
    ceiling, reached = speedup(measured, "apart"), speedup(measured, variant)
    samples, batch = measured["samples"], measured["batch"]
    # A step of two ranks takes two batches.
    silent, step = (2e3 * batch / median(samples[name]) for name in ("apart", variant))
    name = NAMES[variant].removeprefix("two ranks, ")
    what = (
        f"LeNet, {batch} images a step, two ranks compared with two independent processes, {name}"
    )
    fastest = max(samples[variant]) / max(samples["apart"])
    cause = (
        f"here two ranks reach {reached:.2f}x the speed of one process, "
        f"and two independent processes {ceiling:.2f}x; "
        f"synchronising and waiting for the later rank take {step - silent:.1f} ms of a "
        f"{step:.1f} ms step"
    )
    return target(what, ">= 0.95x", reached / ceiling, fastest, cause=cause)


# ---- one script, two launchers ----------------------------------------------------------


def launchers() -> dict:
    """Run the script under both launchers in turns."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    commands = {
        "mpiexec": launch.mpiexec(SCRIPT_RANKS, sys.executable, *SCRIPT),
        "torchrun": [*torchrun, "--nproc-per-node", str(SCRIPT_RANKS), *SCRIPT],
    }
    runs: dict[str, list[dict]] = {name: [] for name in commands}
    for name in in_turns(list(commands), rounds(SCRIPT_TURNS)):
        runs[name].append(one_run(commands[name]))
    return {"ranks": SCRIPT_RANKS, "steps": SCRIPT_STEPS, "runs": runs}


def one_run(command: list[str]) -> dict:
    """Return the content of the script's last line, and the seconds of the whole run."""
    start = time.monotonic()
    written = execute(command, SCRIPT_SECONDS)
    whole = time.monotonic() - start
    *_, result = (line for line in written.splitlines() if line.startswith("{"))
    return json.loads(result) | {"whole_seconds": whole}


def launchers_section(measured: dict) -> Section:
    """Return the table of :func:`launchers`; it has no target."""
    runs = measured["runs"]
    equal = len({run["checksum"] for found in runs.values() for run in found}) == 1
    rates = {name: [run["samples_per_s"] for run in found] for name, found in runs.items()}
    times = median(rates["mpiexec"]) / median(rates["torchrun"])
    about = (
        f"`scripts/ddp.py` runs on {measured['ranks']} ranks for {measured['steps']} steps of 32 "
        f"images per rank, and the launchers take turns. The table gives medians (smallest to "
        f"largest). The final "
        f"weights of all runs are {'exactly equal' if equal else '**not equal**'}. Training "
        f"under mpiexec is {times:.2f} times as fast as under torchrun."
    )
    columns: dict[str, Callable[[str], str]] = {
        "launcher, backend": lambda name: LAUNCHERS[name],
        "samples/s": lambda name: few(rates[name], ",.0f"),
        "from start to end (s)": lambda name: few([run["whole_seconds"] for run in runs[name]]),
    }
    return Section("One script under mpiexec and under torchrun", [about, Table(columns, rates)])
