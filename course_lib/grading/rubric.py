"""Points for the outcomes of the checks, from a TOML file of the teacher's.

::

    points = 10                          # of an exercise, unless it names others

    [shares]                             # of the points, by how an answer ended
    "right" = 1
    "wrong" = 0.5

    [mistakes]                           # by the mistake's name, in any exercise
    "it-hangs" = 0.25

    [exercises."01.ring_pass"]
    points = 5
    mistakes = {"ring-not-closed" = 0.8}

Values that the file leaves out are as in :data:`SHARES`. Of several shares the most specific
counts: the exercise's, then that of the mistake, then that of the kind.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.teaching import mistakes
from course_lib.teaching.catalogue import all_exercises, find

from .outcomes import KINDS, Outcome

POINTS = 10.0
SHARES = dict.fromkeys(KINDS, 0.0) | {"right": 1.0, "wrong": 0.5}
_OF_NO_PAGE = {"it-raises", "it-hangs", "it-crashes", "does-not-finish"}


class RubricError(ValueError):
    """A rubric is malformed; the message gives the place and the allowed values."""


@dataclass
class Rubric:
    """The points for answers.

    Attributes:
        points: of an exercise that has none of its own.
        shares: how an answer ended -> share of the points.
        mistakes: mistake -> share, in any exercise.
        own_points: exercise -> points.
        own_mistakes: exercise -> mistake -> share.
    """

    points: float = POINTS
    shares: dict[str, float] = field(default_factory=lambda: dict(SHARES))
    mistakes: dict[str, float] = field(default_factory=dict)
    own_points: dict[str, float] = field(default_factory=dict)
    own_mistakes: dict[str, dict[str, float]] = field(default_factory=dict)

    def most(self, id: str) -> float:
        """Return the points of a right answer."""
        return self.own_points.get(id, self.points)

    def score(self, outcome: Outcome) -> float:
        """Return the points of an answer, with two decimals at most."""
        share = self.shares[outcome.kind]
        if outcome.mistake:
            own = self.own_mistakes.get(outcome.id, {})
            share = own.get(outcome.mistake, self.mistakes.get(outcome.mistake, share))
        return round(share * self.most(outcome.id), 2)


def read(path: Path) -> Rubric:
    """Return the rubric in a file.

    Raises:
        RubricError: if it is malformed, or names what does not exist.
    """
    try:
        return _rubric(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RubricError) as error:
        raise RubricError(f"{path.name}: {error}") from None


def _rubric(given: dict[str, Any]) -> Rubric:
    rubric = Rubric()
    _only(given, {"points", "shares", "mistakes", "exercises"}, "the rubric")
    rubric.points = _number(given.get("points", POINTS), "points")
    rubric.shares |= _shares(given.get("shares", {}), KINDS, "[shares]")
    exercises = all_exercises()
    anywhere = _OF_NO_PAGE.union(*map(_known, exercises))
    rubric.mistakes = _shares(given.get("mistakes", {}), anywhere, "[mistakes]")
    own = _table(given.get("exercises", {}), "[exercises]")
    _only(own, exercises, "[exercises]")
    for id, settings in own.items():
        where = f'[exercises."{id}"]'
        _only(_table(settings, where), {"points", "mistakes"}, where)
        if "points" in settings:
            rubric.own_points[id] = _number(settings["points"], f"{where} points")
        known = _OF_NO_PAGE | _known(id)
        rubric.own_mistakes[id] = _shares(settings.get("mistakes", {}), known, f"{where} mistakes")
    return rubric


def _known(id: str) -> set[str]:
    """Return the names of the mistakes that the check of an exercise may find."""
    pages = mistakes.read(mistakes.path_of(find(id))).texts, mistakes.read(mistakes.SHARED).texts
    return {
        name.partition(":")[0]
        for texts in pages
        for section, name in texts
        if section in (id, mistakes.ANY)
    }


def _shares(given: Any, known: Collection[str], where: str) -> dict[str, float]:
    _only(_table(given, where), known, where)
    return {name: _number(value, f"{where} {name}", 1) for name, value in given.items()}


def _number(value: Any, where: str, most: float = 1e6) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise RubricError(f"{where} = {value!r}: give a number from 0 to {most:g}")
    return float(value)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RubricError(f"{where}: expected a table, not {value!r}")
    return value


def _only(given: dict[str, Any], known: Collection[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise RubricError(f"{where} has no {name!r}; it can have: {', '.join(sorted(known))}")
