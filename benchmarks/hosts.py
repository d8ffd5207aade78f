"""Two hosts with two ranks each against one host with four.

The hosts are the virtual ones of ``tests/hosts`` (root and sshd are needed; otherwise the result is
``{"missing": why}``), so all ranks share this machine's cores, and network traffic is copied by its
kernel. There it measures

- ``runs``: all-reduces of four ranks, ours, gloo and raw MPI in turns in the same processes, on two
  hosts and on one; and the least time of a backend that compares calls, see :class:`Least`,
- in ``runs``, too: training steps of two ranks, on two hosts and on one. Each rank has a core. With
  four ranks on two cores, steps of 15 ms took up to 800 ms: the ranks of a host are in a session of
  their own, and if Linux schedules each session as a group (``sched_autogroup_enabled``), a rank
  that spins in MPI gives its core away only to ranks of its own host,
- ``starts``: from ``start_cluster`` to four engines with torch, on one host and on two, in turns,
- ``reports``: a cell with a limit hangs on two hosts; from the limit to its error,
- ``idle``: the share of a core that the agent of the other host takes when nothing happens.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from benchmarks import report
from benchmarks.backend import ddp_steps
from benchmarks.failures import HANGS, RANKS, Notebook
from benchmarks.report import (
    MIB,
    Section,
    Table,
    Target,
    few,
    least_ahead,
    ratio,
    size,
    target,
    within,
)
from benchmarks.running import QUICK, all_reduces, least_loops, rounds, run, take_turns, world

if TYPE_CHECKING:
    from torch_mpi4py import MPI

WHERE = {"two hosts": "h1:2,h2:2", "one host": "h1:4"}
STEPS_WHERE = {"two hosts": "h1:1,h2:1", "one host": "h1:2"}
STEPS_RANKS = 2
SIZES = (4, 4096, 64 * 2**10, MIB, 4 * MIB, 16 * MIB)
TURNS = 21  # scheduling of four ranks on two cores makes single samples differ by half
STARTS = 2
IDLE_SECONDS = 15.0
RUN_SECONDS = 180
BED = (sys.executable, "-m", "tests.hosts.testbed", "--")  # runs a command on the first host
NETWORK = "GLOO_SOCKET_IFNAME"
NAMES = {"ours": "torch_mpi4py", "gloo": "gloo", "least": "the least", "raw": "raw MPI"}
CPU_OF_AGENTS = """
import psutil
agents = [p for p in psutil.process_iter(["cmdline"])
          if "ipyranks.agent" in (p.info["cmdline"] or [])]
