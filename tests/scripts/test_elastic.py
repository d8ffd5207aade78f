"""A run that died and was started again by torchrun ends with the bits of one that did not."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from torch_mpi4py import launch

LIMIT = 150


def train(root: Path, *options: object) -> dict:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = launch.environment() | {"CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [
            sys.executable,
            *torchrun,
            "--max-restarts",
            "1",
            "scripts/elastic.py",
            *map(str, options),
        ],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.strip().splitlines()[-1])


@pytest.mark.timeout(320)
def test_training_resumes_from_checkpoint_after_a_death(root: Path, tmp_path: Path) -> None:
    whole = train(root, tmp_path / "whole.pt", "--steps", 15)
    died = train(root, tmp_path / "died.pt", "--steps", 15, "--die-at", 12)
    assert (whole["restarts"], whole["began_with_step"]) == (0, 0)
    assert (died["restarts"], died["began_with_step"]) == (1, 10)
    assert died["checksum"] == whole["checksum"]


def test_notebook_can_run_functions_of_elastic(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As lesson 12 does, where the programs' folder is not on the path."""
    monkeypatch.delitem(sys.modules, "reporting", raising=False)  # another test's
    assert str(root / "scripts") not in sys.path
    assert callable(runpy.run_path(str(root / "scripts" / "elastic.py"))["train"])
