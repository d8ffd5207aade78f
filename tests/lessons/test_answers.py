"""Every worked solution is right, every usual wrong answer is recognised by its name."""

from __future__ import annotations

import importlib
import re

import pytest

from course_lib.teaching.catalogue import all_exercises, find
from course_lib.teaching.checking import check
from course_lib.teaching.lessons import NOTEBOOKS, exercise_cell
from course_lib.teaching.solution_marks import blanked, unmarked


def wrong_answers() -> dict[str, dict[str, str]]:
    """Return all wrong answers: exercise id -> mistake -> code."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(NOTEBOOKS.glob("lesson_*/wrong_answers.py")):
        module = importlib.import_module(f"notebooks.{path.parent.name}.wrong_answers")
        found.update(module.WRONG_ANSWERS)
    return found


WRONG_ANSWERS = wrong_answers()


def told(cluster, capsys, id: str, code: str) -> str:
    """Return what ``check`` prints when the learner's cell holds ``code``."""
    code = code.removeprefix("%%px\n")
    capsys.readouterr()
    exercise = find(id)
    if exercise.where == "engines":
        cluster.view.execute(code, silent=True)
        check(id)
    else:
        cell: dict = {}
        exec(compile(code, "<cell>", "exec"), cell)
        check(id, cell[exercise.function])
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("id", all_exercises())
def test_the_solution_is_right(cluster, capsys, id: str) -> None:
    said = told(cluster, capsys, id, unmarked(exercise_cell(id)))
    assert said.startswith(f"{id}: right."), said


@pytest.mark.parametrize("id", all_exercises())
def test_the_stub_is_not_attempted_yet(cluster, capsys, id: str) -> None:
    assert told(cluster, capsys, id, blanked(exercise_cell(id))) == f"{id}: not attempted yet."


@pytest.mark.parametrize(
    ("id", "mistake"), [(id, name) for id, names in WRONG_ANSWERS.items() for name in names]
)
def test_a_wrong_answer_is_recognised(cluster, capsys, id: str, mistake: str) -> None:
    said = told(cluster, capsys, id, WRONG_ANSWERS[id][mistake])
    assert said.startswith(f"{id}: not yet: "), said
    assert re.search(r"\(([a-z0-9-]+)\)$", said.splitlines()[0]).group(1) == mistake, said


def test_every_exercise_has_wrong_answers() -> None:
    assert {id: len(WRONG_ANSWERS.get(id, ())) for id in all_exercises()} == {
        id: len(names) for id, names in WRONG_ANSWERS.items()
    }
    assert all(len(names) >= 3 for names in WRONG_ANSWERS.values())
