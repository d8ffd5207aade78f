"""Reads the mark ``@pytest.mark.ranks`` of a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

__all__ = ["DESCRIPTION", "MANY", "RanksMark"]

DESCRIPTION = (
    "ranks(n, ..., backend=None, timeout=None, group_timeout=None): run the test on n ranks, once "
    "for each n. A backend's default process group is made before and destroyed afterwards; the "
    "test fails after timeout seconds, an operation of the group after group_timeout."
)
MANY = "number_of_ranks"
"""The parameter of a test that runs on several numbers of ranks."""
_SETTINGS = {"backend", "timeout", "group_timeout"}
_LATER_S = 60.0  # than the test: then its report is about all ranks, not a group's error


@dataclass(frozen=True)
class RanksMark:
    """The mark of one test.

    Attributes:
        sizes: the numbers of ranks.
        backend: of the default process group, empty if the test makes its own.
        seconds: how long the test may take.
        group_seconds: how long an operation of the default group may take.
    """

    sizes: tuple[int, ...]
    backend: str
    seconds: float
    group_seconds: float

    @classmethod
    def of(cls, node: Any) -> RanksMark | None:
        """Return the mark of a test, None if it has none.

        Raises:
            pytest.UsageError: if it is invalid.
        """
        mark = node.get_closest_marker("ranks")
        if mark is None:
            return None
        unknown = mark.kwargs.keys() - _SETTINGS
        if unknown or not mark.args or not all(map(_is_size, mark.args)):
            raise pytest.UsageError(
                f"{node.nodeid}: ranks takes whole numbers of ranks of at least 1, and "
                f"{', '.join(sorted(_SETTINGS))} by name, not {mark.args} and {mark.kwargs}"
            )
        backend = mark.kwargs.get("backend", node.config.getini("ranks_backend"))
        seconds = _seconds(node, "timeout", node.config.getini("ranks_timeout"))
        later = _seconds(node, "group_timeout", seconds + _LATER_S)
        return cls(mark.args, backend or "", seconds, later)

    def size(self, item: Any) -> int:
        """Return the number of ranks of one test, of which there may be several."""
        if len(self.sizes) == 1:
            return self.sizes[0]
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if MANY not in params:
            raise pytest.UsageError(
                f"{item.nodeid}: give several numbers of ranks to the test function, its class or "
                "its module; a parameter can have only one"
            )
        return params[MANY]


def _is_size(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _seconds(node: Any, name: str, otherwise: str | float) -> float:
    mark = node.get_closest_marker("ranks")
    told = mark.kwargs.get(name)
    try:
        seconds = float(otherwise if told is None else told)
    except (TypeError, ValueError):
        seconds = 0.0
    if seconds <= 0:
        raise pytest.UsageError(f"{node.nodeid}: {name} is a number of seconds, not {told!r}")
    return seconds
