"""What AGENTS.md tells an assistant is there: paths, functions, targets and tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course_lib import cluster
from course_lib.teaching import workspace
from course_lib.teaching.catalogue import all_exercises
from course_lib.teaching.lessons import sources

LONGEST = 60  # lines: an assistant reads it before every task


@pytest.fixture(params=["a contributor's", "a learner's"])
def text(request: pytest.FixtureRequest, root: Path) -> str:
    """Return the text for an assistant that helps a contributor, or a learner."""
    path = root / "AGENTS.md" if request.param == "a contributor's" else workspace.TUTOR
    return path.read_text()


def quoted(text: str) -> list[str]:
    """Return what a text quotes as code, in a line or as a block of lines."""
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text) + "\n".join(blocks).splitlines()


def test_paths_exist(root: Path, text: str) -> None:
    paths = {
        word.replace("NN_name", "*_*").replace("_NN", "_*").rstrip("/")
        for code in quoted(text)
        for word in code.split()
        if re.fullmatch(r"[\w.*/]+", word) and ("/" in word or re.search(r"\.(md|py)$", word))
    }
    assert len(paths) > 3
    rooms = (root, *root.glob("notebooks/lesson_*"))
    made = {"workspace", "cases", ".venv/bin/python"}  # by make, and in several folders
    missing = [path for path in paths - made if not any([*room.glob(path)] for room in rooms)]
    assert not missing


def test_the_functions_for_learners_exist() -> None:
    lesson = sources()[1].read_text()  # 01: it imports what all lessons do
    for code in quoted(workspace.TUTOR.read_text()):
        for name in re.findall(r"^(\w+)\(", code):
            assert re.search(rf"^# .*\b{name}\(|import .*\b{name}\b", lesson, re.MULTILINE), name
        for name in re.findall(r"^cluster\.(\w+)\(", code):
            assert hasattr(cluster.Cluster, name), name
        for id in re.findall(r'\("(\w+\.\w+)"\)', code):
            assert id in all_exercises(), id


def test_make_targets_exist(root: Path, text: str) -> None:
    targets = re.findall(r"^([\w-]+):", (root / "Makefile").read_text(), re.MULTILINE)
    asked = {name for code in quoted(text) for name in re.findall(r"\bmake ([\w-]+)", code)}
    assert asked <= set(targets)


def test_file_is_short(text: str) -> None:
    assert len(text.splitlines()) <= LONGEST


def test_layers_equal_those_in_contributing(root: Path) -> None:
    (layers,) = re.findall(r"`(torch_mpi4py +< .*)`", (root / "AGENTS.md").read_text())
    contributing = (root / "CONTRIBUTING.md").read_text()
    assert layers.split() == next(
        line.split() for line in contributing.splitlines() if line.startswith("torch_mpi4py  <")
    )


@pytest.mark.parametrize("name", ["CLAUDE.md", "GEMINI.md"])
def test_files_of_other_assistants_match_the_workspace(root: Path, name: str) -> None:
    assert (root / name).read_text() == workspace.INCLUDES[name]
