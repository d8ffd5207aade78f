"""The asynchronous script trains, says what it did, and a straggler costs it less."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import launch
from tests import ranks

SCRIPT = os.path.join("scripts", "async_sgd.py")
LIMIT = 90


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


def test_help_shows_how_to_start_it(root: Path) -> None:
    ended = alone(root, "--help")
    assert ended.returncode == 0, ended.stderr
    for words in ("mpiexec -n 4 python scripts/async_sgd.py", "--straggler", "--mode"):
        assert words in ended.stdout


def test_one_process_is_told_how_to_start(root: Path) -> None:
    ended = alone(root)
    assert ended.returncode == 1
    assert ended.stderr.strip() == "start a server and its workers: mpiexec -n 4 python ..."


def test_bad_options_are_refused(root: Path) -> None:
    ended = alone(root, "--straggler", -1)
    assert ended.returncode == 2
    assert "--straggler at least 0" in ended.stderr


@pytest.mark.timeout(120)
def test_it_learns() -> None:
    """Five epochs of the digits give 0.8 to 0.97; guessing is right for one in ten."""
    found = run(4)
    assert (found["data"], found["mode"], found["updates"]) == ("digits", "asynchronous", 450)
    assert found["accuracy"] > 0.3
    assert sum(found["gradients_by_worker"]) == 450
    assert len(found["gradients_by_worker"]) == 3


@pytest.mark.timeout(240)
def test_a_straggler_holds_up_synchronous_rounds_only() -> None:
    """40 rounds wait 0.1 s each; 40 gradients come from whoever is ready."""
    options = ("--steps", 40, "--straggler", 0.1)
    held_up = run(4, *options, "--mode", "synchronous")
    assert held_up["seconds"] > 4
    assert held_up["gradients_by_worker"] == [40, 40, 40]
    assert held_up["mean_staleness"] == 0
    free = run(4, *options)
    assert free["gradients_by_worker"][0] < min(free["gradients_by_worker"][1:])
    assert free["seconds"] < held_up["seconds"]


@pytest.mark.timeout(240)
def test_the_other_modes() -> None:
    found = run(3, "--steps", 10, "--mode", "synchronous", "--backup", 1)
    assert found["mode"] == "synchronous, first 1"
    assert sum(found["gradients_by_worker"]) == 10
    found = run(3, "--steps", 10, "--mode", "bounded", "--bound", 1, "--over-staleness")
    assert found["mode"] == "bounded staleness 1"
    one, other = found["gradients_by_worker"]
    assert abs(one - other) <= 2
