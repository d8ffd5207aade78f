"""A learner works on lessons 01 and 05 in a browser: errs, takes hints, stops, restarts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, expect

from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.solution_marks import unmarked
from course_lib.teaching.workspace import make_workspace
from tests.browser.lab import Lab
from tests.browser.notebook_server import Notebooks
from tests.lab_server import wait_until

LESSON = "01_send_and_receive.ipynb"
ID = "01.ring_pass"
WRONG = """%%px
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    token = [*comm.recv(source=left), comm.rank]
    comm.send(token, dest=right)
    return token
"""
TYPING_ERROR = WRONG.replace("comm.recv(source=left)", "comm.recv(sauce=left)")
RIGHT = """%%px
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank > 0:
        token = comm.recv(source=left)
    token = [*token, comm.rank]
    comm.send(token, dest=right)
    return comm.recv(source=left) if comm.rank == 0 else token
"""
LESSON_05 = "05_synchronous_sgd.ipynb"
FORGETS_FROZEN = """%%px
def sync_gradients(model, group):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
"""
NEVER_ENDS = """%%px
def sync_gradients(model, group):
    while True:
        dist.all_reduce(torch.ones(1), group=group)
"""
STOPS = "%%px\nif rank == 2: breakpoint()\nprint(comm.allreduce(rank))"
HANGS = "%%px --limit 2\nkept = rank\nif rank != 3:\n    comm.allreduce(1)"
DIES = """%%px
import os, signal
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
comm.allreduce(1)
"""
ENDLESS = "%%px\nkept = rank\nwhile True:\n    pass"
# JupyterLab 4.6 asks the kernel for a thread for widgets. If it drops the kernel before the answer
# comes, as in a restart or when the page is left, it throws this error and never catches it.
LABS_OWN = "Per comm-target subshell creation failed: Error: Canceled future"


class Learner:
    """Who types into cells of an open notebook, runs them, and reads what they print."""

    def __init__(
        self, notebooks: Notebooks, cells: list[nbformat.NotebookNode], lesson: str
    ) -> None:
        self.notebooks, self.page = notebooks, notebooks.page
        self.cells, self.lesson = cells, lesson

    def find(self, what: str) -> int:
        """Return the number of the first code cell that contains ``what``."""
        return next(
            i for i, c in enumerate(self.cells) if c.cell_type == "code" and what in c.source
        )

    def cell(self, cell: int) -> Locator:
        """Return a cell by its number."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(cell)

    def write(self, cell: int, source: str) -> None:
        """Type ``source`` over what a cell holds."""
        self._enter(cell).press("ControlOrMeta+a")
        self.page.keyboard.insert_text(source)

    def start(self, cell: int) -> None:
        """Press Shift and Enter in a cell and see it begin."""
        # After a restart the number may be the same as before, and the star between them brief.
        # But each time the prompt is written its text is a new node.
        prompt = self._prompt(cell).element_handle()
        before = prompt.evaluate_handle("prompt => prompt.firstChild")
        self._enter(cell).press("Shift+Enter")
        self.page.wait_for_function(
            "([prompt, before]) => prompt.firstChild !== before",
            arg=[prompt, before],
            timeout=30_000,
        )

    def shows(self, cell: int, what: str) -> None:
        """Wait until a cell that runs shows a text."""
        expect(self._output(cell)).to_contain_text(what, timeout=30_000)

    def ends(self, cell: int, showing: str, seconds: float = 60) -> str:
        """Wait until a cell has ended and shows a text; return all that it shows."""
        expect(self._prompt(cell)).to_have_text(re.compile(r"\[\d+\]"), timeout=1000 * seconds)
        # Outputs are drawn when there is a moment for it.
        expect(self._output(cell)).to_contain_text(showing, timeout=20_000)
        return self._output(cell).inner_text().strip()

    def run(self, cell: int, showing: str = "", seconds: float = 60) -> str:
        """Run a cell to its end and return what it shows, ``showing`` among it."""
        self.start(cell)
        return self.ends(cell, showing, seconds)

    def try_out(self, cell: int, source: str, showing: str = "") -> str:
        """Type, run, and return what is shown."""
        self.write(cell, source)
        return self.run(cell, showing)

    def types(self, line: str) -> None:
        """Type a line where a cell that runs asks for one."""
        # What was answered stays hidden for a moment.
        asked = self.page.locator(
            ".jp-OutputArea-stdin-item:not(.jp-OutputArea-stdin-hiding) input.jp-Stdin-input"
        )
        asked.fill(line, timeout=30_000)
        asked.press("Enter")

    def presses_stop(self) -> None:
        """Press the stop button."""
        self.page.locator('[data-jp-item-name="interrupt"] jp-button').click()

    def restarts(self) -> None:
        """Restart the kernel by the menu, and wait until the new one is there alone."""
        before, lab = self.notebooks.kernels(), Lab(self.page)
        lab.menu("Kernel", "kernelmenu:restart")
        lab.accepts()
        wait_until(lambda: self.notebooks.kernels() - before, 60, "a new kernel")
        wait_until(lambda: before - self.notebooks.kernels(), 60, "an end of the old one")
        lab.kernel_is_ready()

    def saves(self, what: str) -> None:
        """Save by the menu and wait until the file holds ``what``."""
        Lab(self.page).menu("File", "docmanager:save")
        written = json.dumps(what)[1:-1]
        wait_until(lambda: written in self.notebooks.saved(self.lesson), 30, "a saved notebook")

    def errors(self) -> str:
        """Return the uncaught exceptions of the page's scripts, except JupyterLab's own."""
        return "\n".join(e for e in self.notebooks.uncaught.so_far() if LABS_OWN not in e)

    def _prompt(self, cell: int) -> Locator:
        return self.cell(cell).locator(".jp-InputPrompt")

    def _output(self, cell: int) -> Locator:
        return self.cell(cell).locator(".jp-Cell-outputArea")

    def _enter(self, cell: int) -> Locator:
        editor = self.cell(cell).locator(".cm-content")
        editor.locator("> *").first.click()
        return editor


