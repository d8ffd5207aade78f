"""The lesson that docs/new_lesson.md writes as an example keeps the rules, and its check works."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from course_lib.teaching import catalogue, lessons, mistakes
from course_lib.teaching.checking import check
from course_lib.teaching.solution_marks import blanked, unmarked
from tools.lint_lessons import lint

ROOMS = "rooms_of_our_own"
ID = "99.mean"


@pytest.fixture(scope="module")
def room(root: Path, tmp_path_factory):
    """The room of lesson 99, in a folder of its own, known to the catalogue."""
    page = (root / "docs" / "new_lesson.md").read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("example") / ROOMS / "lesson_99"
    folder.mkdir(parents=True)
    # A paragraph that begins with a heading and a file's name, and the code below it.
    blocks = re.findall(
        r"^\*\*[^`\n]*`(\w+\.(?:py|md))`[^\n]*\n\n(````?)\w+\n(.*?)^\2\n", page, re.M | re.S
    )
    for name, _, code in blocks:
        (folder / name).write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder.parent.parent))
    catalogue.PACKAGES.append(ROOMS)
    yield folder
    catalogue.PACKAGES.remove(ROOMS)
    sys.path.remove(str(folder.parent.parent))


@pytest.fixture
def cell(room: Path, monkeypatch) -> str:
    monkeypatch.setattr(lessons, "NOTEBOOKS", room.parent)
    return lessons.exercise_cell(ID).removeprefix("%%px\n")


def test_example_lesson_has_all_files(room: Path) -> None:
    assert sorted(path.name for path in room.iterdir()) == [
        "99_means.py",
        "exercises.py",
        "figures.py",
        "mistakes.md",
    ]


def test_lesson_text_follows_the_rules(room: Path) -> None:
    found = [str(problem) for problem in lint(room / "99_means.py")]
    assert found == ["99_means.py: 1 exercises; there have to be 3 to 6"], "one is enough to show"


def test_figure_has_alt_text(room: Path) -> None:
    figure = importlib.import_module(f"{ROOMS}.lesson_99.figures").means([0, 1, 2, 3])
    assert figure.alt == "A bar for each of 4 ranks, and a line at their mean."


def test_check_accepts_right_and_rejects_wrong_answers(
    room: Path, cell: str, cluster, capsys
) -> None:
    path = str(room.parent.parent)
    cluster.view.execute(f"import sys; sys.path.insert(0, {path!r})", silent=True)
    found = mistakes.read(room / "mistakes.md")

    def told(code: str) -> str:
        capsys.readouterr()
        cluster.view.execute(code, silent=True)
        check(ID)
        return capsys.readouterr().out.strip()

    assert told(unmarked(cell)) == (
        f"{ID}: right. Every rank has the mean of 2 numbers. Some mistakes, such as a message in "
        "the wrong direction, do not show on 2 ranks: to be sure, start more with "
        "start_cluster(4, replace=True), and check it there too."
    )
    assert told(blanked(cell)) == f"{ID}: not attempted yet."
    assert len(found.wrong[ID]) >= 3
    for mistake, code in found.wrong[ID].items():
        assert told(code).endswith(f"({mistake})")
    for code in found.right[ID].values():
        assert told(code).startswith(f"{ID}: right.")
