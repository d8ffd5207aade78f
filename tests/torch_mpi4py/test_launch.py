"""Ranks of one host stay off the network, and off other runs' memory; dead runs stop nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from torch_mpi4py import launch

from tests import ranks

MANY = 2000  # more processes than other tests start meanwhile


def plant(folder: Path, pid: int) -> Path:
    """Make what a launcher with this process id leaves when it is killed."""
    session = folder / f"ompi.{pid}"
    session.mkdir()
    session.joinpath(f"pmix.{os.uname().nodename}.tool").write_text(
        f"prterun-{os.uname().nodename}-{pid}@0.0;tcp4://127.0.0.1:52301\n5.0.11\n{pid}\n0:0\n"
    )
    return session


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="needs /proc to foresee the pid")
def test_launcher_starts_with_the_pid_of_a_killed_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    largest = int(Path("/proc/sys/kernel/pid_max").read_text())
    last = int(Path("/proc/loadavg").read_text().split()[-1])
    for pid in range(last + 1, last + MANY):
        plant(tmp_path, pid % largest)
    variables = {"TMPDIR": str(tmp_path)}
    finished = ranks.run(1, "-c", "print('started')", limit=120, variables=variables)
    assert finished.output == "started\n", finished.output
    assert finished.returncode == 0


def test_only_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    living = plant(tmp_path, os.getpid())
    (tmp_path / "ompi.vm.0").mkdir()
    (tmp_path / "ompi.notes").write_text("somebody's")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    dead = plant(tmp_path, child)
    launch.remove_dead_sessions(tmp_path)
    assert living.exists()
    assert not dead.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [living.name, "ompi.vm.0", "ompi.notes"]
    )


def test_shared_memory_of_dead_processes_is_removed(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    folders, host = {}, os.uname().nodename
    for whose, run in {
        "living": f"prterun-{host}-{os.getpid()}@1",
        "dead": f"prterun-{host}-{child}@1",
        "of another host": f"prterun-{host}-2-{child}@1",
        "slurm": f"slurm.pmix.{child}.0",
    }.items():
        given = launch.own_shared_memory({"PMIX_NAMESPACE": run}, tmp_path)
        assert len(set(given.values())) == 1
        folders[whose] = Path(next(iter(given.values())))
        assert folders[whose].stat().st_mode & 0o077 == 0
        (folders[whose] / "sm_segment.host.0.1.0").touch()
    launch.remove_dead_sessions(tmp_path, tmp_path)
    assert [whose for whose, folder in folders.items() if not folder.exists()] == ["dead"]


HOLDER = """
import sys
from pathlib import Path
from torch_mpi4py import launch
launch.own_shared_memory({"PMIX_NAMESPACE": sys.argv[1]}, Path(sys.argv[2]))
print("holds", flush=True)
sys.stdin.read()
"""


def test_run_removes_shared_memory_of_killed_multi_host_ranks(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, "prterun-elsewhere-2@1", str(tmp_path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"holds\n"
            (theirs,) = tmp_path.iterdir()
            (theirs / "sm_segment.host.0.1.0").touch()
            launch.own_shared_memory({"PMIX_NAMESPACE": "prterun-elsewhere-3@1"}, tmp_path)
            assert theirs.exists()
        finally:
            rank.kill()
    launch.own_shared_memory({"PMIX_NAMESPACE": "prterun-elsewhere-4@1"}, tmp_path)
    assert not theirs.exists()


def test_shared_memory_location_can_be_configured(tmp_path: Path) -> None:
    run = {"PMIX_NAMESPACE": "prterun-host-1@1"}
    asked = {"OMPI_MCA_btl_sm_backing_directory": "/somewhere"}
    assert launch.own_shared_memory(run | asked, tmp_path) == {}
    assert launch.own_shared_memory({}, tmp_path) == {}  # another MPI, or no launcher
    assert launch.own_shared_memory(run, tmp_path / "missing") == {}
    assert not list(tmp_path.iterdir())


MAPPED = """
import os
import torch_mpi4py as mpi
mpi.world().barrier()
with open("/proc/self/maps") as maps:
    mine = {line.split()[5] for line in maps if "sm_segment" in line}
if mpi.world().rank == 0:
    print(os.environ["PMIX_NAMESPACE"], *sorted(mine), sep="\\n")
mpi.world().barrier()
"""


@pytest.mark.skipif(not launch.SHARED_MEMORY.is_dir(), reason="no /dev/shm on this system")
def test_each_run_has_its_own_shared_memory() -> None:
    """Two runs whose 16-bit names are equal would crash."""
    finished = ranks.run(2, "-c", MAPPED, limit=120)
    run, *segments = finished.output.splitlines()
    assert len(segments) == 2, finished.output
    (folder,) = {Path(segment).parent for segment in segments}
    assert folder.parent == launch.SHARED_MEMORY
    assert run in folder.name
    assert not folder.exists(), "the last rank to leave removes it"


KILLED = """
import os, pathlib, signal
import torch_mpi4py as mpi
mpi.world().barrier()
if mpi.world().rank == 0:
    folder = pathlib.Path(os.environ["OMPI_MCA_btl_sm_backing_directory"])
    assert len(list(folder.iterdir())) == 2
    pathlib.Path(os.environ["NOTE"]).write_text(str(folder))
    os.kill(os.getppid(), signal.SIGKILL)  # the launcher, which would tidy up
    os.kill(os.getpid(), signal.SIGKILL)