def opens(notebooks: Notebooks, folder: Path, lesson: str) -> Learner:
    """Open a learner's own copy of a lesson and wait for its kernel."""
    make_workspace(workspace=folder)
    cells = nbformat.read(folder / lesson, as_version=4).cells
    notebooks.open(lesson, cells)
    learner = Learner(notebooks, cells, lesson)
    Lab(learner.page).kernel_is_ready()
    return learner


@pytest.mark.timeout(600)
def test_wrong_answers_get_feedback_and_hints(notebooks, tmp_path: Path) -> None:
    learner = opens(notebooks, tmp_path, LESSON)
    imports, start = learner.find("import start_cluster"), learner.find("start_cluster(n=")
    answer, check = learner.find("def ring_pass"), learner.find(f'check("{ID}"')
    spare = learner.find("role =")

    learner.run(imports)
    learner.run(start, "4 ranks ready", 120)
    learner.run(check, f"{ID}: not attempted yet.")

    learner.try_out(answer, WRONG)
    learner.start(check)
    learner.shows(check, "checking; your function is stopped after")
    assert "checking; your function" not in learner.ends(check, "(everyone-receives-first)")
    learner.try_out(answer, TYPING_ERROR)
    assert "TypeError" in learner.run(check, "comm.recv(sauce=left)")
    learner.try_out(spare, f'hint("{ID}")', "Hint 1 of 3")
    learner.run(spare, "Hint 2 of 3")
    learner.try_out(answer, RIGHT)
    learner.run(check, f"{ID}: right.")

    learner.write(spare, ENDLESS)
    learner.start(spare)
    learner.presses_stop()
    learner.ends(spare, "KeyboardInterrupt", 30)
    learner.try_out(spare, "print(cluster.view['kept'])", "[0, 1, 2, 3]")

    learner.restarts()
    learner.run(imports)
    learner.run(start, "4 ranks", 120)
    learner.try_out(spare, "print(cluster.view['kept'])", "[0, 1, 2, 3]")
    learner.run(check, f"{ID}: right.")
    learner.try_out(spare, "cluster.stop(); print('all stopped')", "all stopped")
    assert learner.errors() == ""


