"""What killed runs leave in shared memory goes, and what somebody maps stays."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest
from ipyranks import runtime_dir
from torch_mpi4py import launch

from tests import ranks

SHARED_MEMORY = Path("/dev/shm")
# Without torch_mpi4py, with which the next start of any test may remove what is left.
KILLED = """
import os, signal
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
with open("/proc/self/maps") as maps:
    mine = {line.split()[5] for line in maps if "/dev/shm/" in line}
with open(f"{os.environ['MAPPED']}-{MPI.COMM_WORLD.rank}", "w") as file:
    file.write("\\n".join(mine))
if MPI.COMM_WORLD.rank == 0 and MPI.get_vendor()[0] == "Open MPI":
    os.kill(os.getppid(), signal.SIGKILL)  # this launcher would tidy up
MPI.COMM_WORLD.Barrier()
os.kill(os.getpid(), signal.SIGKILL)
"""

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm on this system")


def sweep() -> None:
    """Remove what is old enough; only time makes it old."""
    time.sleep(runtime_dir._YOUNG_S + 0.1)
    runtime_dir.sweep_segments()


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_segments_of_a_killed_run_are_removed(
    request: pytest.FixtureRequest, tmp_path: Path, mpi: str
) -> None:
    library = ranks.OPEN_MPI if mpi == "openmpi" else request.getfixturevalue("mpich")
    assert_segments_of_a_killed_run_go(library, tmp_path)


def assert_segments_of_a_killed_run_go(library: ranks.Library, folder: Path) -> None:
    variables = {"MAPPED": str(folder / "mapped")}
    finished = ranks.run(2, "-c", KILLED, limit=120, library=library, variables=variables)
    assert finished.returncode not in (0, None), finished.output
    mapped = {Path(name) for file in folder.iterdir() for name in file.read_text().split()}
    left = {path for path in mapped if path.exists()}
    assert left, f"the killed run has left nothing where this test looks\n{finished.output}"
    sweep()
    assert not [path for path in left if path.exists()]


@pytest.mark.parametrize("in_folder", [False, True])
def test_segments_in_use_are_kept(in_folder: bool) -> None:
    """At the top level, as Open MPI alone creates them, and in the folder of a run."""
    folder = f"{launch.RUN_FOLDERS}in-use-{os.getpid()}" if in_folder else ""
    own = SHARED_MEMORY / folder
    own.mkdir(exist_ok=True)
    path = own / f"sm_segment.in-use.{os.getpid()}"
    with path.open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), 0)
    try:
        sweep()
        assert path.exists()
        mapped.close()
        sweep()
        assert not path.exists()
        until = time.monotonic() + 20  # another sweep may have come first, and be half-way
        while in_folder and own.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert own.exists() != in_folder, "a run's folder goes with its last segment"
    finally:
        path.unlink(missing_ok=True)
        if in_folder and own.exists():
            own.rmdir()
