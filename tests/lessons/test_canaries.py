"""A run of nbval fails for every kind of cell that has to make it fail, and for no other.

One notebook holds them all, each in a cell of its own, so that they share a kernel and a cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.lab_server import wait_until
from tests.lessons.nbval import Run, run_nbval

START = "from course_lib.cluster import start_cluster\n\ncluster = start_cluster(n=2)"


def printed(text: str, name: str = "stdout"):
    return [new_output("stream", name=name, text=text)]


def raised(ename: str, evalue: str):
    return [new_output("error", ename=ename, evalue=evalue, traceback=[])]


IGNORE, RAISES = "nbval-ignore-output", "raises-exception"
ZERO = raised("ZeroDivisionError", "division by zero")
ONE_RANK_RAISES = "%%px\nif rank == 1:\n    raise ValueError('a canary')"

# name -> (code, stored outputs, tags, what the failure says; None if the cell has to pass)
CELLS = {
    "start": (START, [], [IGNORE], None),
    "ranks print": ("%%px\nprint(10 * rank)", printed("rank 0 | 0\nrank 1 | 10\n"), [], None),
    "an expected error": ("1 / 0", ZERO, [RAISES], None),
    "an engine raises": (ONE_RANK_RAISES, [], [IGNORE], "caused an exception"),
    "an engine raises a child": ("%px assert rank == 0", [], [IGNORE], "caused an exception"),
    "a comment above a magic": ("# twice\n%%px\n1 / 0", [], [IGNORE], "the first line of its cell"),
    "a magic nobody knows": ("%pxx 1 / 0", [], [IGNORE], "did not know what to do"),
    "a wrong stored output": ("print(2 * 3)", printed("5\n"), [], "outputs differ"),
    "a wrong output of a rank": (
        "%%px\nprint(rank)",
        printed("rank 0 | 0\nrank 1 | 7\n"),
        [],
        "outputs differ",
    ),
    "no error where one is expected": ("1 / 1", [], [RAISES, IGNORE], "did not raise"),
    "another error than the stored one": ("int('a')", ZERO, [RAISES], "outputs differ"),
    "never run": ("print(1)", None, [], "never run this cell"),
    "ranks print at the end": ("%%px\nprint(rank)", printed("rank 0 | 0\nrank 1 | 1\n"), [], None),
    # Last, as ranks drop what was sent to them before such an error was noticed.
    "not waited for": ("%%px --noblock\n1 / 0", [], [IGNORE], "without waiting"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the notebook of canaries once."""
    folder = tmp_path_factory.mktemp("canaries")
    notebook = new_notebook()
    for number, (code, outputs, tags, _) in enumerate(CELLS.values(), 1):
        never_run = outputs is None
        cell = new_code_cell(code, outputs=outputs or [], metadata={"tags": tags})
        cell.execution_count = None if never_run else number
        notebook.cells.append(cell)
    path: Path = folder / "canaries.ipynb"
    nbformat.write(notebook, path)
    return run_nbval(path, folder)


@pytest.mark.timeout(600)
def test_canaries_make_the_run_fail(run: Run) -> None:
    assert not run.passed
    assert len(run.cells) == len(CELLS), run.output


@pytest.mark.timeout(600)  # the first one waits for the run
@pytest.mark.parametrize("name", CELLS)
def test_each_canary_cell_has_its_expected_outcome(run: Run, name: str) -> None:
    outcome = run.cells[list(CELLS).index(name)]
    expected = CELLS[name][3]
    if expected is None:
        assert outcome == "passed", run.output
    else:
        assert expected in outcome


@pytest.mark.timeout(300)
def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    note, path = tmp_path / "kernel", tmp_path / "sleeps.ipynb"
    code = (
        f"import os, time\nopen({str(note)!r}, 'x').write(f'{{os.getpid()}}\\n')\ntime.sleep(200)"
    )
    nbformat.write(new_notebook(cells=[new_code_cell(code)]), path)
    call = f"from tests.lessons.nbval import *; run_nbval(*map(Path, {[str(path), str(tmp_path)]}))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    tests = subprocess.Popen([sys.executable, "-c", call], env=environment)
    try:
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"), 120, "a kernel")
        kernel = psutil.Process(int(note.read_text()))
        started = [kernel, kernel.parent()]
    finally:
        tests.kill()
        tests.wait(20)
    assert psutil.wait_procs(started, timeout=60)[1] == []