@pytest.mark.timeout(400)
def test_learner_sees_hang_and_death_and_keeps_work(notebooks, tmp_path: Path) -> None:
    learner = opens(notebooks, tmp_path, LESSON)
    imports, start = learner.find("import start_cluster"), learner.find("start_cluster(n=")
    answer, check = learner.find("def ring_pass"), learner.find(f'check("{ID}"')
    spare = learner.find("role =")

    learner.run(imports)
    learner.run(start, "4 ranks ready", 120)
    learner.write(spare, STOPS)
    learner.start(spare)
    learner.types("p rank * 100")
    learner.shows(spare, "200")
    learner.types("c")
    assert "2     at a breakpoint" in learner.ends(spare, "rank 3 | 6")
    report = learner.try_out(spare, HANGS, "HangError")
    assert "Rank 3 finished without the allreduce in which ranks 0, 1 and 2 wait" in report
    learner.try_out(spare, DIES, "RankFailedError")
    learner.try_out(spare, "cluster.shrink()\nprint(cluster.view['kept'])", "[0, 1, 3]")
    learner.try_out(answer, RIGHT)
    learner.run(check, f"{ID}: right.")  # three ranks make a ring, too
    learner.try_out(spare, "cluster.restart()\nprint(cluster.view['rank'])", "[0, 1, 2, 3]")

    learner.saves("token = [*token, comm.rank]")
    notebooks.reopen(LESSON, len(learner.cells))
    Lab(learner.page).kernel_is_ready()
    learner.run(imports)
    learner.run(start, "4 ranks", 120)
    learner.run(answer)
    learner.run(check, f"{ID}: right.")
    learner.try_out(spare, "cluster.stop(); print('all stopped')", "all stopped")
    assert learner.errors() == ""


@pytest.mark.timeout(400)
def test_learner_trains_and_continues_after_restart(notebooks, tmp_path: Path) -> None:
    """The first steps of lesson 05, and its first exercise: errors in torch, a check stopped."""
    learner = opens(notebooks, tmp_path, LESSON_05)
    imports, start = learner.find("import start_cluster"), learner.find("start_cluster(n=")
    first_guess, guess_is_compared = learner.find("prediction ="), learner.find("compare(")
    answer, check = learner.find("def sync_gradients"), learner.find('check("05.sync_gradients"')

    learner.run(imports)
    learner.run(start, "4 ranks ready", 120)
    for cell in range(start + 1, guess_is_compared):
        if cell == first_guess:
            learner.try_out(cell, "prediction = 10")
        elif learner.cells[cell].cell_type == "code":
            learner.run(cell)
    learner.run(guess_is_compared, "You predicted 10. Measured here: 30.")

    learner.run(answer)
    learner.run(check, "05.sync_gradients: not attempted yet.")
    learner.try_out(answer, FORGETS_FROZEN)
    found = learner.run(check, "(stumbles-over-frozen)")
    assert "`dist.all_reduce(parameter.grad, group=group)`" in found
    learner.try_out(answer, NEVER_ENDS)
    learner.start(check)
    learner.shows(check, "checking; your function is stopped after")
    learner.presses_stop()
    learner.ends(check, "the check of 05.sync_gradients was interrupted on all ranks")

    learner.restarts()
    learner.run(imports)
    learner.run(start, "4 ranks", 120)
    learner.try_out(answer, unmarked(exercise_cell("05.sync_gradients")))
    learner.run(check, "05.sync_gradients: right.")
    learner.try_out(guess_is_compared, "progress()", "1 of ")
    learner.try_out(guess_is_compared, "cluster.stop(); print('all stopped')", "all stopped")
    assert learner.errors() == ""
