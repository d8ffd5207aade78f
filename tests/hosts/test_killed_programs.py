"""Whatever is killed by -9, no process and no memory stays on another host."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from torch_mpi4py import launch

from tests.hosts.test_cut_cable import BEGUN_WITHIN_S, PROGRAM, await_files, await_true, ranks_of
from tests.hosts.testbed import BedClient

ENDS_WITHIN_S = 30.0
RUN_FOLDERS = ["find", "/dev/shm", "-name", f"{launch.RUN_FOLDERS}*"]
IN_RUN_FOLDERS = [*RUN_FOLDERS[:2], "-path", f"*/{launch.RUN_FOLDERS}*/*"]


def test_next_program_removes_leftovers_of_killed_ones(
    root: Path, folder: Path, hostfile: Path, bed: BedClient
) -> None:
    shared = Path(tempfile.mkdtemp(dir=folder))
    launchers = {
        name: subprocess.Popen(
            launch.mpiexec(
                4, "--hostfile", hostfile, sys.executable, "-m", PROGRAM,
                *map(str, (shared, name, "dist", 1 << 18, 60, "raise")),
            ),
            cwd=root, env=launch.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for name in ("launcher", "ranks")
    }  # fmt: skip
    try:
        for name in launchers:
            await_files(shared, f"{name}-going-*", 4, BEGUN_WITHIN_S)
        for host in ("h1", "h2"):
            assert on(bed, host, IN_RUN_FOLDERS)  # else this test would see nothing
        launchers["launcher"].kill()
        for pid in [pid for host in ("h1", "h2") for pid in ranks_of(bed, host, "ranks")]:
            bed.kill(pid)
        launchers["ranks"].wait(ENDS_WITHIN_S)
        for host in ("h1", "h2"):
            await_true(
                lambda host=host: not ranks_of(bed, host),
                ENDS_WITHIN_S,
                lambda host=host: f"there are {ranks_of(bed, host)} on {host}",
            )
        # Nobody may be left on h1 who could do it there; the next run does.
        await_true(
            lambda: not on(bed, "h2", IN_RUN_FOLDERS),
            ENDS_WITHIN_S,
            lambda: f"there are {on(bed, 'h2', IN_RUN_FOLDERS)}",
        )
    finally:
        for launcher in launchers.values():
            launcher.kill()
            launcher.wait(10)
    leaves_in_order = "import torch_mpi4py; torch_mpi4py.world()"
    subprocess.run(
        launch.mpiexec(
            4, "--hostfile", hostfile, sys.executable, "-c", leaves_in_order
        ),
        cwd=root, env=launch.environment(), stdin=subprocess.DEVNULL, timeout=60, check=True,
    )  # fmt: skip
    for host in ("h1", "h2"):
        assert on(bed, host, RUN_FOLDERS) == []


def on(bed: BedClient, host: str, find: list[str]) -> list[str]:
    return bed.execute(host, find).stdout.split()
