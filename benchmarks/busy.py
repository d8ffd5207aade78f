"""Times all_reduce and DDP while other programs keep all cores busy, and the load of waiting ranks.

Rank 0 starts as many busy loops as there are cores, and all variants run beside them, in blocks of
a second in random order. The loops end with rank 0, however it ends. They run in the session of the
ranks, as the programs of one terminal do, and then in sessions of their own, as other people's do:
Linux gives each session an equal part of the cores (``sched_autogroup_enabled``).

Then, without loops, all ranks but rank 0 wait for it: how much of a core does each use, and how
soon after rank 0's arrival does the first of them return?
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import fmean, median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from benchmarks import report
from benchmarks.backend import MODELS, USUAL_BATCH, step_of
from benchmarks.report import MIB, SMALL, Section, Shown, Table, Target, each, size, target
from benchmarks.running import (
    LEAST_LOOPS,
    LOOP_SECONDS,
    Call,
    all_reduces,
    rounds,
    slowest,
    world,
)

if TYPE_CHECKING:
    from torch_mpi4py import MPI

SIZES = (4, 4096, SMALL, MIB, 4 * MIB)
BLOCKS = 3  # of each variant
BLOCK_SECONDS = 1.0
MOST_STRETCHES = 1000  # in half a block
WAIT_SECONDS = 1.0
WAKES = 40
ASLEEP_SECONDS = 0.05
LOOP = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000): pass
"""
GROUPS = {"ours": "torch_mpi4py", "gloo": "gloo"}
NAMES = {**GROUPS, "raw": "raw MPI"}
SESSIONS = {"the session of the ranks": False, "sessions of their own": True}
AVERAGES: dict[str, Callable[[list[float]], float]] = {"median": median, "mean": fmean}


def measure() -> dict:
    """Measure on this number of ranks."""
    gloo, comm = dist.new_group(backend="gloo"), world()
    loops = []
    for sessions, own in SESSIONS.items():
        with busy_loops(comm.Get_rank() == 0, own):
            reduced = [
                {"bytes": count, "samples": beside(comm, gloo, all_reduces(comm, count, gloo=gloo))}
                for count in SIZES
            ]
            steps = [
                {"model": name, "samples": beside(comm, gloo, ddp(name, gloo))} for name in MODELS
            ]
            dist.barrier(group=gloo)
        loops.append({"sessions": sessions, "all_reduce": reduced, "ddp_step": steps})
    groups = {"ours": None, "gloo": gloo}
    return {
        "ranks": comm.Get_size(),
        "count": os.cpu_count(),
        "loops": loops,
        "waits": {name: shares(comm, group) for name, group in groups.items()},
        "wakes": {name: wakes(comm, group) for name, group in groups.items()},
    }


@contextlib.contextmanager
def busy_loops(wanted: bool, own_sessions: bool = False) -> Iterator[None]:
    """Keep all cores busy until the block ends."""
    command = [sys.executable, "-c", LOOP, str(os.getpid())]
    count = (os.cpu_count() or 1) if wanted else 0
    loops = [subprocess.Popen(command, start_new_session=own_sessions) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def ddp(model: str, gloo: dist.ProcessGroup) -> dict[str, Call]:
    """Return training steps of a model under DDP."""
    make = MODELS[model]
    inputs, labels = torch.randn(USUAL_BATCH, 1, 28, 28), torch.randint(10, (USUAL_BATCH,))
    groups = {"ours": None, "gloo": gloo}
    return {
        name: step_of(DDP(make(), process_group=group), inputs, labels)
        for name, group in groups.items()
    }


def beside(
    comm: MPI.Intracomm, gloo: dist.ProcessGroup, variants: dict[str, Call]
) -> dict[str, list[float]]:
    """Return samples of each variant, in seconds a call, from blocks in random order.

    A variant that sleeps leaves an unused share of the core to the one that follows, for some
    tenths of a second. If they took turns of a few calls, always in the same order, one would live
    on the share of another, and the order would decide which seems the fastest.
    """
    samples: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants) * rounds(BLOCKS)
    random.shuffle(order)
    for name in comm.bcast(order):
        dist.barrier(group=gloo)  # which waits asleep
        samples[name] += block(comm, variants[name])
    return samples


def block(comm: MPI.Intracomm, call: Call) -> list[float]:
    """Return the samples of the second half of a block, each on the slowest rank of that stretch.

    The first half uses up what the block before has left, and tells how many calls are a stretch.
    """
    calls, own = LEAST_LOOPS, list[float]()
    for counts in (False, True):
        own.clear()
        end = time.perf_counter() + BLOCK_SECONDS / 2
        while len(own) < rounds(MOST_STRETCHES) and comm.bcast(time.perf_counter() < end):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            own.append((time.perf_counter() - start) / calls)
            if not counts:  # the first call may be slow: DDP makes new buckets after its first step
                wanted = max(LEAST_LOOPS, round(LOOP_SECONDS / own[-1]))
                calls = comm.bcast(min(wanted, 4 * calls))
    return [max(ranks) for ranks in zip(*comm.allgather(own), strict=True)]


