"""Every lesson runs: as it is shown, with its solutions, and as learners get it, without them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.teaching.catalogue import all_exercises
from course_lib.teaching.lessons import number, read_source, sources
from course_lib.teaching.workspace import make_workspace
from tests.lessons.nbval import run_nbval
from tools.build_notebooks import execute, in_step, problems, target
from tools.lint_lessons import lint

SOURCES = sources()

# In these, cells measure and compare times: nothing else may keep the machine busy.
TIMED = ("03", "06", "08", "09", "10")

# Without solutions every other cell does the same (test_answers.py shows that none needs them), so
# four lessons are executed as learners get them, and lesson 00 in a browser: tests/browser. In 10b
# and 10c cells in the notebook and on the ranks go on with the learner's functions.
BLANKED = ("01", "07", "10b", "10c")

each_lesson = pytest.mark.parametrize("source", SOURCES, ids=[path.stem for path in SOURCES])
each_lesson_timed_ones_alone = pytest.mark.parametrize(
    "source",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.alone] * (number(path) in TIMED))
        for path in SOURCES
    ],
)


def exercises_of(source: Path) -> list[str]:
    return [id for id in all_exercises() if id.startswith(f"{number(source)}.")]


def checks(notebook) -> dict[str, str]:
    """Return what each check printed, by the exercise that its cell follows."""
    said, exercise = {}, None
    for cell in notebook.cells:
        if "check" in cell.metadata.get("tags", ()):
            said[exercise] = "".join(output.get("text", "") for output in cell.outputs).strip()
        exercise = cell.metadata.get("exercise", exercise)
    return said


def test_there_are_lessons_with_exercises() -> None:
    assert SOURCES
    assert all(len(exercises_of(source)) >= 3 for source in SOURCES)


@each_lesson
def test_source_follows_the_rules(source: Path) -> None:
    assert [str(problem) for problem in lint(source) if not problem.warning] == []


@each_lesson
def test_source_and_notebook_are_in_step(source: Path) -> None:
    assert in_step(source), "run make notebooks"
    built = nbformat.read(target(source), as_version=4)
    fresh = read_source(source)
    assert [(c.id, c.cell_type, c.source, c.metadata) for c in built.cells] == [
        (c.id, c.cell_type, c.source, c.metadata) for c in fresh.cells
    ]


@each_lesson
def test_stored_outputs_contain_no_failure(source: Path) -> None:
    notebook = nbformat.read(target(source), as_version=4)
    assert problems(notebook) == []
    said = checks(notebook)
    assert sorted(said) == sorted(exercises_of(source))
    assert all(text.startswith(f"{id}: right.") for id, text in said.items())


@pytest.mark.timeout(600)
@each_lesson_timed_ones_alone
def test_lesson_prints_its_stored_outputs(source: Path, tmp_path: Path) -> None:
    run = run_nbval(target(source), tmp_path)
    assert run.passed, run.output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lesson", BLANKED)
def test_the_blanked_lesson_runs_to_its_end(lesson: str, tmp_path: Path) -> None:
    (source,) = (path for path in SOURCES if number(path) == lesson)
    make_workspace(workspace=tmp_path)
    notebook = nbformat.read(tmp_path / target(source).name, as_version=4)
    assert "BEGIN SOLUTION" not in str(notebook)
    execute(notebook, tmp_path, cell_seconds=300)
    assert checks(notebook) == {id: f"{id}: not attempted yet." for id in exercises_of(source)}
    # A check that was right would not have been blanked: all else has to be as in the lesson.
    found = [p for p in problems(notebook) if "the worked solution is not right" not in p]
    assert found == []
