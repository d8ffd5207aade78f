"""Scripts that ``mpiexec --hostfile`` starts on two hosts, as README says, equal one process."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch_mpi4py import launch

from tests.hosts.testbed import BedClient
from tests.scripts.test_scripts import TOLERANCE
from tests.training.test_data import mnist_files

LIMIT = 120
STEPS = 6


def python(root: Path, *command: object) -> dict:
    """Run a program of the checkout and return the result that its last line gives."""
    ended = run(root, *command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.strip().splitlines()[-1])


def run(root: Path, *command: object, **variables: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=root,
        env=launch.environment(dict(os.environ) | {k: str(v) for k, v in variables.items()}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_training_on_two_hosts_equals_one_process(
    root: Path, folder: Path, hostfile: Path, bed: BedClient
) -> None:
    """The gradients really cross the network: there are four ranks, two on each host."""
    files = {name: folder / f"{name}.pt" for name in ("hosts", "one")}
    before = bed.traffic("h2")
    options = ("--steps", STEPS)
    together = python(
        root, *launch.mpiexec(
            4, "--hostfile", hostfile, "-x", "COURSE_DATA", sys.executable, "scripts/ddp.py"
        ), *options, "--batch", 3, "--save", files["hosts"],
    )  # fmt: skip
    sent, received = (now - then for now, then in zip(bed.traffic("h2"), before, strict=True))
    alone = python(
        root, sys.executable, "scripts/sync_sgd.py", *options, "--batch", 12, "--save", files["one"]
    )
    assert (together["ranks"], together["backend"], alone["ranks"]) == (4, "mpi4py", 1)
    weights = {name: torch.load(file, weights_only=True) for name, file in files.items()}
    for key, tensor in weights["one"].items():
        torch.testing.assert_close(weights["hosts"][key], tensor, rtol=0, atol=TOLERANCE)
    # Each way goes at least one rank's gradient a step, however the four are added up.
    gradients = STEPS * sum(tensor.nbytes for tensor in weights["one"].values())
    assert min(sent, received) > gradients


def test_ranks_with_different_data_are_reported(root: Path, folder: Path, hostfile: Path) -> None:
    """The variable that names the data's folder is not passed on to the other host."""
    raw = folder / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, packed in mnist_files().items():
        (raw / name.removesuffix(".gz")).write_bytes(gzip.decompress(packed))
    script = (sys.executable, "scripts/ddp.py", "--steps", 1)
    ended = run(
        root, *launch.mpiexec(4, "--hostfile", hostfile, *map(str, script)),
        COURSE_DATA=folder / "data",
    )  # fmt: skip
    assert ended.returncode != 0
    assert "rank 0 on h1 " in ended.stderr, ended.stderr
    assert " of mnist " in ended.stderr, ended.stderr
    assert "rank 2 on h2 1,437 of digits " in ended.stderr, ended.stderr
    assert "-x COURSE_DATA" in ended.stderr


def test_script_ranks_run_on_both_hosts(root: Path, hostfile: Path) -> None:
    program = (
        "import json, socket, torch_mpi4py as mpi;"
        "names = mpi.world().gather(socket.gethostname());"
        "names and print(json.dumps(names))"
    )
    command = launch.mpiexec(4, "--hostfile", hostfile, sys.executable, "-c", program)
    assert python(root, *command) == ["h1", "h1", "h2", "h2"]
