"""A resumed run ends with the bits of one that never stopped; a file is whole or not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from course_lib.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from tests import ranks
from tests.training import interrupted

CASES = [
    ranks.parameter("openmpi", n, case, id=f"{n}-{case.rpartition(':')[2]}")
    for n in (1, 2, 3)
    for case in ranks.cases_of("tests.training.cases.resume", n)
]
PLACE = {"epoch": 0, "step": 0, "sampler_seed": 0}


@pytest.mark.parametrize(("mpi", "n", "case"), CASES)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)


@pytest.fixture
def parts() -> dict:
    layer = nn.Linear(2, 2)
    return {"model": layer, "optimizer": torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)}


@pytest.mark.parametrize("steps", [0, 5, 7, 12])  # the start, between epochs, within two of them
def test_resume_is_bitwise_exact(tmp_path: Path, steps: int) -> None:
    wanted = interrupted.uninterrupted()
    interrupted.save_after(steps, tmp_path / "run.pt")
    assert interrupted.resume(tmp_path / "run.pt") == wanted


def test_resume_in_another_process(tmp_path: Path, root: Path) -> None:
    interrupted.save_after(7, tmp_path / "run.pt")
    program = (
        "import sys, pathlib; from tests.training import interrupted; "
        "print(interrupted.resume(pathlib.Path(sys.argv[1])))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "run.pt"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ended.stdout.strip() == interrupted.uninterrupted()


def test_failed_write_keeps_the_older_file(tmp_path: Path, parts: dict) -> None:
    path = tmp_path / "run.pt"
    save_checkpoint(path, **parts, **PLACE)
    older = path.read_bytes()
    with pytest.raises(CheckpointError, match="could not write"):
        save_checkpoint(path, **parts, **PLACE, extra={"no pickle": lambda: 0})
    assert path.read_bytes() == older
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_missing_folder_raises(tmp_path: Path, parts: dict) -> None:
    with pytest.raises(CheckpointError, match="FileNotFoundError"):
        save_checkpoint(tmp_path / "missing" / "run.pt", **parts, **PLACE)
    with pytest.raises(CheckpointError, match="could not read"):
        load_checkpoint(tmp_path / "run.pt", **parts)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_damaged_file_raises_and_changes_nothing(tmp_path: Path, parts: dict, share: float) -> None:
    path = tmp_path / "run.pt"
    save_checkpoint(path, **parts, **PLACE)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    before = parts["model"].weight.clone()
    with torch.no_grad():
        parts["model"].weight += 1
    with pytest.raises(CheckpointError, match="could not read"):
        load_checkpoint(path, **parts)
    assert torch.equal(parts["model"].weight, before + 1)


def test_file_containing_code_raises(tmp_path: Path, parts: dict) -> None:
    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    torch.save({"format": 2, "model": Evil()}, tmp_path / "run.pt")
    with pytest.raises(CheckpointError, match="could not read"):
        load_checkpoint(tmp_path / "run.pt", **parts)


def test_mismatched_checkpoint_raises(tmp_path: Path, parts: dict) -> None:
    path = tmp_path / "run.pt"
    save_checkpoint(path, **parts, **PLACE)
    other = nn.Linear(3, 2)
    with pytest.raises(CheckpointError, match="does not fit"):
        load_checkpoint(path, model=other, optimizer=torch.optim.SGD(other.parameters(), lr=1))
    scheduler = torch.optim.lr_scheduler.ConstantLR(parts["optimizer"])
    with pytest.raises(CheckpointError, match="holds no scheduler"):
        load_checkpoint(path, **parts, scheduler=scheduler)
    save_checkpoint(path, **parts, scheduler=scheduler, **PLACE)
    with pytest.raises(CheckpointError, match="holds a scheduler"):
        load_checkpoint(path, **parts)
    torch.save({"format": 7}, path)
    with pytest.raises(CheckpointError, match="format 7, not 2"):
        load_checkpoint(path, **parts)
