"""Measure how many learners a machine carries: they run lesson 00 under a real hub.

``python -m tests.hub.crowd 10 --apart 20``, ten learners who begin 20 s after each other, prints
what each learner's lesson took, in seconds, seconds of a core, and memory; and the most that all
of them had together.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psutil

from tests.hub.hub import Hub, Learner, running_hub
from tests.lab_server import marked

LESSON = "workspace/00_start_here.ipynb"
SAMPLE_SECONDS = 2.0


@dataclass
class Measured:
    """What a learner's processes took.

    Attributes:
        server: seconds until the server answered.
        cluster: seconds that `start_cluster` took.
        lesson: seconds for all cells.
        failed: cells that did not end as they are meant to.
        core: for each process its seconds on a core.
        memory: the largest memory in bytes, by what the processes are; pages that several
            processes share are divided among them (PSS).
    """

    server: float = 0.0
    cluster: float = 0.0
    lesson: float = 0.0
    failed: int = 0
    core: dict[int, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)


def run_lesson(hub: Hub, name: str, measured: Measured) -> None:
    """Start a learner's server, run all cells of lesson 00, and note the times."""
    learner, start = Learner(hub, name), time.monotonic()
    learner.start()
    measured.server = time.monotonic() - start
    learner.open(LESSON)
    start = time.monotonic()
    for cell in learner.cells:
        source, began = "".join(cell["source"]), time.monotonic()
        ran = learner.run(source, seconds=1200)
        on_purpose = "raises-exception" in cell["metadata"].get("tags", [])
        if ran.ok == on_purpose:
            measured.failed += 1
            print(f"{name}, after {time.monotonic() - start:.0f} s: {first_line(source)}")
            print(f"    {last_line(ran.text)}", flush=True)
        if source.startswith("cluster = start_cluster"):
            measured.cluster = time.monotonic() - began
            if not ran.ok:
                break
    measured.lesson = time.monotonic() - start


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
        "ranks": "course_lib.cluster.engine",
    }.items():
        if sign in line:
            return part
    return "cluster"  # keeper, controller and its schedulers, mpiexec


def sample(mark: str, learners: dict[str, Measured]) -> float:
    """Note what everybody's processes have now; return the memory of all in bytes."""
    now: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for process in marked(mark):
        with contextlib.suppress(psutil.Error, OSError):
            name = process.environ().get("JUPYTERHUB_USER", "hub")
            now[name][part_of(process)] += process.memory_full_info().pss
            if name in learners:
                learners[name].core[process.pid] = sum(process.cpu_times()[:2])
    for name, parts in now.items():
        if name in learners and sum(parts.values()) > sum(learners[name].memory.values()):
            learners[name].memory = dict(parts)
    return sum(sum(parts.values()) for parts in now.values())


def main() -> None:
    """Run the learners and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("learners", type=int, nargs="?", default=10)
    parser.add_argument("--apart", type=float, default=0.0, help="seconds between two learners")
    arguments = parser.parse_args()
    count = arguments.learners
    learners = {f"learner{number}": Measured() for number in range(1, count + 1)}
    done, most = threading.Event(), [0.0]

    def watch(mark: str) -> None:
        while not done.wait(SAMPLE_SECONDS):
            most.append(sample(mark, learners))

    with running_hub() as hub:
        watcher = threading.Thread(target=watch, args=(hub.mark,))
        watcher.start()
        try:
            with ThreadPoolExecutor(count) as together:
                runs = []
                for name, measured in learners.items():
                    runs.append(together.submit(run_lesson, hub, name, measured))
                    time.sleep(arguments.apart)
                for run in runs:
                    run.result()
        finally:
            done.set()
            watcher.join()
    print(f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB")
    print("learner     server  cluster  lesson  core s  failed  memory (MiB)")
    for name, m in learners.items():
        parts = ", ".join(f"{part} {size / 2**20:.0f}" for part, size in sorted(m.memory.items()))
        print(
            f"{name:10}  {m.server:5.0f} s  {m.cluster:5.0f} s {m.lesson:5.0f} s"
            f"  {sum(m.core.values()):6.0f}  {m.failed:6}"
            f"  {sum(m.memory.values()) / 2**20:.0f}: {parts}"
        )
    print(f"all together: at most {max(most) / 2**20:.0f} MiB, the hub and its proxy included")


if __name__ == "__main__":
    main()
