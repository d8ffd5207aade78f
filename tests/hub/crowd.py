"""Measure how many learners a machine carries: they run lesson 00 under a real hub.

``python -m tests.hub.crowd 10 --apart 20``, ten learners who begin 20 s after each other, prints
what each learner's lesson took, in seconds, seconds of a core, memory, files, processes and ports;
what clusters cost that rest; and how soon the ranks have ended of whoever leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from tests.hub.hub import Hub, Learner, running_hub
from tests.lab_server import marked, wait_until

LESSON = "workspace/00_start_here.ipynb"
SAMPLE_SECONDS = 5.0
SAMPLING = threading.Lock()
RESTING_SECONDS = 10.0


@dataclass
class Measured:
    """What a learner's processes took.

    Attributes:
        server: seconds until the server answered.
        cluster: seconds that `start_cluster` took.
        lesson: seconds for all cells.
        cells: cells that were run.
        failed: cells of them that did not end as they are meant to.
        core: for each process its seconds on a core.
        memory: the largest memory in bytes, by what the processes are; pages that several
            processes share are divided among them (PSS).
        started: the memory when the cluster had just started, in bytes.
        start_core: seconds of a core that server, kernel and cluster had until then.
        most: the largest number of ``processes``, ``threads`` and listening ``ports`` of the
            cluster.
    """

    server: float = 0.0
    cluster: float = 0.0
    lesson: float = 0.0
    cells: int = 0
    failed: int = 0
    core: dict[int, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    started: float = 0.0
    start_core: float = 0.0
    most: dict[str, int] = field(default_factory=dict)


def run_lesson(hub: Hub, name: str, measured: Measured, until: float) -> Learner:
    """Start a learner's server, run all cells of lesson 00, and note the times.

    Args:
        until: no cell begins after it, in seconds of ``time.monotonic()``.
    """
    learner, start = Learner(hub, name), time.monotonic()
    learner.start()
    measured.server = time.monotonic() - start
    learner.open(LESSON)
    start = time.monotonic()
    for cell in learner.cells:
        source, began = "".join(cell["source"]), time.monotonic()
        if began > until:
            print(f"{name} has not come further than {measured.cells} cells")
            break
        ran = learner.run(source, seconds=1200)
        measured.cells += 1
        on_purpose = "raises-exception" in cell["metadata"].get("tags", [])
        if ran.ok == on_purpose:
            measured.failed += 1
            print(f"{name}, after {time.monotonic() - start:.0f} s: {first_line(source)}")
            print(f"    {last_line(ran.text)}", flush=True)
        if source.startswith("cluster = start_cluster"):
            measured.cluster = time.monotonic() - began
            if not ran.ok:
                break
            now = sample(hub.mark, {name: measured})
            measured.started, measured.start_core = now[name], sum([*measured.core.values()])
    measured.lesson = time.monotonic() - start
    return learner


def first_line(source: str) -> str:
    """Return the first line of a cell that says what it does."""
    return next((line for line in source.splitlines() if not line.startswith("%%")), source)


def last_line(text: str) -> str:
    """Return the last line of an output that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def part_of(process: psutil.Process) -> str:
    """Return what a process of a learner is."""
    line = " ".join(process.cmdline())
    for part, sign in {
        "server": "jupyterhub.singleuser",
        "kernel": "ipykernel_launcher",
        "ranks": "ipyranks.engine",
    }.items():
        if sign in line:
            return part
    return "cluster"  # keeper, controller and its schedulers, mpiexec


def sample(mark: str, learners: dict[str, Measured]) -> dict[str, float]:
    """Note what everybody's processes have now; return each one's memory in bytes."""
    now: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    counts: dict[str, Counter] = defaultdict(Counter)
    with SAMPLING:
        for process in marked(mark):
            with contextlib.suppress(psutil.Error, OSError):
                name, part = process.environ().get("JUPYTERHUB_USER", "hub"), part_of(process)
                now[name][part] += process.memory_full_info().pss
                if name in learners:
                    learners[name].core[process.pid] = sum(process.cpu_times()[:2])
                if part in ("ranks", "cluster"):
                    counts[name] += Counter(processes=1, threads=process.num_threads())
                    counts[name]["ports"] += len(listening(process))
        for name in now.keys() & learners.keys():
            parts, measured = now[name], learners[name]
            if sum(parts.values()) > sum(measured.memory.values()):
                measured.memory = dict(parts)
            for what, count in counts[name].items():
                measured.most[what] = max(count, measured.most.get(what, 0))
    return {name: sum(parts.values()) for name, parts in now.items()}


