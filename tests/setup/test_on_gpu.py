"""The run on a machine with GPUs, as far as it goes without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import ranks
from tools import on_gpu


def test_program_without_gpu_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table.md"
    assert on_gpu.main([str(file)], count=lambda: 0) == 2
    out = capsys.readouterr().out
    assert out.startswith("no GPU here that PyTorch ")
    assert out.count("\n") == 1
    assert not file.exists()


def test_row_states_how_a_program_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, sys; print(os.environ['SAID']); sys.exit(int(sys.argv[1]))"
    run = [sys.executable, "-c", program]
    good = on_gpu.row("good", [*run, 0], SAID="fine")
    bad = on_gpu.row("bad", [*run, 3], SAID="no such kernel")
    monkeypatch.setattr(on_gpu, "MOST_SECONDS", 0.2)
    late = on_gpu.row("late", [sys.executable, "-c", "import time; time.sleep(60)"])
    assert [one.outcome for one in (good, bad, late)] == ["passed", "failed", "not in time"]
    assert (good.said, bad.said) == ("", "no such kernel")
    shown = on_gpu.table("One GPU", [good, bad, late])
    assert "| good | passed |" in shown
    assert "**bad** said last:\n\n```\nno such kernel\n```" in shown
    assert "**good**" not in shown


def test_all_programs_and_lessons_exist(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All those that `on_gpu` names exist."""
    commands = []

    def collect(what: str, command: list, *output: Path, **variables: str) -> on_gpu.Row:
        commands.append([*map(str, command)])
        return on_gpu.Row(what, "passed", 0.0)

    assert on_gpu.ON_GPUS == ranks.ON_GPUS
    monkeypatch.setattr(on_gpu, "row", collect)
    found = on_gpu.rows(2, root)
    assert len(found) == len(commands) == 2 * len(on_gpu.CASES) + len(on_gpu.LESSONS) + 4
    for cases in on_gpu.CASES:
        assert (root / "tests" / "torch_mpi4py" / "cases" / f"{cases}.py").exists()
    for number in on_gpu.LESSONS:
        assert len(list((root / "notebooks").glob(f"lesson_{number}/{number}_*.py"))) == 1
    for script in {word for command in commands for word in command if word.endswith(".py")}:
        assert (root / script).exists(), script
