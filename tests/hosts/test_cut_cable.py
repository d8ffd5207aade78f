"""A cable is cut while ranks of programs talk: short calls end at their deadlines, on both sides.

MPI frees no rank that is in the middle of a large message to a host which it considers alive. Both
programs run at a time, so that one cut serves for both.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from torch_mpi4py import launch

from tests.hosts.testbed import BedClient

TIMEOUT_S = 8.0  # the ranks share the cores, and none may be late before the cut
BEGUN_WITHIN_S = 180.0  # many ranks import torch at once, maybe on a busy machine
FREED_WITHIN_S = 2.0  # after the deadline; twice what is promised on one host
# From when the cable is plugged in again: the kernel has doubled its pauses meanwhile.
ENDS_WITHIN_S = 60.0
PROGRAM = "tests.hosts.cut_loops"


class Program(NamedTuple):
    """What runs while the cable is cut."""

    ranks: int
    kind: str
    elements: int
    end: str


PROGRAMS = {
    "torch": Program(4, "dist", 1 << 8, "raise"),
    "mpi4py": Program(2, "comm", 1 << 8, "shrink"),
}


def test_cut_cable_ends_calls_on_both_sides(root: Path, folder: Path, bed: BedClient) -> None:
    shared = Path(tempfile.mkdtemp(dir=folder))
    with running(root, shared) as launchers:
        for name, program in PROGRAMS.items():
            await_files(shared, f"{name}-going-*", program.ranks, BEGUN_WITHIN_S)
        bed.cut("h2")
        try:
            both_sides_have_an_error_at_their_deadline(shared)
            neither_side_goes_on(shared)
        finally:
            bed.mend("h2")
        for name, launcher in launchers.items():
            assert launcher.wait(ENDS_WITHIN_S) != 0, name


@contextlib.contextmanager
def running(root: Path, shared: Path) -> Iterator[dict[str, subprocess.Popen]]:
    """Start the programs; what is left of them is killed in the end."""
    launchers: dict[str, subprocess.Popen] = {}
    try:
        for name, (n, kind, elements, end) in PROGRAMS.items():
            hosts = shared / f"{name}-hosts"
            hosts.write_text(f"h1 slots={n // 2}\nh2 slots={n // 2}\n")
            words = (shared, name, kind, elements, TIMEOUT_S, end)
            command = launch.mpiexec(
                n, "--hostfile", hosts, sys.executable, "-m", PROGRAM, *map(str, words)
            )
            with open(shared / f"{name}-log", "w") as log:
                launchers[name] = subprocess.Popen(
                    command, cwd=root, env=launch.environment(), stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log,
                )  # fmt: skip
        try:
            yield launchers
        except AssertionError:
            for name in PROGRAMS:
                print(f"---- {name}:\n{(shared / f'{name}-log').read_text()}")
            raise
    finally:
        for launcher in launchers.values():
            launcher.kill()
            launcher.wait(10)


def both_sides_have_an_error_at_their_deadline(shared: Path) -> None:
    late = {}
    for name, program in PROGRAMS.items():
        for path in await_files(shared, f"{name}-said-*", program.ranks, TIMEOUT_S + 30):
            said = json.loads(path.read_text())
            assert "all_reduce" in said["error"] or "Allreduce" in said["error"], said
            if said["seconds"] > TIMEOUT_S + FREED_WITHIN_S:
                late[path.name] = said
    assert not late


def neither_side_goes_on(shared: Path) -> None:
    for path in await_files(shared, "mpi4py-alone-*", 2, TIMEOUT_S + 30):
        assert "not every living rank made this call" in path.read_text()


def ranks_of(bed: BedClient, host: str, name: str = "") -> dict[int, str]:
    """The ranks on a host, of the program ``name`` alone or of all: command lines by process id.

    Not mpiexec, whose command line holds that of its ranks.
    """
    return {
        pid: words
        for pid, words in bed.processes(host).items()
        if Path(words.split()[0]).name.startswith("python") and f"-m {PROGRAM} " in words
        if f" {name}" in words
    }


def await_files(folder: Path, pattern: str, n: int, seconds: float) -> list[Path]:
    found: list[Path] = []

    def have() -> bool:
        found[:] = sorted(folder.glob(pattern))
        return len(found) == n

    await_true(have, seconds, lambda: f"there are only {found} of {n} {pattern}")
    return found


def await_true(holds: Callable[[], object], seconds: float, why: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds} s {why()}"
        time.sleep(0.05)
