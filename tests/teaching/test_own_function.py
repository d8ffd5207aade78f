"""A later cell goes on with the learner's function, or with the solution if there is none."""

from __future__ import annotations

import pytest

from course_lib.teaching import lessons
from course_lib.teaching.catalogue import UnknownExerciseError
from course_lib.teaching.checking import check
from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.own_function import yours_or_solution
from course_lib.teaching.solution_marks import blanked
from tests.teaching.lessons_of_our_own import GOOD

NOT_WRITTEN = "you have not written it yet, so the worked solution is used here."
NOT_RIGHT = "the check has not found yours right yet, so the worked solution is used here."


@pytest.fixture
def folder(own_exercises, tmp_path, monkeypatch):
    """The folder of a lesson 90 with solutions."""
    (tmp_path / "lesson_90").mkdir()
    (tmp_path / "lesson_90" / "90_ours.py").write_text(GOOD)
    monkeypatch.setattr(lessons, "NOTEBOOKS", tmp_path)
    return tmp_path


@pytest.fixture
def cell(folder, capsys):
    """A function that runs cells of one notebook, and returns names, and what was printed."""
    names: dict = {"yours_or_solution": yours_or_solution, "check": check}

    def run(code: str) -> tuple[dict, str]:
        capsys.readouterr()
        exec(compile(code, "<cell>", "exec"), names)
        return names, capsys.readouterr().out

    return run


USES = 'used = yours_or_solution("90.double")'


def test_learners_function_is_used(cell) -> None:
    names, said = cell(f"def double(x): return x + x\n{USES}")
    assert names["used"] is names["double"]
    assert said == ""
    cell('check("90.double")')
    names, said = cell(USES)
    assert names["used"] is names["double"]
    assert said == ""


def test_solution_is_used_without_a_function(cell) -> None:
    names, said = cell(USES)
    assert names["used"](4) == 8
    assert said == f"90.double: {NOT_WRITTEN}\n"
    assert "double" not in names, "nothing is defined for the learner"


def test_solution_is_used_instead_of_the_stub(cell) -> None:
    stub = blanked(exercise_cell("90.double"))
    names, said = cell(f"{stub}\n{USES}")
    assert names["used"](4) == 8
    assert said == f"90.double: {NOT_WRITTEN}\n"
    with pytest.raises(NotImplementedError):
        names["double"](4)


def test_wrong_function_is_not_used_until_rewritten(cell) -> None:
    _, said = cell('def double(x): return x * x\ncheck("90.double")')
    assert "not yet" in said
    names, said = cell(USES)
    assert names["used"](4) == 8
    assert said == f"90.double: {NOT_RIGHT}\n"
    names, said = cell(f"def double(x): return x + x\n{USES}")
    assert names["used"] is names["double"]
    assert said == ""


def test_unknown_or_misplaced_exercise_raises(cell) -> None:
    with pytest.raises(UnknownExerciseError, match="there is no exercise"):
        cell('yours_or_solution("90.half")')
    with pytest.raises(RuntimeError, match="call yours_or_solution in a %%px cell"):
        cell('yours_or_solution("90.total")')


@pytest.fixture
def on_ranks(cluster, folder, capsys):
    """A function that runs a cell on the ranks, and returns the sums and what was printed."""
    cluster.view.execute(
        "from course_lib.teaching import catalogue, lessons, yours_or_solution\n"
        "from pathlib import Path\n"
        f"lessons.NOTEBOOKS = Path({str(folder)!r})\n"
        "catalogue.PACKAGES[:] = ['rank_by_rank', 'tests.teaching.own_exercises']\n",
        silent=True,
    )

    def run(code: str, checked: bool = False) -> tuple[list, list[str]]:
        cluster.view.execute(code, silent=True)
        if checked:
            check("90.total")
        cluster.view.execute(
            "import io, contextlib\n"
            "with contextlib.redirect_stdout(io.StringIO()) as printed:\n"
            "    used = yours_or_solution('90.total')\n"
            "result, said = used(comm), printed.getvalue()",
            silent=True,
        )
        return cluster.view["result"], cluster.view["said"]

    return run


MINE = "def total(comm): return [comm.allreduce(comm.rank + 1)]"


def test_learners_function_is_used_on_the_ranks(on_ranks) -> None:
    assert on_ranks(MINE) == ([[3], [3]], ["", ""])


def test_all_ranks_use_the_solution_if_one_lacks_a_function(on_ranks) -> None:
    found = on_ranks(f"{MINE}\nif comm.rank == 1: del total")
    assert found == ([3, 3], [f"90.total: {NOT_WRITTEN}\n", ""])


def test_all_ranks_use_the_solution_if_one_was_wrong(on_ranks) -> None:
    wrong = "def total(comm): return comm.allreduce(comm.rank + 1) * comm.rank"
    found = on_ranks(wrong, checked=True)
    assert found == ([3, 3], [f"90.total: {NOT_RIGHT}\n", ""])