def shares(comm: MPI.Intracomm, group: dist.ProcessGroup | None) -> dict[str, float]:
    """Return for each operation the largest share of a core that a waiting rank takes."""
    tensor, rank = torch.zeros(1), comm.Get_rank()

    def receive() -> None:
        if rank:
            dist.recv(tensor, 0, group=group)
        else:
            for other in range(1, comm.Get_size()):
                dist.send(tensor, other, group=group)

    def share(call: Callable[[], object]) -> float:
        call()
        comm.Barrier()
        start, cpu = time.perf_counter(), time.process_time()
        if rank == 0:
            time.sleep(WAIT_SECONDS)
        call()
        took = (time.process_time() - cpu) / (time.perf_counter() - start)
        return slowest(comm, took if rank else 0.0)

    return {
        "all_reduce": share(lambda: dist.all_reduce(tensor, group=group)),
        "recv": share(receive),
        "barrier": share(lambda: dist.barrier(group=group)),
    }


def wakes(comm: MPI.Intracomm, group: dist.ProcessGroup | None) -> list[float]:
    """Return the seconds from rank 0's arrival, the last, to the first return of another rank."""
    tensor, samples = torch.zeros(1), []
    for _ in range(rounds(WAKES)):
        comm.Barrier()
        if comm.Get_rank() == 0:
            # At any moment of the slices in which the others sleep.
            time.sleep(random.uniform(1, 1.2) * ASLEEP_SECONDS)
        arrived = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        returned = time.perf_counter()
        moments = comm.allgather(returned if comm.Get_rank() else arrived)
        samples.append(min(moments[1:]) - moments[0])
    return samples


def section(run: dict) -> Section:
    """Return tables and targets of one number of ranks."""
    waits = run["waits"]
    columns: dict[str, Shown] = {"size": size}
    steps: dict[str, Shown] = {"model": report.key("model")}
    for average, of in AVERAGES.items():
        columns |= {f"{name}, {average}": show for name, show in each(NAMES, shown(of)).items()}
        steps |= {f"{name}, {average}": show for name, show in each(GROUPS, shown(of)).items()}
    parts: list[str | Table] = []
    for loops in run["loops"]:
        parts += [
            f"all_reduce of float32 while {run['count']} busy loops run, one per core, in "
            f"{loops['sessions']}; the variants run on the same ranks, in blocks of "
            f"{BLOCK_SECONDS:g} s in random order. Microseconds.",
            Table(columns, loops["all_reduce"]),
            f"A training step under DDP beside them, {USUAL_BATCH} images a rank. Microseconds.",
            Table(steps, loops["ddp_step"]),
        ]
    by_call = [
        {"call": call, "samples": {g: waits[g][call] for g in waits}} for call in waits["ours"]
    ]
    waiting = {"while it waits in": report.key("call"), **each(GROUPS, "{:.2%}".format)}
    parts += [
        "Largest share of a core that all threads of a rank use together while it waits "
        f"{WAIT_SECONDS:g} s for rank 0, without busy loops:",
        Table(waiting, by_call),
        "Time from the arrival of the last rank to the first return of another, which was asleep. "
        "Microseconds: median (quartiles).",
        Table(each(GROUPS, report.microseconds), [{"samples": run["wakes"]}]),
    ]
    return Section(f"Busy cores and waiting ranks, {run['ranks']} ranks", parts, targets(run))


def shown(of: Callable[[list[float]], float]) -> Callable[[list[float]], str]:
    """Return a function that formats an average in us."""
    return lambda samples: f"{1e6 * of(samples):,.0f}"


def targets(run: dict) -> list[Target]:
    """Return the targets beside busy loops, and for waiting ranks."""
    where = f"{run['ranks']} ranks"
    found = []
    for loops in run["loops"]:
        beside_loops = f"beside busy loops in {loops['sessions']} compared with gloo, {where}"
        for average, of in AVERAGES.items():
            what = f"all_reduce {beside_loops}, every size, by the {average}"
            found.append(report.least_ahead(what, ">= 1x", loops["all_reduce"], size, of))
        what = f"a DDP step {beside_loops}"
        model = report.key("model")
        found.append(report.least_ahead(what, ">= 1x", loops["ddp_step"], model))
    waits, wakes = run["waits"], run["wakes"]
    ours, gloo = (100 * max(waits[name].values()) for name in ("ours", "gloo"))
    what = f"share of a core that a waiting rank uses: all_reduce, recv, barrier, {where}"
    cause = f"with gloo it uses {gloo:.2f}% on the same ranks"
    found.append(target(what, "<= 2%", ours, form="{:.2f}%", cause=cause))
    what = f"from the last rank's arrival to the first return, ranks asleep, {where}"
    got, fastest = (1e6 * of(wakes["ours"]) for of in (median, min))
    cause = f"with gloo it takes {1e6 * median(wakes['gloo']):.0f} us on the same ranks"
    return [*found, target(what, "<= 100 us", got, fastest, "{:.0f} us", cause)]
