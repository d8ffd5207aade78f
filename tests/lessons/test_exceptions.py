"""An exception of the learner's is shown first, with its own rank and line, in each exercise."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from course_lib.teaching.catalogue import all_exercises, find
from course_lib.teaching.exercise import Exercise
from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.solution_marks import unmarked
from tools.mutants.trials import told

MESSAGE = "a mistake of my own"
# Who raises alone: the only server, or the root of the check; in lesson 12 rank 1 stays away.
RANKS = {"01.handshake": 0, "02.broadcast": 0, "02.scatter": 0, "09.serve": 0}
RANK = 2


def with_exception(id: str, where: str) -> str:
    """Return the solution with a raise in it: on all ranks, or on one in the middle or late."""
    exercise = find(id)
    tree = ast.parse(unmarked(exercise_cell(id)).removeprefix("%%px\n"))
    function = next(
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == exercise.function
    )
    condition = "True" if where == "at once on all" else _on_one_rank(function, exercise)
    mistake = ast.parse(f"if {condition}:\n    raise ValueError({MESSAGE!r})").body[0]
    if where == "at once on all":
        function.body.insert(0, mistake)
    elif where == "in the middle on one":
        places = list(_on_every_rank_s_way(function.body))
        block, index = places[len(places) // 2]
        block.insert(index, mistake)
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


def _on_every_rank_s_way(block: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int]]:
    """Yield the places before statements that no condition keeps a rank from, after the first."""
    for index, statement in enumerate(block):
        if index > 0:
            yield block, index
        if isinstance(statement, ast.For | ast.While | ast.With):
            yield from _on_every_rank_s_way(statement.body)


def _before_returns(block: list[ast.stmt], mistake: ast.stmt) -> None:
    """Put ``mistake`` before each return of the function, but not of functions inside it."""
    for index in reversed(range(len(block))):
        statement = block[index]
        if isinstance(statement, ast.Return):
            block.insert(index, mistake)
        elif not isinstance(statement, ast.FunctionDef):
            for name in ("body", "orelse", "finalbody"):
                _before_returns(getattr(statement, name, []), mistake)


@pytest.mark.parametrize("where", ["at once on all", "in the middle on one", "late on one"])
@pytest.mark.parametrize("id", all_exercises())
def test_an_exception_is_shown_first(cluster, id: str, where: str) -> None:
    code = with_exception(id, where)
    said = told(id, code, cluster).splitlines()[0]
    on_ranks = find(id).where == "engines"
    assert said.startswith(f"{id}: not yet: "), said
    assert said.endswith("(it-raises)"), said
    assert f"raised ValueError: {MESSAGE}" in said, said
    if on_ranks and where != "at once on all":
        assert f"rank {RANKS.get(id, RANK)}" in said.partition(" raised ")[0], said
    line = next(line for line in code.splitlines() if MESSAGE in line).strip()
    numbers = [n for n, text in enumerate(code.splitlines(), 1) if text.strip() == line]
    assert any(f"It happened in line {n}: `" in said for n in numbers), said


@pytest.mark.parametrize(
    ("id", "inner"),
    [("06.bucketed_sync", "hook"), ("06.bucketed_sync", "finish"), ("13b.distributed", "step")],
)
def test_exception_in_a_returned_function_is_shown_with_its_line(
    cluster, id: str, inner: str
) -> None:
    tree = ast.parse(unmarked(exercise_cell(id)).removeprefix("%%px\n"))
    function = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == inner
    )
    function.body[:0] = ast.parse(
        f"if dist.get_rank() == {RANK}:\n    raise ValueError({MESSAGE!r})"
    ).body
    code = ast.unparse(ast.fix_missing_locations(tree))
    said = told(id, code, cluster).splitlines()[0]
    assert f"rank {RANK} raised ValueError: {MESSAGE}" in said, said
    number = next(n for n, text in enumerate(code.splitlines(), 1) if MESSAGE in text)
    assert f"It happened in line {number}: `" in said, said
