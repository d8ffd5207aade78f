"""Lesson 00 in Notebook 7, Jupyter's other page: ranks, ``%%px``, a hang and a check work there."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest

from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.solution_marks import unmarked
from course_lib.teaching.workspace import make_workspace
from tests.browser.notebook_server import notebook_server
from tests.browser.test_learner import Learner

LESSON = "00_start_here.ipynb"
NOTEBOOK_7 = (sys.executable, "-m", "notebook")
ID = "00.neighbours"
# Of Notebook 7.6 itself: an empty notebook without any settings has it, too.
THEIR_OWN = {"TypeError: Cannot read properties of undefined (reading 'schema')"}


@pytest.mark.timeout(400)
def test_a_lesson_runs_in_notebook_7(tmp_path: Path) -> None:
    make_workspace(workspace=tmp_path / "copies")
    cells = nbformat.read(tmp_path / "copies" / LESSON, as_version=4).cells
    (tmp_path / "server").mkdir()
    with notebook_server(tmp_path / "server", NOTEBOOK_7, "notebooks") as notebooks:
        page = notebooks.open(LESSON, cells)
        assert page.evaluate("document.querySelector('.jp-NotebookTree, .jp-LabShell') === null")
        learner = Learner(page, cells, LESSON)
        learner.kernel_is_ready()
        answer = learner.find("def neighbours")
        for cell in range(answer):
            if cells[cell].cell_type == "code":
                shown = learner.run(cell, seconds=120)
                if "I am rank" in cells[cell].source:
                    assert [f"rank {r} | I am rank {r} of 4" for r in range(4)] == shown.split("\n")
        check = learner.find(f'check("{ID}"')
        learner.run(answer)
        learner.run(check, f"{ID}: not attempted yet.")
        learner.try_out(answer, unmarked(exercise_cell(ID)))
        learner.run(check, f"{ID}: right.")
        learner.run(learner.find("if rank != 3:"), "3     finished")
        learner.try_out(answer, "cluster.stop(); print('all stopped')", "all stopped")
        assert {error.splitlines()[0] for error in page.errors} <= THEIR_OWN
