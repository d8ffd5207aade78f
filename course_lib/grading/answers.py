"""Extracts a learner's answers from a notebook, with the definitions that they need.

An answer is the cell whose metadata has the exercise's id: the last one that was changed, if there
are several. If it is gone, or unchanged, the last cell that defines the exercise's function counts.
Outputs are never read.

The cell may use names of other cells. From these, only definitions are taken: imports, functions,
classes, and constants (assignments that call nothing); and only if the answer needs them, directly
or through another such definition. The learner's notebook is searched first, then the teacher's
version of the lesson. So no other cell of a learner runs, and the lesson's own cells need not still
be there. Values that a cell computed or loaded are missing, as they are for the checks.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import symtable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.teaching import lessons
from course_lib.teaching.catalogue import find
from course_lib.teaching.exercise import Exercise
from course_lib.teaching.solution_marks import blanked

LARGEST_BYTES = 100 << 20
ON_RANKS = {"rank", "world_size", "comm", "device", "torch", "dist", "np"}
"""Names that every rank offers to cells; no definition takes their places."""

_CANNOT_PARSE = (SyntaxError, ValueError, RecursionError, MemoryError)


class UnreadableError(Exception):
    """A file is not a notebook; the message says why."""


@dataclass(frozen=True)
class Answer:
    """The answer to one exercise.

    Attributes:
        code: the learner's cell, without ``%%px``; empty if there is nothing to judge.
        support: definitions to run before it.
        kind: why there is nothing to judge, as in ``outcomes.KINDS``; else empty.
        note: further information for the teacher.
    """

    id: str
    code: str = ""
    support: str = ""
    kind: str = ""
    note: str = ""


@dataclass(frozen=True)
class _Cell:
    exercise: str
    on_ranks: bool
    code: str


@dataclass(frozen=True)
class _Definition:
    code: str
    gives: frozenset[str]
    needs: frozenset[str]


def of_lesson(number: str) -> list[str]:
    """Return the ids of a lesson's exercises, in its order."""
    return [cell.exercise for cell in _lesson(number) if cell.exercise]


def choose(copies: list[Path], number: str) -> tuple[Path, list[Answer]]:
    """Return the copy of a lesson that counts, and the answers in it.

    It is the newest one that can be read and has an answer; if there is none, the oldest.

    Raises:
        UnreadableError: if that one is not a notebook.
    """
    for path in copies[:-1]:
        try:
            answers = read(path, number)
        except UnreadableError:
            continue  # an older copy may be whole; the page names the one that was taken
        if any(answer.code for answer in answers):
            return path, answers
    return copies[-1], read(copies[-1], number)


def read(path: Path, number: str) -> list[Answer]:
    """Return the answers to a lesson's exercises in a notebook.

    Raises:
        UnreadableError: if it is not a notebook.
    """
    cells = _cells(_load(path))
    return [_answer(find(id), cells, number) for id in of_lesson(number)]


def _load(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise UnreadableError(f"{path.name} has {size >> 20} MiB, more than a notebook needs")
    try:
        notebook = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path.name} is not a notebook: {error}") from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise UnreadableError(f"{path.name} is not a notebook of format 4: it has no list of cells")
    return notebook


def _cells(notebook: dict[str, Any]) -> list[_Cell]:
    """Return the code cells of a notebook, skipping anything else in a damaged one."""
    found = []
    for cell in notebook["cells"]:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        metadata, source = cell.get("metadata"), cell.get("source", "")
        lines = source if isinstance(source, list) else [source]
        text = "".join(line for line in lines if isinstance(line, str))
        id = metadata.get("exercise", "") if isinstance(metadata, dict) else ""
        found.append(_cell(str(id), text))
    return found


def _cell(id: str, text: str) -> _Cell:
    first, _, rest = text.lstrip("\n").partition("\n")
    on_ranks = first.split()[:1] == ["%%px"]
    return _Cell(id, on_ranks, rest if on_ranks else text)


