"""The one idea: exercises are found by reading the modules' text, so that nothing is imported.

The notebook's kernel must not import :mod:`torch_mpi4py`, which would start MPI in it, but it
gives hints and needs to know where an exercise runs. So ``@exercise(...)`` is read with
:mod:`ast`: its arguments are literals, or names of literals at the module's top.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from .exercise import DEADLINE_SECONDS, Exercise

__all__ = ["FOLDERS", "UnknownExerciseError", "all_exercises", "find"]

# Folder -> the package that its modules belong to.
FOLDERS: dict[Path, str] = {Path(__file__).parent / "exercises": f"{__package__}.exercises"}


class UnknownExerciseError(LookupError):
    """There is no exercise of this name; the message lists those of the same lesson."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def find(id: str) -> Exercise:
    """Return exercise ``id``, e.g. ``"01.ring_pass"``.

    Raises:
        UnknownExerciseError: if there is none.
    """
    everything = all_exercises()
    if id in everything:
        return everything[id]
    lesson = str(id).partition(".")[0]
    known = [name for name in everything if name.startswith(f"{lesson}.")] or list(everything)
    raise UnknownExerciseError(f"there is no exercise {id!r}; there are {', '.join(known)}")


def all_exercises() -> dict[str, Exercise]:
    """Return every exercise by its id, lesson by lesson."""
    found: dict[str, Exercise] = {}
    for folder, package in FOLDERS.items():
        for path in sorted(folder.glob("lesson_*.py")):
            for item in _read(path, package, path.stat().st_mtime_ns):
                if item.id in found:
                    raise ValueError(f"{path.name}: exercise {item.id} is there twice")
                found[item.id] = item
    return found


@functools.cache
def _read(path: Path, package: str, modified: int) -> tuple[Exercise, ...]:
    """Return the exercises of a module; ``modified`` makes a changed file be read again."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    literals = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in tree.body:
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "exercise":
                found.append(_entry(decorator, literals, f"{package}.{path.stem}", node.name))
    return tuple(found)


def _entry(call: ast.Call, literals: dict, module: str, checker: str) -> Exercise:
    def value(node: ast.expr):
        if isinstance(node, ast.Name) and node.id in literals:
            node = literals[node.id]
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise ValueError(
                f"{module}.{checker}: @exercise takes literals or names of literals at the "
                f"module's top, not {ast.unparse(node)}"
            ) from None

    given = {keyword.arg: value(keyword.value) for keyword in call.keywords}
    return Exercise(
        value(call.args[0]),
        given["function"],
        given["where"],
        tuple(given["hints"]),
        given.get("deadline", DEADLINE_SECONDS),
        module,
        checker,
    )