def listening(process: psutil.Process) -> set[int]:
    """Return the ports on which a process listens."""
    found = process.net_connections("tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}


def size_of_files(hub: Hub) -> int:
    """Return the bytes that all clusters have in the hub's /tmp and in /dev/shm."""
    size = 0
    for base in (hub.temporary, Path("/dev/shm")):
        for path in base.glob(f"rank-by-rank-{os.getuid()}*/**/*"):
            with contextlib.suppress(FileNotFoundError):  # removed just now
                size += path.lstat().st_blocks * 512
    return size


def resting(hub: Hub, learners: dict[str, Measured]) -> float:
    """Return what share of a core all of one learner's processes take when nobody does anything."""
    sample(hub.mark, learners)
    before, began = {name: dict(m.core) for name, m in learners.items()}, time.monotonic()
    time.sleep(RESTING_SECONDS)
    sample(hub.mark, learners)
    seconds = time.monotonic() - began
    used = sum(m.core[pid] - had for n, m in learners.items() for pid, had in before[n].items())
    return used / seconds / len(learners)


def until_gone(pids: list[int], end: Callable[[], object]) -> float:
    """Return how many seconds after ``end()`` the last of some ranks is gone."""
    began = time.monotonic()
    end()
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), 120, "an end of the ranks")
    return time.monotonic() - began


def tell_who_leaves(hub: Hub, here: list[Learner]) -> None:
    """End one learner's server, kill another's kernel, and print when their ranks are gone."""
    *_, first, last = here
    kernel = int(first.run("import os; print(os.getpid())").text)
    seconds = until_gone(first.ranks(), lambda: os.kill(kernel, signal.SIGKILL))
    print(f"kernel killed: ranks gone after {seconds:.1f} s")
    end_server = partial(hub.ask, "DELETE", f"users/{last.name}/server")
    print(f"server ended: ranks gone after {until_gone(last.ranks(), end_server):.1f} s")


def main() -> None:
    """Run the learners and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("learners", type=int, nargs="?", default=10)
    parser.add_argument("--apart", type=float, default=0.0, help="seconds between two learners")
    parser.add_argument("--within", type=float, default=3600.0, help="no cell begins later")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.within
    count = arguments.learners
    learners = {f"learner{number}": Measured() for number in range(1, count + 1)}
    done, most, files, here = threading.Event(), [0.0], [0], []

    def watch(hub: Hub) -> None:
        while not done.wait(SAMPLE_SECONDS):
            most.append(sum(sample(hub.mark, learners).values()))
            files.append(size_of_files(hub))

    with running_hub() as hub:
        watcher = threading.Thread(target=watch, args=(hub,))
        watcher.start()
        try:
            with ThreadPoolExecutor(count) as together:
                runs = []
                for name, measured in learners.items():
                    runs.append(together.submit(run_lesson, hub, name, measured, until))
                    time.sleep(arguments.apart)
                here = [run.result() for run in runs]
        finally:
            done.set()
            watcher.join()
        print(f"at rest: {resting(hub, learners):.3f} of a core for each learner")
        if len(here) > 1:
            tell_who_leaves(hub, here)
    print(f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB")
    print("learner     server  cluster  lesson  core s  cells  failed  memory (MiB)  when started")
    for name, m in learners.items():
        parts = ", ".join(f"{part} {size / 2**20:.0f}" for part, size in sorted(m.memory.items()))
        print(
            f"{name:10}  {m.server:5.0f} s  {m.cluster:5.0f} s {m.lesson:5.0f} s"
            f"  {sum(m.core.values()):6.0f}  {m.cells:5}  {m.failed:6}"
            f"  {sum(m.memory.values()) / 2**20:.0f}: {parts}"
            f"  {m.started / 2**20:.0f} after {m.start_core:.0f} core s; {m.most}"
        )
    print(
        f"all together: at most {max(most) / 2**20:.0f} MiB, the hub and its proxy included, and"
        f" {max(files) / 2**20:.0f} MiB of files"
    )


if __name__ == "__main__":
    main()
