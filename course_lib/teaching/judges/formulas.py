"""Recognises the usual mistakes in a formula: each gives numbers of its own in every case."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..exercise import WrongAnswer


class Mistake(NamedTuple):
    """A mistake's name, the function that makes it, and what to tell."""

    name: str
    makes: Callable
    explanation: str


def judge_formula(
    function: Callable, right: Callable, mistakes: Sequence[Mistake], cases: Sequence[tuple]
) -> None:
    """Raise the first mistake that gives what ``function`` gives in all cases, arguments each.

    Results are numbers, None, or tuples and lists of them; a list counts as the same tuple, and so
    does an array or a tensor.
    """
    given = [plain(function(*case)) for case in cases]
    wanted = [right(*case) for case in cases]
    wrong = [i for i, pair in enumerate(zip(given, wanted, strict=True)) if not _same(*pair)]
    if not wrong:
        return
    first = wrong[0]
    told = f"for {_written(cases[first])} it returned {_rounded(given[first])}"
    for name, makes, explanation in mistakes:
        # A mistake that gives the right answers in all cases would explain nothing.
        if all(_same(g, makes(*case)) for g, case in zip(given, cases, strict=True)):
            raise WrongAnswer(name, f"{told}: {explanation}")
    if given[first] is None:
        raise WrongAnswer("returns-nothing", f"{told}. Is there a `return` on every path?")
    raise WrongAnswer("wrong-value", f"{told}, not {_rounded(wanted[first])}")


def plain(value: Any) -> Any:
    """Return arrays, tensors and their numbers as Python's own, also inside of lists."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value)) if type(value) in (tuple, list) else [*value]
    return value.tolist() if hasattr(value, "tolist") else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if one is None or other is None:
        return one is other
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-9, abs_tol=1e-12)
    except (TypeError, ValueError):
        return False


def _rounded(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_rounded, value)).join("()" if isinstance(value, tuple) else "[]")
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _written(case: tuple) -> str:
    return ", ".join("a function" if callable(value) else repr(value) for value in case)
