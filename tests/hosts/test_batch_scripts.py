"""The batch scripts of ``scripts/`` run under Slurm and end as one process does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch_mpi4py import launch

from tests.cluster.conftest import wait_until
from tests.hosts.testbed import ROOT, BedClient
from tests.scripts.test_scripts import TOLERANCE

LIMIT_S = 180
STEPS = ("--steps", "6")
AS_ROOT = {name: value for name, value in launch.environment().items() if "AS_ROOT" in name}
SCRIPTS = {"mpiexec": ("mpi4py", 4), "srun": ("mpi4py", 4), "torchrun": ("gloo", 4)}


@pytest.fixture(scope="module")
def slurm(bed: BedClient) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", bed.start_slurm())
        for name, value in (AS_ROOT | {"GLOO_SOCKET_IFNAME": "eth0"}).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, torch.Tensor]:
    """The weights after the same training in one process."""
    path = folder / "alone.pt"
    command = [sys.executable, "scripts/sync_sgd.py", *STEPS, "--batch", "12", "--save", str(path)]
    subprocess.run(command, cwd=ROOT, env=launch.environment(), timeout=LIMIT_S, check=True)
    return torch.load(path, weights_only=True)


def submit(folder: Path, script: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Hand a script to Slurm; return the job's number."""
    command = ["sbatch", "--parsable", f"--output={folder}/%j.out", *options]
    command += [f"scripts/ddp_{script}.sbatch", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(job: str) -> str:
    command = ["scontrol", "--oneliner", "show", "job", job]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    return said.partition("JobState=")[2].split()[0]


def end_of(job: str) -> str:
    """Wait until a job is over; return how it ended."""
    over = lambda: state(job) not in ("PENDING", "RUNNING", "COMPLETING")  # noqa: E731
    wait_until(over, LIMIT_S, f"job {job} is over", still=lambda: state(job))
    return state(job)


@pytest.mark.parametrize("script", SCRIPTS)
def test_batch_script_trains_as_one_process(
    slurm: None, folder: Path, alone: dict[str, torch.Tensor], script: str
) -> None:
    weights = folder / f"{script}.pt"
    job = submit(folder, script, *STEPS, "--batch", "3", "--save", str(weights))
    how, said = end_of(job), (folder / f"{job}.out").read_text()
    assert how == "COMPLETED", said
    # The last line is the program's own but for torchrun's warnings.
    result = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
    assert (result["backend"], result["ranks"]) == SCRIPTS[script]
    found = torch.load(weights, weights_only=True)
    for name, tensor in alone.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=TOLERANCE)


def ranks_on(bed: BedClient, host: str) -> list[int]:
    """The processes of the program on a host: Python itself, not what started it."""
    return [
        pid
        for pid, words in bed.processes(host).items()
        if "scripts/ddp.py" in words and os.path.basename(words.split()[0]).startswith("python")
    ]


def training(bed: BedClient, folder: Path, script: str, *options: str) -> str:
    """Submit a training without an end; return its job once gradients cross the network."""
    before = bed.traffic("h3")[0]
    job = submit(folder, script, "--epochs", "1000", options=options)
    sends = lambda: bed.traffic("h3")[0] > before + 10**7  # noqa: E731
    wait_until(sends, LIMIT_S, "the ranks train", still=lambda: state(job))
    return job


@pytest.mark.parametrize("script", ["mpiexec", "srun"])
def test_a_killed_rank_ends_the_job_with_an_error(
    bed: BedClient, slurm: None, folder: Path, script: str
) -> None:
    job = training(bed, folder, script)
    bed.kill(ranks_on(bed, "h3")[0], signal.SIGKILL)
    how, said = end_of(job), (folder / f"{job}.out").read_text()
    assert how == "FAILED", said
    if script == "mpiexec":
        assert "RankFailedError" in said


def test_a_cancelled_job_leaves_nothing(bed: BedClient, slurm: None, folder: Path) -> None:
    job = training(bed, folder, "mpiexec")
    subprocess.run(["scancel", job], check=True, timeout=30)
    assert end_of(job) == "CANCELLED"
    gone = lambda: not ranks_on(bed, "h2") + ranks_on(bed, "h3")  # noqa: E731
    wait_until(gone, 60, "the ranks have ended")


def test_a_job_past_its_time_limit_is_ended(bed: BedClient, slurm: None, folder: Path) -> None:
    job = training(bed, folder, "mpiexec")
    # A limit has whole minutes, but its end may be moved; slurmctld looks every half minute.
    soon = ["scontrol", "update", f"JobId={job}", "EndTime=now+1"]
    subprocess.run(soon, check=True, timeout=30)
    assert end_of(job) == "TIMEOUT"
    assert "DUE TO TIME LIMIT" in (folder / f"{job}.out").read_text()
    gone = lambda: not ranks_on(bed, "h2") + ranks_on(bed, "h3")  # noqa: E731
    wait_until(gone, 60, "the ranks have ended")


def test_unknown_partition_is_rejected_at_once(slurm: None, folder: Path) -> None:
    command = ["sbatch", "--partition=nope", "scripts/ddp_mpiexec.sbatch"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode != 0
    assert "invalid partition" in done.stderr