def _answer(exercise: Exercise, cells: list[_Cell], number: str) -> Answer:
    issued = next(cell for cell in _lesson(number) if cell.exercise == exercise.id)
    own = [cell for cell in cells if cell.exercise == exercise.id]
    written = [cell for cell in own if not _same(cell, _cell("", blanked(_joined(issued))))]
    note = ""
    if not written:
        written = [c for c in cells if not c.exercise and exercise.function in _given(c.code)]
        if written:
            note = "Taken from another cell, which defines the function."
    if not written:
        return Answer(exercise.id, kind="not attempted" if own else "cell deleted")
    cell = written[-1]
    if not cell.code.strip():
        return Answer(exercise.id, kind="cell deleted", note="Its cell is empty.")
    on_ranks = exercise.where == "engines"
    if cell.on_ranks != on_ranks:
        where = "on the ranks" if on_ranks else "in the notebook"
        note = f"{note} Its cell runs elsewhere, but it was judged {where}.".strip()
    pool = [
        definition
        for other in (*(other for other in _lesson(number) if not other.exercise), *cells)
        if other.on_ranks == on_ranks and other is not cell
        for definition in _definitions(other.code)
    ]
    return Answer(exercise.id, cell.code, _support(cell.code, pool, on_ranks), note=note)


def _joined(cell: _Cell) -> str:
    return f"%%px\n{cell.code}" if cell.on_ranks else cell.code


def _same(one: _Cell, other: _Cell) -> bool:
    def lines(cell: _Cell) -> list[str]:
        return [line.rstrip() for line in cell.code.strip().splitlines()]

    return lines(one) == lines(other)


@functools.cache
def _lesson(number: str) -> tuple[_Cell, ...]:
    """Return the code cells of the teacher's version of a lesson, with the worked solutions."""
    (path,) = (path for path in lessons.sources() if lessons.number(path) == number)
    cells = [cell for cell in lessons.read_source(path).cells if cell.cell_type == "code"]
    return tuple(_cell(cell.metadata.get("exercise", ""), cell.source) for cell in cells)


# ---- definitions ------------------------------------------------------------------------------


def _support(code: str, pool: list[_Definition], on_ranks: bool) -> str:
    """Return the definitions that ``code`` needs, each after those that it needs itself."""
    place = {name: definition for definition in pool for name in definition.gives}
    known = set(dir(builtins)) | (ON_RANKS if on_ranks else set())
    ordered: list[str] = []
    seen: set[_Definition] = set()

    def take(names: frozenset[str]) -> None:
        for name in sorted(names - known):
            definition = place.get(name)
            if definition is not None and definition not in seen:
                seen.add(definition)
                take(definition.needs)
                ordered.append(definition.code)

    take(_needed(code) - _given(code))
    return "\n\n".join(ordered)


@functools.lru_cache(maxsize=1024)
def _definitions(code: str) -> tuple[_Definition, ...]:
    """Return the statements of a cell that define names and do nothing else."""
    found = []
    for statement in _parsed(code).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            if any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(statement)):
                continue
        elif not isinstance(
            statement,
            ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
        ):
            continue
        text = ast.unparse(statement)
        found.append(_Definition(text, _given(text), _needed(text)))
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _parsed(code: str) -> ast.Module:
    """Return the syntax tree of a cell, without magics; an empty one if it has none."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return ast.parse(TransformerManager().transform_cell(code))
    except _CANNOT_PARSE:
        return ast.Module([], [])


def _given(code: str) -> frozenset[str]:
    """Return the names that statements outside functions assign."""
    found = set()
    for statement in _parsed(code).body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.alias):
                found.add((node.asname or node.name).partition(".")[0])
    return frozenset(found)


def _needed(code: str) -> frozenset[str]:
    """Return the global names that a cell reads, in its functions too."""
    try:
        tables = [symtable.symtable(ast.unparse(_parsed(code)), "<cell>", "exec")]
    except _CANNOT_PARSE:
        return frozenset()
    found = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (top or symbol.is_global())
        }
    return frozenset(found)