cpu = sum(sum(p.cpu_times()[:2]) for p in agents)
"""


def measure() -> dict:
    """Make the hosts and measure on them, or return why not."""
    if os.getuid() != 0 or not Path("/usr/sbin/sshd").exists():
        return {"missing": "virtual hosts need root and Debian's openssh-server"}
    return run(on_first_host, before=BED, folder="/run")  # a virtual host has a /tmp of its own


def on_first_host() -> dict:
    """Measure everything."""
    os.environ[NETWORK] = "eth0"
    options = ["-x", NETWORK, *(["-x", QUICK] if QUICK in os.environ else [])]

    def on_hosts(program: Callable[[], dict], ranks: int, hosts: str) -> dict:
        return run(program, ranks, before=["--host", hosts, *options], limit_seconds=RUN_SECONDS)

    runs = {
        where: on_hosts(all_reduces_on_ranks, RANKS, WHERE[where])
        | on_hosts(steps_on_ranks, STEPS_RANKS, STEPS_WHERE[where])
        for where in WHERE
    }
    starts: dict[str, list[float]] = {where: [] for where in WHERE}
    result: dict = {"runs": runs, "starts": starts}
    for turn in range(STARTS):
        for where, hosts in reversed(WHERE.items()):
            start = time.perf_counter()
            notebook = Notebook(hosts)
            notebook.cell("torch.zeros(1)")
            starts[where].append(time.perf_counter() - start)
            if where == "two hosts" and turn == 0:
                hangs = [notebook.hangs_at_limit() for _ in range(rounds(HANGS))]
                result["reports"] = [hang["report"] for hang in hangs]
                result["idle"] = idle(notebook)
            notebook.cluster.stop()
    return result


def all_reduces_on_ranks() -> dict:
    """Measure all-reduces on the ranks of this mpiexec."""
    gloo, comm = dist.new_group(backend="gloo"), world()
    group, least = new_least_group(comm)
    rows = []
    for count in SIZES:
        variants = all_reduces(comm, count, gloo=gloo, least=group)
        least.asked = variants["raw"]
        samples = take_turns(comm, variants, TURNS, least_loops(count))
        rows.append({"bytes": count, "samples": samples})
    return {"ranks": comm.Get_size(), "all_reduce": rows}


def steps_on_ranks() -> dict:
    """Measure training steps on the ranks of this mpiexec."""
    return {"ddp_step": ddp_steps(world(), dist.new_group(backend="gloo"))}


def idle(notebook: Notebook) -> float:
    """Return the share of a core that the other host's agent takes."""

    def cpu() -> float:
        notebook.cell(CPU_OF_AGENTS)
        return notebook.cluster.view["cpu"][-1]

    before, start = cpu(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    return (cpu() - before) / (time.perf_counter() - start)


class Least(dist.ProcessGroup):
    """Does nothing but two raw MPI calls: an all-reduce of 16 bytes, as a check, and the asked one.

    The difference to ours is the cost of our backend; the difference to raw MPI is the cost of
    torch's own function and of any check that all ranks make before data moves.
    """

    # Further methods that torch needs of a group written in Python.
    setGroupName = setGroupDesc = lambda self, name: None
    getGroupName = getGroupDesc = lambda self: "least"
    group_name = group_desc = "least"

    def __init__(self, comm: MPI.Intracomm) -> None:
        from torch_mpi4py import MPI

        super().__init__(comm.Get_rank(), comm.Get_size())
        check, largest = ([memory, 2, MPI.INT64_T] for memory in (bytes(16), bytearray(16)))
        self._check = partial(comm.Allreduce, check, largest, MPI.MAX)
        self.asked: Callable[[], object] = comm.Barrier

    def allreduce(self, tensors: list[torch.Tensor], options: dist.AllreduceOptions) -> None:
        """Call ``asked``, which the caller has set to the raw call on the tensor's memory."""
        self._check()
        self.asked()


def new_least_group(comm: MPI.Intracomm) -> tuple[dist.ProcessGroup, Least]:
    """Return such a group of all ranks, made by torch, and the object behind it."""
    least = Least(comm)

    def create(*_: object) -> Least:
        return least

    dist.Backend.register_backend("least", create, extended_api=True, devices=["cpu"])
    return dist.new_group(backend="least"), least


# ---- the report -------------------------------------------------------------------------


def section(measured: dict) -> Section:
    """Return tables and targets of :func:`measure`."""
    title = "Several hosts"
    if why := measured.get("missing"):
        return Section(title, [f"Not measured here: {why}."])
    runs = measured["runs"]
    ratios = {
        "gloo / ours": report.over("gloo", "ours", ".1f"),
        "ours / least": report.over("ours", "least"),
        "ours / raw": report.over("ours", "raw"),
    }
    steps = [{"where": where} | row for where in runs for row in runs[where]["ddp_step"]]
    variants = {"ours": "torch_mpi4py", "gloo": "gloo", "silent": "sends nothing"}
    by_model = {
        "where": report.key("where"),
        "model": report.key("model"),
        **report.each(variants, report.milliseconds),
        "gloo / ours": report.over("gloo", "ours"),
    }
    seconds = {f"four engines with torch on {where}": s for where, s in measured["starts"].items()}
    seconds["from a cell's limit to the report, two hosts"] = measured["reports"]
    by_size = report.each(NAMES, report.microseconds) | ratios
    parts = [
        "Two virtual hosts with two ranks each are compared with one host with four ranks. All "
        "ranks share this machine's cores, and its kernel copies everything that crosses the "
        "network. The first two tables show how long an all_reduce of float32 tensors takes, in "
        'microseconds: median (quartiles). "The least" is the least time that a checked call can '
        "take: there, PyTorch's own `dist.all_reduce` makes only two raw MPI calls, one of 16 "
        "bytes for the check, and one for the data.",
        *(Table({f"on {where}": size, **by_size}, runs[where]["all_reduce"]) for where in runs),
        "A DDP step of two ranks, which have a core each, in ms:",
        Table(by_model, steps),
        "Times of a notebook's cluster, in s: median (smallest to largest).",
        Table({"what": str, "s": lambda what: few(seconds[what])}, seconds),
    ]
    return Section(title, parts, targets(measured))


def targets(measured: dict) -> list[Target]:
    """Return the targets on two hosts."""
    on, idle = measured["runs"]["two hosts"], 100 * measured["idle"]
    all_reduce = "two hosts: all_reduce"
    here, there = (measured["starts"][name] for name in ("one host", "two hosts"))
    cause = f"on one host it takes {median(here):.1f} s here, and most of that is importing torch"
    return [
        least_ahead(f"{all_reduce} compared with gloo, every size", "> 1x", on["all_reduce"], size),
        least_ahead(
            "two hosts: DDP step compared with gloo", "> 1x", on["ddp_step"], report.key("model")
        ),
        *(over_raw(row) for row in on["all_reduce"] if row["bytes"] >= MIB),
        within("start of four engines on two hosts", 8, there, cause),
        within("two hosts: from the limit to the report", 2, measured["reports"]),
        target("share of a core used by a host's idle agent", "<= 0.5%", idle, form="{:.2f}%"),
    ]


def over_raw(row: dict) -> Target:
    """Return the time of all_reduce relative to raw MPI, at one size."""
    cause = (
        "even PyTorch's `dist.all_reduce` with nothing in it but a check and the raw call took "
        f"{ratio(row, 'least', 'raw'):.2f}x as long as raw MPI in the same rounds; all four ranks "
        "run Python at the same time on this machine's cores"
    )
    what = f"two hosts: all_reduce over raw MPI, {size(row)}"
    return report.compared(what, "<= 1.15x", row, "ours", "raw", cause)
