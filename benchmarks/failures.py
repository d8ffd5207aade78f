"""Measures how long a user waits after a hang and after a death.

With a cluster of four, it times

- ``limit``: a cell with a limit hangs; from the limit to its error with the report, and on to
  the end of a cell with an all-reduce of all ranks,
- ``deadline``: the same where the deadline of the process group passes,
- ``death``: a rank is killed, ``cluster.shrink()``, and such a cell of the survivors,
- ``restart``: ``cluster.restart()`` after that, to fresh ranks with torch imported.

``alone`` is the survivors' time without a notebook.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time

import torch
import torch.distributed as dist
import torch_mpi4py as mpi

from benchmarks.report import Section, Table, Target, few, key, within
from benchmarks.running import rounds, run

RANKS = 4
HANGS = 4
DEATHS = 3
LIMIT_SECONDS = 1.0
ALONE_RANKS = 5
ALONE_SECONDS = 120
HANGING = (
    "if rank == 0:\n    dist.recv(torch.zeros(1), src=1{group})\nelse:\n    dist.barrier({all})"
)
ALL_REDUCE = (
    "total = torch.ones(1)\ndist.all_reduce(total)\nassert total.item() == dist.get_world_size()"
)
GROUP = (
    "from datetime import timedelta\n"
    f"quick = dist.new_group(timeout=timedelta(seconds={LIMIT_SECONDS}))"
)


class Notebook:
    """A shell with the course's magics, and a cluster with a process group, here or on hosts."""

    def __init__(self, hosts: str | None = None) -> None:
        from ipyranks import start_cluster
        from IPython.core.interactiveshell import InteractiveShell

        self.shell = InteractiveShell.instance()
        with quiet():
            self.cluster = start_cluster(RANKS, hosts=hosts, init_process_group=True)

    def cell(self, code: str, line: str = "") -> None:
        """Run a ``%%px`` cell."""
        with quiet():
            self.shell.run_cell_magic("px", line, code)

    def hangs_at_limit(self) -> dict[str, float]:
        """Let a cell with a limit hang."""
        return self.hangs(HANGING.format(group="", all=""), f"--limit {LIMIT_SECONDS}")

    def hangs_at_deadline(self) -> dict[str, float]:
        """Let a cell hang in a group with a deadline."""
        self.cell(GROUP)
        return self.hangs(HANGING.format(group=", group=quick", all="quick"))

    def hangs(self, code: str, line: str = "") -> dict[str, float]:
        """Return the seconds from the limit to the error, and to the next all-reduce's end."""
        from ipyranks import HangError

        start = time.perf_counter()
        try:
            self.cell(code, line)
        except HangError:
            error = time.perf_counter()
        else:
            raise RuntimeError("a cell that had to hang came to its end")
        self.cell(ALL_REDUCE)
        done = time.perf_counter()
        return {"report": error - start - LIMIT_SECONDS, "next": done - start - LIMIT_SECONDS}

    def dies(self) -> float:
        """Return the seconds from a rank's death to the survivors' next all-reduce."""
        start = time.perf_counter()
        with quiet():
            self.cluster.kill(self.cluster.n - 1)
            self.cluster.shrink()
        self.cell(ALL_REDUCE)
        return time.perf_counter() - start

    def restarts(self) -> float:
        """Return the seconds to fresh ranks that have torch."""
        start = time.perf_counter()
        with quiet():
            self.cluster.restart()
        self.cell("torch.zeros(1)")
        seconds = time.perf_counter() - start
        with quiet():
            self.cluster.init_process_group()
        return seconds


def quiet() -> contextlib.redirect_stdout:
    """Keep printed text out of the benchmark's own output."""
    return contextlib.redirect_stdout(io.StringIO())


def measure() -> dict:
    """Measure everything."""
    alone = run(deaths, ALONE_RANKS, limit_seconds=ALONE_SECONDS, deaths=True)
    result: dict = {"ranks": RANKS, "alone": alone, "death": [], "restart": []}
    notebook = Notebook()
    try:
        result["limit"] = [notebook.hangs_at_limit() for _ in range(rounds(HANGS))]
        result["deadline"] = [notebook.hangs_at_deadline() for _ in range(rounds(HANGS))]
        for _ in range(DEATHS):
            result["death"].append(notebook.dies())
            result["restart"].append(notebook.restarts())
    finally:
        notebook.cluster.stop()
    return result


def deaths() -> dict:
    """Let three ranks die one after the other; all are on one machine, so their clocks are one."""
    ranks = dist.get_world_size()
    return {"ranks": ranks, "seconds": [after_a_death() for _ in range(DEATHS)]}


def after_a_death() -> float:
    """Let the last rank die during all-reduces; return the seconds on the slowest rank."""
    dist.barrier()
    number = torch.ones(1)
    for _ in range(20):
        dist.all_reduce(number)
    last = dist.get_rank() == dist.get_world_size() - 1
    died = torch.tensor(time.perf_counter() if last else 0.0, dtype=torch.float64)
    dist.all_reduce(died)
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(number)
    except mpi.RankFailedError:
        mpi.shrink()
    number = torch.ones(1)
    dist.all_reduce(number)
    done = torch.tensor(time.perf_counter(), dtype=torch.float64)
    assert number.item() == dist.get_world_size()
    dist.all_reduce(done, dist.ReduceOp.MAX)
    return (done - died).item()


def section(measured: dict) -> Section:
    """Return table and targets of :func:`measure`."""
    alone, ranks = measured["alone"], measured["ranks"]
    report, after = "the report", "the end of the next cell's all-reduce"
    survivors = "the survivors' next"
    rows, targets = [], []
    for way, what in (
        ("limit", "a cell's limit passes"),
        ("deadline", "a group's deadline passes"),
    ):
        reports, nexts = ([one[until] for one in measured[way]] for until in ("report", "next"))
        rows += [(what, report, reports), (what, after, nexts)]
        targets.append(seconds(f"hang: from the {way} to {report}", 1, reports))
        targets.append(
            seconds(f"hang: from the {way} to the freed ranks' next all-reduce", 1, nexts)
        )
    killed = f"one of {alone['ranks']} or fewer ranks is killed, without a notebook"
    rows += [
        (killed, f"{survivors} completed all-reduce", alone["seconds"]),
        (f"`cluster.kill` of one of {ranks}, `cluster.shrink()`", after, measured["death"]),
        ("`cluster.restart()`", "a cell on fresh ranks with torch", measured["restart"]),
    ]
    death = f"killed rank: to {survivors} all-reduce"
    targets += [
        seconds(death, 0.2, alone["seconds"]),
        seconds(f"{death}, in a notebook", 0.2, measured["death"]),
        seconds("restart of the engines", 4, measured["restart"]),
    ]
    columns = {"what happens": key(0), "time until": key(1), "s": lambda row: few(row[2])}
    about = f"On {ranks} engines, in seconds: median (smallest to largest) of a few samples."
    return Section("Hangs and deaths", [about, Table(columns, rows)], targets)


def seconds(what: str, wanted: float, values: list[float]) -> Target:
    """Return a comparison with so many seconds, its cause all that were measured."""
    cause = f"the {len(values)} samples took {', '.join(f'{value:.2f}' for value in values)} s"
    return within(what, wanted, values, cause)
