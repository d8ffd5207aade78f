"""An exception of the learner's is shown first, with its own rank and line, in each exercise."""

from __future__ import annotations

import ast

import pytest

from course_lib.teaching.catalogue import all_exercises, find
from course_lib.teaching.exercise import Exercise
from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.solution_marks import unmarked
from tests.lessons.test_answers import told

MESSAGE = "a mistake of my own"
# Who raises late: in lesson 12 rank 1 stays away, in lesson 09 rank 0 alone is the server.
RANKS = {"09.serve": 0}
RANK = 2


def with_exception(id: str, *, everywhere: bool) -> str:
    """Return the solution with a raise in it: at once on all ranks, or late on one rank alone."""
    exercise = find(id)
    tree = ast.parse(unmarked(exercise_cell(id)).removeprefix("%%px\n"))
    function = next(
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == exercise.function
    )
    condition = "True" if everywhere else _on_one_rank(function, exercise)
    mistake = ast.parse(f"if {condition}:\n    raise ValueError({MESSAGE!r})").body[0]
    if everywhere:
        function.body.insert(0, mistake)
    else:
        _before_returns(function.body, mistake)
        if not isinstance(function.body[-1], ast.Return):
            function.body.append(mistake)
    return ast.unparse(ast.fix_missing_locations(tree))


def _on_one_rank(function: ast.FunctionDef, exercise: Exercise) -> str:
    if exercise.where == "notebook":
        return "True"
    named = [argument.arg for argument in function.args.args]
    rank = "comm.rank" if "comm" in named else "dist.get_rank()"
    return f"{rank} == {RANKS.get(exercise.id, RANK)}"


def _before_returns(block: list[ast.stmt], mistake: ast.stmt) -> None:
    """Put ``mistake`` before each return of the function, but not of functions inside it."""
    for index in reversed(range(len(block))):
        statement = block[index]
        if isinstance(statement, ast.Return):
            block.insert(index, mistake)
        elif not isinstance(statement, ast.FunctionDef):
            for name in ("body", "orelse", "finalbody"):
                _before_returns(getattr(statement, name, []), mistake)


@pytest.mark.parametrize("everywhere", [True, False], ids=["at once on all", "late on one"])
@pytest.mark.parametrize("id", all_exercises())
def test_an_exception_is_shown_first(cluster, capsys, id: str, everywhere: bool) -> None:
    code = with_exception(id, everywhere=everywhere)
    said = told(cluster, capsys, id, code).splitlines()[0]
    on_ranks = find(id).where == "engines"
    assert said.startswith(f"{id}: not yet: "), said
    assert said.endswith("(it-raises)"), said
    assert f"raised ValueError: {MESSAGE}" in said, said
    if on_ranks and not everywhere:
        assert f"rank {RANKS.get(id, RANK)}" in said.partition(" raised ")[0], said
    line = next(line for line in code.splitlines() if MESSAGE in line).strip()
    numbers = [n for n, text in enumerate(code.splitlines(), 1) if text.strip() == line]
    assert any(f"It happened in line {n}: `" in said for n in numbers), said


@pytest.mark.parametrize("inner", ["hook", "finish"])
def test_an_exception_in_what_it_returns_is_shown_with_its_line(cluster, capsys, inner) -> None:
    id = "06.bucketed_sync"
    tree = ast.parse(unmarked(exercise_cell(id)).removeprefix("%%px\n"))
    function = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == inner
    )
    function.body[:0] = ast.parse(
        f"if dist.get_rank() == {RANK}:\n    raise ValueError({MESSAGE!r})"
    ).body
    code = ast.unparse(ast.fix_missing_locations(tree))
    said = told(cluster, capsys, id, code).splitlines()[0]
    assert f"rank {RANK} raised ValueError: {MESSAGE}" in said, said
    number = next(n for n, text in enumerate(code.splitlines(), 1) if MESSAGE in text)
    assert f"It happened in line {number}: `" in said, said
