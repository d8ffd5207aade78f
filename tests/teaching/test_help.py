"""Hints come one by one, and the solution shows the code between the marks."""

from __future__ import annotations

import pytest

from course_lib.teaching import help
from course_lib.teaching.catalogue import all_exercises, find
from course_lib.teaching.exercise import exercise
from course_lib.teaching.solution_marks import STUB, MarkError, blanked, unmarked


def test_hint_gives_three_hints_then_points_to_the_solution(own_exercises, capsys) -> None:
    help._given.clear()
    said = []
    for _ in range(5):
        help.hint("90.double")
        said.append(capsys.readouterr().out.strip())
    assert said[0] == "**Hint 1 of 3.** a weak hint"
    assert said[1] == "**Hint 2 of 3.** a stronger one"
    assert said[2].startswith("**Hint 3 of 3.**\n\n```python\n")
    assert said[3] == said[4]
    assert said[3].startswith("There are no more hints for 90.double. `solution(")
    help.hint("90.total")
    assert "Hint 1 of 3" in capsys.readouterr().out, "each exercise counts for itself"


@pytest.mark.parametrize("id", all_exercises())
def test_code_in_a_hint_is_a_separate_block(id: str, capsys) -> None:
    help._given.clear()
    for _ in find(id).hints:
        help.hint(id)
    shown = capsys.readouterr().out.splitlines()
    assert all(line.startswith("```") for line in shown if "```" in line)


@pytest.mark.parametrize("id", all_exercises())
def test_solution_of_every_exercise_is_shown(id: str, capsys) -> None:
    help.solution(id)
    shown = capsys.readouterr().out
    assert f"def {find(id).function}(" in shown
    assert "NotImplementedError" not in shown
    assert "SOLUTION" not in shown
    code = shown.partition("```python\n")[2].partition("\n```")[0].removeprefix("%%px\n")
    compile(code, id, "exec")


def test_blanking_keeps_the_stub_and_its_indentation() -> None:
    cell = (
        "def f(x):\n    '''Text.'''\n    if x:\n        ### BEGIN SOLUTION\n        return 1\n"
        "        ### END SOLUTION\n    return 2"
    )
    assert blanked(cell) == f"def f(x):\n    '''Text.'''\n    if x:\n        {STUB}\n    return 2"
    assert unmarked(cell).count("\n") == cell.count("\n") - 2
    names: dict = {}
    exec(blanked(cell), names)
    assert names["f"](0) == 2
    with pytest.raises(NotImplementedError):
        names["f"](1)


@pytest.mark.parametrize(
    "cell",
    [
        "### BEGIN SOLUTION\nx = 1",
        "x = 1\n### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION",
    ],
)
def test_unmatched_solution_mark_is_an_error(cell: str) -> None:
    with pytest.raises(MarkError, match="without its counterpart"):
        blanked(cell)


def test_exercise_requires_three_hints_and_a_known_place() -> None:
    with pytest.raises(ValueError, match="three hints, not 2"):
        exercise("90.x", function="x", where="engines", hints=["a", "b"])
    with pytest.raises(ValueError, match="'engines' or 'notebook', not 'moon'"):
        exercise("90.x", function="x", where="moon", hints=["a", "b", "c"])
