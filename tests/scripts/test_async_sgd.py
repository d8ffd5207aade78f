"""The asynchronous script trains, says what it did, and a straggler costs it less."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_mpi4py import launch

from tests import ranks

SCRIPT = os.path.join("scripts", "async_sgd.py")
LIMIT = 150


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on the digits, whatever data sets this machine has."""
    monkeypatch.delenv("COURSE_DATA", raising=False)


def run(n: int, *options: object) -> dict:
    ended = ranks.run(n, SCRIPT, *map(str, options), limit=LIMIT)
    assert ended.returncode == 0, ended.output
    assert not ended.left_behind
    lines = ended.output.strip().splitlines()
    assert len(lines) == 1, ended.output
    return json.loads(lines[0])


def alone(root: Path, *options: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, options)],
        cwd=root,
        env=launch.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_help_shows_the_start_command(root: Path) -> None:
    ended = alone(root, "--help")
    assert ended.returncode == 0, ended.stderr
    for words in ("mpiexec -n 4 python scripts/async_sgd.py", "--straggler", "--mode"):
        assert words in ended.stdout


def test_single_process_exits_with_the_start_command(root: Path) -> None:
    ended = alone(root)
    assert ended.returncode == 1
    assert ended.stderr.strip() == "start a server and its workers: mpiexec -n 4 python ..."


def test_invalid_options_are_rejected(root: Path) -> None:
    ended = alone(root, "--straggler", -1)
    assert ended.returncode == 2
    assert "--straggler at least 0" in ended.stderr


@pytest.mark.timeout(240)
def test_training_learns_and_straggler_delays_no_worker() -> None:
    """Five epochs of the digits give 0.8 to 0.97; guessing is right for one in ten.

    Ten epochs and a second: a worker whose core is taken for some of it is not the straggler yet.
    """
    found = run(4, "--epochs", 10, "--straggler", 1)
    assert (found["data"], found["mode"], found["updates"]) == ("digits", "asynchronous", 899)
    assert found["accuracy"] > 0.3
    slow, *others = found["gradients_by_worker"]
    assert len(others) == 2
    assert slow + sum(others) == 899
    assert slow < min(others)


@pytest.mark.timeout(240)
def test_straggler_delays_synchronous_rounds() -> None:
    """20 rounds wait 0.1 s each."""
    found = run(3, "--steps", 20, "--straggler", 0.1, "--mode", "synchronous")
    assert found["seconds"] > 2
    assert found["gradients_by_worker"] == [20, 20]
    assert found["mean_staleness"] == 0


@pytest.mark.timeout(320)
def test_other_modes_run() -> None:
    found = run(3, "--steps", 10, "--mode", "synchronous", "--backup", 1)
    assert found["mode"] == "synchronous, first 1"
    assert sum(found["gradients_by_worker"]) == 10
    found = run(3, "--steps", 10, "--mode", "bounded", "--bound", 1, "--over-staleness")
    assert found["mode"] == "bounded staleness 1"
    one, other = found["gradients_by_worker"]
    assert abs(one - other) <= 2
