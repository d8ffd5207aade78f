"""Finds the exercises of all lessons: the checks that are marked with ``@exercise``.

Each lesson has a room, ``rank_by_rank.lesson_NN``, whose module ``exercises`` holds its checks. The
notebook's kernel imports it too, to give hints and to know where an exercise runs; so these modules
import torch, MPI and the judges inside the checks, which run on the ranks.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from .exercise import Exercise

PACKAGES = ["rank_by_rank"]
"""Where rooms are looked for."""


class UnknownExerciseError(LookupError):
    """There is no exercise of this name; the message lists those of the same lesson."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def find(id: str) -> Exercise:
    """Return exercise ``id``, e.g. ``"01.ring_pass"``.

    Raises:
        UnknownExerciseError: if there is none.
    """
    lesson = id.partition(".")[0] if isinstance(id, str) else ""
    # A broken room must not affect the others.
    own = _exercises_in(f"lesson_{lesson}") if lesson.isalnum() else {}
    if own and id in own:  # it may be no text, and have no hash
        return own[id]
    known = list(own) or list(all_exercises())
    raise UnknownExerciseError(f"there is no exercise {id!r}; the exercises are {', '.join(known)}")


def all_exercises() -> dict[str, Exercise]:
    """Return every exercise by its id, lesson by lesson."""
    return _exercises_in("lesson_*")


def _exercises_in(pattern: str) -> dict[str, Exercise]:
    found: dict[str, Exercise] = {}
    for package in PACKAGES:
        for room in _rooms(package, pattern):
            module = importlib.import_module(f"{package}.{room}.exercises")
            for value in vars(module).values():
                item = getattr(value, "exercise", None)
                if isinstance(item, Exercise) and item.module == module.__name__:
                    if item.id in found:
                        raise ValueError(f"{module.__name__}: exercise {item.id} is there twice")
                    found[item.id] = item
    return found


def _rooms(package: str, pattern: str) -> list[str]:
    folders = importlib.import_module(package).__path__
    # A set: a package without an __init__ may have the same folder twice in its path.
    return sorted(
        {
            path.parent.name
            for folder in folders
            for path in Path(folder).glob(f"{pattern}/exercises.py")
        }
    )
