"""The command ``rank-by-rank``: its parts, a learner's folder, lessons that it executes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_lib import places
from course_lib.command import __main__ as command
from course_lib.command import folder, lab, run
from course_lib.places import NOTEBOOKS, SCRIPTS
from course_lib.teaching import lessons


def notebook_of(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])


def test_each_subcommand_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    usage = capsys.readouterr().out
    assert all(f"  {part} " in usage for part in command.PARTS)
    for part in command.PARTS:
        with contextlib.suppress(SystemExit):  # as argparse ends
            assert command.main([part, "--help"]) == 0
        assert f"rank-by-rank {part}" in capsys.readouterr().out


@pytest.mark.parametrize("given", [[], ["lba"]])
def test_unknown_subcommand_is_rejected(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(given) == 2
    said = capsys.readouterr().err
    assert ("there is no 'lba'" if given else "which part?") in said
    assert "  doctor " in said


def test_command_is_installed() -> None:
    program = Path(sys.executable).with_name("rank-by-rank")
    said = subprocess.check_output([sys.executable, program, "--version"], text=True, timeout=60)
    assert said == "rank-by-rank 0.1.0\n"


def test_workspace_has_copies_links_and_programs(tmp_path: Path) -> None:
    course = tmp_path / "my course"
    said = folder.prepare(course)
    assert len(said) == len(lessons.notebooks())
    assert (course / "notebooks" / "glossary.md").samefile(NOTEBOOKS / "glossary.md")
    copies = {path.name for path in (course / "scripts").glob("[a-z]*")}
    assert copies == {path.name for path in SCRIPTS.glob("*.*")}

    # What the learner has changed stays, the rest is brought up to date, the link made anew.
    changed, kept = course / "scripts" / "ddp.py", course / "scripts" / "fsdp.py"
    changed.write_text("mine")
    kept.unlink()
    (course / "notebooks").unlink()
    (course / "notebooks").symlink_to(tmp_path / "an environment that is gone")
    assert folder.prepare(course) == []
    assert changed.read_text() == "mine"
    assert kept.read_bytes() == (SCRIPTS / "fsdp.py").read_bytes()
    assert (course / "notebooks").resolve() == NOTEBOOKS


def test_folder_with_other_files_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "mine.ipynb").write_text("{}")
    assert lab.main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path} cannot be prepared: something else is at" in said
    assert [path.name for path in (tmp_path / "notebooks").iterdir()] == ["mine.ipynb"]


def test_enclosing_workspace_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an installed course; in a checkout, it is the checkout."""
    assert folder.chosen(None) == places.CHECKOUT
    monkeypatch.setattr(folder, "CHECKOUT", None)
    monkeypatch.chdir(tmp_path)
    assert folder.chosen(None) == tmp_path / "rank-by-rank"
    folder.prepare(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a" / "workspace")
    assert folder.chosen(None) == tmp_path / "a"
    assert folder.chosen("~/b") == Path.home() / "b"


def test_arguments_of_jupyterlab_are_not_given_twice(tmp_path: Path) -> None:
    ours = lab.settings(tmp_path, ["--ip=0.0.0.0", "--port", "8899"])
    assert f"--ServerApp.root_dir={tmp_path}" in ours
    assert not [argument for argument in ours if argument.startswith("--ip")]


def test_lessons_are_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "lessons", tmp_path / "out"
    source.mkdir()
    nbformat.write(notebook_of("6 * 7"), source / "01_right.ipynb")
    nbformat.write(notebook_of("1 / 0"), source / "02_wrong.ipynb")
    monkeypatch.setattr(lessons, "NOTEBOOKS", source)
    monkeypatch.chdir(tmp_path)
    assert run.main(["01", "--out", str(out)]) == 0
    assert "01_right: executed in " in capsys.readouterr().out
    (cell,) = nbformat.read(out / "01_right.ipynb", as_version=4).cells
    assert cell.outputs[0]["data"]["text/plain"] == "42"
    assert run.main(["all"]) == 1
    said = capsys.readouterr()
    assert "01_right: executed in" in said.out
    assert "ZeroDivisionError" in said.err
    assert sorted(os.listdir(tmp_path)) == ["lessons", "out"]
    with pytest.raises(SystemExit):
        run.main(["03"])
    assert "there is no lesson 03; the lessons are 01, 02" in capsys.readouterr().err
