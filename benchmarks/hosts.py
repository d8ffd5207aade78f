"""Two hosts with two ranks each against one host with four.

An ordinary program: ``python -m benchmarks.hosts FILE``. The hosts are the virtual ones of
``tests/hosts`` (root and sshd are needed; else it writes ``{"missing": why}``), so all ranks share
this machine's cores, and what crosses the network is copied by its kernel. There it measures

- ``runs``: all-reduces and training steps of four ranks, ours, gloo and raw MPI in turns in the
  same processes, on two hosts and on one (``--ranks`` is what mpiexec starts); and what is the
  least that a backend can take which compares calls, see :class:`Least`,
- ``starts``: from ``start_cluster`` to four engines with torch, on one host and on two, in turns,
- ``reports``: a cell with a limit hangs on two hosts; from the limit to its error,
- ``idle``: the share of a core that the agent of the other host takes when nothing happens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch_mpi4py import MPI, launch

from benchmarks.failures import HANGING, HANGS, LIMIT_SECONDS, RANKS, Notebook
from benchmarks.measure import LEAST_LOOPS, LEAST_LOOPS_SMALL, SMALL, ddp_steps, take_turns

ROOT = Path(__file__).resolve().parent.parent
WHERE = {"two hosts": "h1:2,h2:2", "one host": "h1:4"}
SIZES = (4, 4096, 64 * 2**10, 2**20, 4 * 2**20, 16 * 2**20)
ROUNDS = 21  # scheduling of four ranks on two cores makes single samples differ by half
STARTS = 2
IDLE_SECONDS = 15.0
RUN_SECONDS = 180
BED = [sys.executable, "-m", "tests.hosts.testbed", "--"]
CPU_OF_AGENTS = """
import psutil
agents = [p for p in psutil.process_iter(["cmdline"])
          if "ipyranks.agent" in (p.info["cmdline"] or [])]
cpu = sum(sum(p.cpu_times()[:2]) for p in agents)
"""


class Least(dist.ProcessGroup):
    """Does nothing but two raw MPI calls: an all-reduce of 16 bytes, as a check, and the asked one.

    Between it and ours lies what ours costs; between it and raw MPI what torch's own function and
    any check cost, which is done by all ranks before data moves.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._comm = comm
        self._name = self._description = ""
        self._check = [bytes(16), 2, MPI.INT64_T]
        self._largest = [bytearray(16), 2, MPI.INT64_T]
        self.message: list = []

    def allreduce(self, tensors: list[torch.Tensor], options: dist.AllreduceOptions) -> None:
        """Add up ``message``, which the caller has set to the memory of the tensor."""
        self._comm.Allreduce(self._check, self._largest, MPI.MAX)
        self._comm.Allreduce(MPI.IN_PLACE, self.message, MPI.SUM)

    # What torch asks a group written in Python for, besides.

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)


def new_least_group(comm: MPI.Intracomm) -> Least:
    """Return a group of all ranks that does the least, as torch makes one."""

    def create(*_: object) -> Least:
        return Least(comm)

    dist.Backend.register_backend("least", create, extended_api=True, devices=["cpu"])
    return dist.new_group(backend="least")


def on_a_rank(output: Path) -> None:
    """Measure all-reduces and steps on the ranks of this mpiexec; rank 0 writes them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo")
    comm = MPI.COMM_WORLD.Dup()
    least_group = new_least_group(comm)
    rows = []
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        least_group.message = message = [tensor.numpy(), size // 4, MPI.FLOAT]
        variants = {
            "ours": lambda: dist.all_reduce(tensor),  # noqa: B023 used within this turn
            "gloo": lambda: dist.all_reduce(tensor, group=gloo),  # noqa: B023
            "least": lambda: dist.all_reduce(tensor, group=least_group),  # noqa: B023
            "raw": lambda: comm.Allreduce(MPI.IN_PLACE, message, MPI.SUM),  # noqa: B023
        }
        least = LEAST_LOOPS_SMALL if size <= SMALL else LEAST_LOOPS
        rows.append({"bytes": size, "samples": take_turns(comm, variants, ROUNDS, least)})
    result = {"ranks": dist.get_world_size(), "all_reduce": rows, "ddp_step": ddp_steps(comm, gloo)}
    if dist.get_rank() == 0:
        output.write_text(json.dumps(result))
    dist.destroy_process_group()


def run_on(hosts: str, folder: Path) -> dict:
    """Return what four ranks on these hosts measured.

    Raises:
        RuntimeError: with what they wrote, if they failed.
    """
    output = folder / "run.json"
    program = [sys.executable, "-m", "benchmarks.hosts", "--ranks", str(output)]
    ended = subprocess.run(
        launch.mpiexec(RANKS, "--host", hosts, "-x", "GLOO_SOCKET_IFNAME", *program),
        env=launch.environment() | {"GLOO_SOCKET_IFNAME": "eth0"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{RANKS} ranks on {hosts} failed:\n{ended.stdout}{ended.stderr}")
    return json.loads(output.read_text())


def start_on(hosts: str) -> tuple[Notebook, float]:
    """Return a cluster on these hosts, and the seconds until its engines have torch."""
    start = time.perf_counter()
    notebook = Notebook(hosts)
    notebook.cell("torch.zeros(1)")
    return notebook, time.perf_counter() - start


def on_first_host(output: Path) -> None:
    """Measure everything; this runs on h1."""
    from tests.hosts.testbed import BedClient

    folder = BedClient().folder  # all hosts see it
    result: dict = {name: {} for name in ("runs", "starts")} | {"reports": []}
    for name, hosts in WHERE.items():
        result["runs"][name] = run_on(hosts, folder)
    for _ in range(STARTS):
        for name, hosts in reversed(WHERE.items()):
            notebook, seconds = start_on(hosts)
            result["starts"].setdefault(name, []).append(seconds)
            if name == "two hosts" and not result["reports"]:
                hanging = HANGING.format(group="", all="")
                line = f"--limit {LIMIT_SECONDS}"
                hangs = [notebook.hangs(hanging, line)["report"] for _ in range(HANGS)]
                result["reports"], result["idle"] = hangs, idle(notebook)
            notebook.cluster.stop()
    output.write_text(json.dumps(result))


def idle(notebook: Notebook) -> float:
    """Return the share of a core that the other host's agent takes."""

    def cpu() -> float:
        notebook.cell(CPU_OF_AGENTS)
        return notebook.cluster.view["cpu"][-1]

    before, start = cpu(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    return (cpu() - before) / (time.perf_counter() - start)


def main() -> None:
    """Make the hosts and measure on them, or say why not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--first-host", action="store_true")
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    if arguments.ranks:
        on_a_rank(arguments.output)
        return
    if arguments.first_host:
        on_first_host(arguments.output)
        return
    if os.getuid() != 0 or not Path("/usr/sbin/sshd").exists():
        why = "virtual hosts take root and Debian's openssh-server"
        arguments.output.write_text(json.dumps({"missing": why}))
        return
    with tempfile.TemporaryDirectory(dir="/run") as folder:  # a virtual host has a /tmp of its own
        output = Path(folder) / "hosts.json"
        program = [sys.executable, "-m", "benchmarks.hosts", "--first-host", str(output)]
        subprocess.run([*BED, *program], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
        arguments.output.write_text(output.read_text())


if __name__ == "__main__":
    main()
