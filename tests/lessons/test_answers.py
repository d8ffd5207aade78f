"""Every worked solution is right, every usual wrong answer is recognised by its name."""

from __future__ import annotations

import ast
import re
import symtable

import pytest

from course_lib.teaching import mistakes
from course_lib.teaching.catalogue import all_exercises, find
from course_lib.teaching.lessons import NOTEBOOKS, exercise_cell, read_source, sources
from course_lib.teaching.solution_marks import blanked, unmarked
from tools.mutants.trials import kind_of, told

# Exercise id -> style or mistake -> code.
RIGHT_ANSWERS: dict[str, dict[str, str]] = {}
WRONG_ANSWERS: dict[str, dict[str, str]] = {}
for path in sorted(NOTEBOOKS.glob("lesson_*/mistakes.md")):
    RIGHT_ANSWERS |= mistakes.read(path).right
    WRONG_ANSWERS |= mistakes.read(path).wrong


@pytest.mark.parametrize("id", all_exercises())
def test_the_solution_is_right(cluster, id: str) -> None:
    said = told(id, unmarked(exercise_cell(id)), cluster)
    assert said.startswith(f"{id}: right."), said


@pytest.mark.parametrize("id", all_exercises())
def test_the_stub_is_not_attempted_yet(cluster, id: str) -> None:
    assert told(id, blanked(exercise_cell(id)), cluster) == f"{id}: not attempted yet."


@pytest.mark.parametrize(
    ("id", "style"), [(id, style) for id, styles in RIGHT_ANSWERS.items() for style in styles]
)
def test_a_right_answer_in_another_style_is_right(cluster, id: str, style: str) -> None:
    said = told(id, RIGHT_ANSWERS[id][style], cluster)
    assert said.startswith(f"{id}: right."), said


@pytest.mark.parametrize(
    ("id", "mistake"), [(id, name) for id, names in WRONG_ANSWERS.items() for name in names]
)
def test_a_wrong_answer_is_recognised(cluster, id: str, mistake: str) -> None:
    said = told(id, WRONG_ANSWERS[id][mistake], cluster)
    assert said.startswith(f"{id}: not yet: "), said
    assert kind_of(id, said) == mistake.partition(":")[0], said


def test_every_exercise_has_wrong_answers() -> None:
    assert {id: len(WRONG_ANSWERS.get(id, ())) for id in all_exercises()} == {
        id: len(names) for id, names in WRONG_ANSWERS.items()
    }
    few = {id: len(names) for id, names in WRONG_ANSWERS.items() if len(names) < at_least(id)}
    assert few == {}


def at_least(id: str) -> int:
    """Return how many wrong answers an exercise needs; the newer lessons' have more."""
    return 8 if id.startswith(("10", "13")) else 3


@pytest.mark.parametrize("id", all_exercises())
def test_no_other_cell_defines_an_exercise_s_function(id: str) -> None:
    """Otherwise `check` would accept code that the learner did not write."""
    for code in other_cells(id):
        assert find(id).function not in names_given(ast.parse(code).body)


@pytest.mark.parametrize("id", all_exercises())
def test_no_other_cell_uses_names_from_a_solution(id: str) -> None:
    """Therefore a lesson runs the same without its solutions, except for the checks' messages."""
    cell = exercise_cell(id)
    with_it, without = (
        names_given(ast.parse(without_magics(code)).body)
        for code in (unmarked(cell), blanked(cell))
    )
    solved = with_it - without | {find(id).function}
    for code in other_cells(id):
        asks = f'check("{id}"' in code
        assert asks or not solved & names_needed(code), code


def test_yours_or_solution_runs_where_the_function_is() -> None:
    """Otherwise `yours_or_solution` would find no function and use the solution needlessly."""
    found = {}
    for source in sources():
        for cell in read_source(source).cells:
            for id in re.findall(r"yours_or_solution\(\"(.+?)\"\)", cell.source):
                if cell.cell_type == "code":
                    found[id] = "engines" if cell.source.startswith("%%px") else "notebook"
    assert found == {id: find(id).where for id in found}
    assert {"10.order", "10b.row_linear"} <= found.keys()


def test_no_lesson_imports_expected_answers() -> None:
    for source in sources():
        assert not re.search(r"import .*\bexpected\b", source.read_text()), source.name


def without_magics(code: str) -> str:
    return re.sub(r"^ *[%!].*$", "", code, flags=re.MULTILINE)


def other_cells(id: str) -> list[str]:
    """Return the code of all cells of the lesson but the exercise's, without magics."""
    lesson = id.partition(".")[0]
    (source,) = NOTEBOOKS.glob(f"lesson_{lesson}/{lesson}_*.py")
    cells = [cell for cell in read_source(source).cells if cell.cell_type == "code"]
    others = [cell.source for cell in cells if cell.metadata.get("exercise") != id]
    assert len(others) == len(cells) - 1
    return [without_magics(code) for code in others]


def names_needed(code: str) -> set[str]:
    """Return the global names that a cell reads, in its functions too."""
    found = set()
    tables = [symtable.symtable(code, "<cell>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (top or symbol.is_global())
        }
    return found


def names_given(block: list[ast.stmt]) -> set[str]:
    """Return the names that statements outside of functions give a value."""
    found = set()
    for statement in block:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.alias):
                found.add((node.asname or node.name).partition(".")[0])
    return found


def test_every_exercise_has_two_alternative_right_answers() -> None:
    assert [id for id in all_exercises() if len(RIGHT_ANSWERS.get(id, ())) < 2] == []