mpi.world().barrier()
"""


@pytest.mark.skipif(not launch.SHARED_MEMORY.is_dir(), reason="no /dev/shm on this system")
def test_next_start_removes_shared_memory_of_a_killed_run(tmp_path: Path) -> None:
    note = tmp_path / "note"
    finished = ranks.run(2, "-c", KILLED, limit=120, variables={"NOTE": str(note)})
    assert finished.returncode != 0
    launch.mpiexec(1, "true")  # unless another test has started something before
    assert not Path(note.read_text()).exists()


LISTENING = """
import psutil
import torch_mpi4py as mpi
mpi.world().barrier()
mine = psutil.Process().net_connections(kind="inet")
print([end.laddr.ip for end in mine if end.status == psutil.CONN_LISTEN])
mpi.world().barrier()
"""


def test_ranks_on_one_host_open_no_ports() -> None:
    """However they are started: only the launcher tells them where they run."""
    finished = ranks.run(2, "-c", LISTENING, limit=120)
    assert finished.output == "[]\n[]\n"


def test_ranks_on_several_hosts_use_the_network() -> None:
    size = "OMPI_COMM_WORLD_SIZE"
    assert launch.off_the_network({size: "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert not launch.off_the_network({size: "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert not launch.off_the_network({"PMI_RANK": "0", "PMI_SIZE": "2"})  # another MPI


ALONE = """
import os
import numpy
from torch_mpi4py import MPI
numbers = numpy.arange(3.0)
request = MPI.COMM_WORLD.Isend(numbers, 0)
got = numpy.zeros(3)
MPI.COMM_WORLD.Recv(got, 0)
request.Wait()
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, got)
print(got.tolist(), os.environ.get("OMPI_MCA_btl"))
"""


@pytest.mark.parametrize(("asked", "left"), [({}, 0), ({"OMPI_MCA_btl": "self,sm"}, 1)])
def test_process_without_a_launcher_leaves_no_shared_memory(
    tmp_path: Path, asked: dict[str, str], left: int
) -> None:
    """Nor does it hand its settings on; with shared memory Open MPI leaves a segment."""
    kept = {name: value for name, value in os.environ.items() if name not in launch.environment({})}
    finished = subprocess.run(
        [sys.executable, "-c", ALONE],
        env=kept | asked | {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert finished.stdout == f"[0.0, 1.0, 2.0] {asked.get('OMPI_MCA_btl')}\n"
    assert len(list(tmp_path.iterdir())) == left


def test_user_network_settings_are_kept() -> None:
    asked = {"OMPI_MCA_btl": "self,sm,tcp"}
    finished = ranks.run(2, "-c", LISTENING, limit=120, variables=asked)
    assert finished.output.count("0.0.0.0") == 2


@pytest.mark.parametrize(
    ("library", "program", "found"),
    [
        ("lib/libmpi.so.40", "bin/mpiexec", True),  # a wheel's, or an MPI in a folder of its own
        ("lib/release/libmpi.so.12", "bin/mpiexec", True),  # Intel's
        ("lib/x86_64-linux-gnu/libmpi.so.40", "bin/mpiexec.openmpi", True),  # Debian's
        ("lib/x86_64-linux-gnu/libmpich.so.12", "bin/mpiexec.mpich", True),
        ("lib/x86_64-linux-gnu/libmpich.so.12", "bin/mpiexec.openmpi", False),
        ("lib/libmpi.so.40", "programs/mpiexec", False),
        ("somewhere/libmpi.so.40", "bin/mpiexec", False),
        ("lib64/openmpi/lib/libmpi.so.40", "bin/mpiexec", False),  # Fedora's is beside its own lib
    ],
)
def test_mpiexec_is_found_beside_its_library(
    tmp_path: Path, library: str, program: str, found: bool
) -> None:
    paths = [tmp_path / library, tmp_path / program]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    assert launch.mpiexec_of(paths[0]) == (paths[1] if found else None)


def test_mpiexec_variable_overrides_the_named_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, program = tmp_path / "lib" / "libmpi.so.40", tmp_path / "bin" / "mpiexec"
    for path in (library, program):
        path.parent.mkdir()
        path.touch(mode=0o755)
    beside = launch.find_mpiexec()
    monkeypatch.setenv("MPI4PY_LIBMPI", str(library))
    assert launch.find_mpiexec() == program
    monkeypatch.setenv("TORCH_MPI4PY_MPIEXEC", str(beside))
    assert launch.find_mpiexec() == beside
    monkeypatch.delenv("TORCH_MPI4PY_MPIEXEC")
    program.unlink()
    with pytest.raises(launch.NoMPIError, match="export TORCH_MPI4PY_MPIEXEC="):
        launch.find_mpiexec()


@pytest.mark.parametrize(
    ("said", "frees"),
    [
        ("mpiexec (Open MPI) 5.0.11", True),
        ("mpirun (Open MPI) 10.0.0rc1", True),
        ("mpiexec (OpenRTE) 4.1.4", False),
        ("mpirun (Open MPI) 4.1.6", False),
        ("HYDRA build details:\n    Version: 5.0.2", False),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11", False),
        ("", False),
    ],
)
def test_only_open_mpi_5_frees_ranks(said: str, frees: bool) -> None:
    assert launch._frees_ranks(said) == frees
