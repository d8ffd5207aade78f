"""With an MPI of the site's, scripts train, and a notebook's cluster reports hangs and restarts."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from ipyranks.runtime_dir import RuntimeDir
from torch_mpi4py import launch
from torch_mpi4py.board.observing import RankBoards

from course_lib.doctor import OK, WARN, mpi
from tests import ranks
from tests.cluster.conftest import wait_until
from tests.cluster.hangs import CLOCK, RENEWED, begin, limit_passed, rows_of
from tests.cluster.test_segments import assert_segments_of_a_killed_run_go

pytestmark = pytest.mark.timeout(270)

VERSIONS = {"openmpi": "Open MPI 4.1", "mpich": "MPICH 4.0"}
ADVICE = "cluster.restart() starts fresh ranks. This loses all variables"


@pytest.fixture
def used(site: ranks.Library, monkeypatch: pytest.MonkeyPatch) -> ranks.Library:
    """Use the site's MPI in this process and in what it starts."""
    for name, value in site.variables.items():
        monkeypatch.setenv(name, value)
    return site


def test_mpiexec_belongs_to_the_library(used: ranks.Library) -> None:
    assert launch.find_mpiexec() == Path(f"/usr/bin/mpiexec.{used.name}")
    assert launch.family() == used.name
    assert not launch.frees_ranks()


def test_open_mpi_wheel_is_the_default(site: ranks.Library) -> None:
    """An installed MPI alone changes nothing, though its mpiexec is on PATH."""
    assert shutil.which("mpiexec", path="/usr/bin")
    program = "from torch_mpi4py import MPI; print(MPI.Get_library_version()[:14], flush=True)"
    path = {"PATH": f"/usr/bin{os.pathsep}{os.environ['PATH']}"}
    ended = ranks.run(2, "-c", program, limit=60, variables=path)
    assert ended.output == "Open MPI v5.0.\n" * 2
    assert launch.frees_ranks()


def test_script_trains(site: ranks.Library, used: ranks.Library) -> None:
    ended = ranks.run(4, "scripts/sync_sgd.py", "--steps", "12", limit=120, library=site)
    assert ended.returncode == 0, ended.output
    assert not ended.left_behind
    result = json.loads(ended.output.strip().splitlines()[-1])
    assert (result["ranks"], result["steps"]) == (4, 12)


def test_doctor_names_the_library(used: ranks.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "_JOB_SECONDS", 60)
    monkeypatch.setattr(mpi, "_VERSION_SECONDS", 60)
    found = mpi.job(2)
    assert found.status == OK, found
    library = Path(used.variables["MPI4PY_LIBMPI"]).resolve()
    assert f"2 ranks of {VERSIONS[used.name]}" in found.seen
    assert str(library) in found.seen
    found = mpi.mpiexec()
    assert found.status == WARN
    assert f"/usr/bin/mpiexec.{used.name}" in found.seen
    assert "can only be restarted, not freed" in found.seen


@pytest.mark.parametrize("site", ["openmpi"], indirect=True)  # Debian's MPICH leaves none
def test_segments_of_killed_programs_are_removed(site: ranks.Library, tmp_path: Path) -> None:
    assert_segments_of_a_killed_run_go(site, tmp_path)


MAPPED = """%%px
with open("/proc/self/maps") as maps:
    mapped = sorted({line.split()[5] for line in maps if "/dev/shm/" in line})
"""


def hang(kernel, cell: str):
    """Run a cell in which both ranks wait, until its limit, and return what came out."""
    running = begin(kernel, cell, wait_until, waiting=[0, 1], options=" --limit 60")
    assert None not in RankBoards(kernel.events).waits([0, 1]).values()
    with limit_passed(kernel):
        out = kernel.finish(running)
    assert out.error["ename"] == "HangError"
    assert all(row.startswith("waiting") for row in rows_of(out.traceback).values())
    return out


def test_a_cluster_reports_a_hang_and_restarts(used: ranks.Library, new_kernel, traces) -> None:
    kernel = new_kernel()
    assert VERSIONS[used.name] in kernel.start_cluster(2, "init_process_group=True")
    (directory,) = traces.directories()
    kernel.events = directory / "events"
    kernel.must(CLOCK.format(path=kernel.is_late))
    kernel.must(MAPPED)
    segments = json.loads(
        kernel.must("import json; print(json.dumps(cluster.view['mapped']))").text()
    )
    own = str(RuntimeDir(directory).shared_memory)
    if used.name == "openmpi":  # where killed ranks leave them, they go with the cluster
        assert all(segments)
        assert all(path.startswith(own) for of_rank in segments for path in of_rank), segments
    out = kernel.must("%%px\nt = torch.ones(3)\ndist.all_reduce(t)\nt.tolist()").text()
    assert out == "rank 0 = [2.0, 2.0, 2.0]\nrank 1 = [2.0, 2.0, 2.0]\n"

    out = hang(kernel, "comm.recv(source=1 - rank, tag=11)")
    deadlock = r"Deadlock: ranks 0 and 1 both receive first \[cell \d+, line 2\]"
    assert re.search(deadlock, out.error["evalue"]), out.traceback
    assert RENEWED in out.text()
    assert kernel.must("%px comm.allreduce(1)").text() == "rank 0 = 2\nrank 1 = 2\n"

    # This one waits inside MPI, which cannot free it.
    out = hang(kernel, "comm.Ibarrier().Wait() if rank else comm.recv(source=1)")
    assert ADVICE in out.text()
    kernel.must("cluster.restart(); cluster.init_process_group()", within=120)
    assert kernel.must("%px comm.allreduce(1)").text() == "rank 0 = 2\nrank 1 = 2\n"
