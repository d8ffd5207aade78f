"""A cell that nbval lets pass although it tells nothing has to fail.

A plugin for the runs of nbval (``-p tests.lessons.nbval_guard``). By itself nbval passes a cell
that was expected to raise and did not, if its output is ignored; a cell whose magic stands below
a comment, so that nothing of it runs; and a cell that was never executed, whatever it prints.
A run also ends with the process that started it.
"""

from __future__ import annotations

import os

import pytest
from ipyranks.engine_exit import end_with_parent

from tools.lint_lessons import code_problems


def pytest_configure() -> None:
    """Leave nothing behind if the tests are killed: the kernel and its ranks follow us."""
    end_with_parent(int(os.environ["NBVAL_STARTED_BY"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Run one cell, and fail it for what nbval does not look at."""
    item.output_timeout = 60  # seconds that a kernel may be silent; nbval has no option for it
    result = yield
    problems = list(code_problems(item.cell))
    if item.cell.source and item.cell.execution_count is None:
        problems.append("the stored notebook has never run this cell")
    raised = any(output.output_type == "error" for output in item.test_outputs or ())
    if item.options["check_exception"] and not raised:
        problems.append("the cell is tagged raises-exception, and did not raise")
    if any("UsageError" in output.get("text", "") for output in item.test_outputs or ()):
        problems.append("IPython did not know what to do with a line of the cell")
    if problems:
        item.raise_cell_error("; ".join(problems))
    return result
