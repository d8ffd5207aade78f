"""Lesson 00 in Notebook 7, Jupyter's other page: ranks, ``%%px``, a hang and a check work there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser

from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.solution_marks import unmarked
from course_lib.teaching.workspace import make_workspace
from tests.browser.lab import Lab
from tests.browser.notebook_server import Notebooks, notebook_server
from tests.browser.test_learner import LABS_OWN, Learner
from tests.lab_server import ROOT

LESSON = "00_start_here.ipynb"
NOTEBOOK_7 = (sys.executable, "-m", "notebook")
ID = "00.neighbours"
PICTURE_OF_FAILURE = ROOT / "test-results" / "notebook_7.png"
# Of Notebook 7.6 itself: an empty notebook without any settings has it, too.
THEIR_OWN = {"TypeError: Cannot read properties of undefined (reading 'schema')"}


@pytest.mark.timeout(400)
def test_a_lesson_runs_in_notebook_7(browser: Browser, tmp_path: Path) -> None:
    make_workspace(workspace=tmp_path / "copies")
    cells = nbformat.read(tmp_path / "copies" / LESSON, as_version=4).cells
    (tmp_path / "server").mkdir()
    with notebook_server(browser, tmp_path / "server", NOTEBOOK_7, "notebooks") as notebooks:
        page = notebooks.open(LESSON, cells)
        try:
            runs_lesson_00(notebooks, cells)
        except BaseException:
            page.screenshot(path=PICTURE_OF_FAILURE)
            raise
        errors = {error.splitlines()[0] for error in notebooks.uncaught.so_far()}
        assert {error for error in errors if LABS_OWN not in error} <= THEIR_OWN


def runs_lesson_00(notebooks: Notebooks, cells: list[nbformat.NotebookNode]) -> None:
    """Do what a learner does, up to the hang."""
    assert notebooks.page.locator(".jp-NotebookTree, .jp-LabShell").count() == 0
    learner = Learner(notebooks, cells, LESSON)
    Lab(notebooks.page).kernel_is_ready()
    answer = learner.find("def neighbours")
    greeting = learner.find("I am rank")
    for cell in range(answer):
        if cells[cell].cell_type == "code" and cell != greeting:
            learner.run(cell, seconds=120)
        elif cell == greeting:
            shown = learner.run(cell, "I am rank 3 of 4")
            assert shown.split("\n") == [f"rank {r} | I am rank {r} of 4" for r in range(4)]
    check = learner.find(f'check("{ID}"')
    learner.run(answer)
    learner.run(check, f"{ID}: not attempted yet.")
    learner.try_out(answer, unmarked(exercise_cell(ID)))
    learner.run(check, f"{ID}: right.")
    waits = "Rank 3 finished without the allreduce in which ranks 0, 1 and 2 wait"
    report = learner.run(learner.find("if rank != 3:"), waits)
    assert re.search(r"^3 +finished", report, re.MULTILINE), report
    learner.try_out(answer, "cluster.stop(); print('all stopped')", "all stopped")
