"""Times all_reduce while other programs keep all cores busy, and the load of waiting ranks.

Rank 0 starts as many busy loops as there are cores, and all variants take turns beside them. The
loops end with rank 0, however it ends. Then, without them, all ranks but rank 0 wait for it: how
much of a core does each use, and how soon after rank 0's arrival does the first of them return?
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

from benchmarks import report
from benchmarks.report import MIB, SMALL, Section, Shown, Table, Target, each, size, target
from benchmarks.running import all_reduces, in_turns, rounds, slowest, world

if TYPE_CHECKING:
    from torch_mpi4py import MPI

SIZES = (4, 4096, SMALL, MIB, 4 * MIB)
TURNS = 120  # the scheduler's slices are long beside a call: samples differ by a hundred times
MOST_SECONDS = 12.0  # for one size
CALLS = 5  # in a sample
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
AVERAGES: dict[str, Callable[[list[float]], float]] = {"median": median, "mean": fmean}


def measure() -> dict:
    """Measure on this number of ranks."""
    gloo, comm = dist.new_group(backend="gloo"), world()
    with busy_loops(comm.Get_rank() == 0):
        rows = [{"bytes": count, "samples": beside(comm, gloo, count)} for count in SIZES]
        dist.barrier(group=gloo)
    groups = {"ours": None, "gloo": gloo}
    return {
        "ranks": comm.Get_size(),
        "loops": os.cpu_count(),
        "all_reduce": rows,
        "waits": {name: shares(comm, group) for name, group in groups.items()},
        "wakes": {name: wakes(comm, group) for name, group in groups.items()},
    }


@contextlib.contextmanager
def busy_loops(wanted: bool) -> Iterator[None]:
    """Keep all cores busy until the block ends."""
    command = [sys.executable, "-c", LOOP, str(os.getpid())]
    count = (os.cpu_count() or 1) if wanted else 0
    loops = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def beside(comm: MPI.Intracomm, gloo: dist.ProcessGroup, count: int) -> dict[str, list[float]]:
    """Return samples in turns, each the mean of a few calls on the slowest rank."""
    variants = all_reduces(comm, count, gloo=gloo)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    end = time.monotonic() + MOST_SECONDS
    for name in in_turns(list(variants), rounds(TURNS)):
        if len(set(map(len, samples.values()))) == 1 and comm.bcast(time.monotonic() > end):
            break
        dist.barrier(group=gloo)  # which waits asleep
        start = time.perf_counter()
        for _ in range(CALLS):
            variants[name]()
        samples[name].append(slowest(comm, (time.perf_counter() - start) / CALLS))
    return samples


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
    rows, waits = run["all_reduce"], run["waits"]
    columns: dict[str, Shown] = {"size": size}
    for average, of in AVERAGES.items():
        columns |= {f"{name}, {average}": show for name, show in each(NAMES, shown(of)).items()}
    by_call = [
        {"call": call, "samples": {g: waits[g][call] for g in waits}} for call in waits["ours"]
    ]
    waiting = {"while it waits in": report.key("call"), **each(GROUPS, "{:.2%}".format)}
    parts = [
        f"all_reduce of float32 while {run['loops']} busy loops run, one per core; the variants "
        "take turns on the same ranks. Microseconds.",
        Table(columns, rows),
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
    what = f"all_reduce beside busy loops compared with gloo, {where}, every size, by the"
    found = [
        report.least_ahead(f"{what} {average}", ">= 1x", run["all_reduce"], size, of)
        for average, of in AVERAGES.items()
    ]
    waits, wakes = run["waits"], run["wakes"]
    ours, gloo = (100 * max(waits[name].values()) for name in ("ours", "gloo"))
    what = f"share of a core that a waiting rank uses: all_reduce, recv, barrier, {where}"
    cause = f"with gloo it uses {gloo:.2f}% on the same ranks"
    found.append(target(what, "<= 2%", ours, form="{:.2f}%", cause=cause))
    what = f"from the last rank's arrival to the first return, ranks asleep, {where}"
    got, fastest = (1e6 * of(wakes["ours"]) for of in (median, min))
    cause = f"with gloo it takes {1e6 * median(wakes['gloo']):.0f} us on the same ranks"
    return [*found, target(what, "<= 100 us", got, fastest, "{:.0f} us", cause)]
