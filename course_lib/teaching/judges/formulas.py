"""Recognises the usual mistakes in a formula: each gives numbers of its own in every case."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ..exercise import WrongAnswer
from .trials import Trials, is_text, plain, returned, shown, written

__all__ = ["Mistake", "judge_formula", "name_the_mistake", "plain", "returned"]

# A number in float32 has seven digits, and a difference of two of them one or two fewer.
_SAME = 1e-5

T = TypeVar("T")


class Mistake(NamedTuple):
    """A mistake's name, and the function that makes it."""

    name: str
    makes: Callable


def name_the_mistake(
    would_give: Mapping[str, T] | Iterable[tuple[str, T]],
    is_given: Callable[[T], bool],
    **fields: Any,
) -> None:
    """Raise the first mistake that would give the learner's result, if there is one.

    Args:
        would_give: the result of each usual mistake, by its name.
        is_given: returns whether that is the learner's result.
        fields: for what the learner is told; a text uses those that it needs.
    """
    for name, value in would_give.items() if isinstance(would_give, Mapping) else would_give:
        if is_given(value):
            raise WrongAnswer(name, **fields)


def judge_formula(
    function: Callable,
    right: Callable,
    mistakes: Sequence[Mistake],
    cases: Sequence[tuple],
    why: Callable[[tuple, Any], WrongAnswer | None] | None = None,
) -> None:
    """Raise the first mistake that gives what ``function`` gives in all cases, arguments each.

    Results are numbers, None, or tuples and lists of them; a list counts as the same tuple, and so
    does an array or a tensor. For a wrong value that no mistake explains, ``why(case, given)`` may
    return a WrongAnswer whose text follows the value.
    """
    trials = Trials(function, cases)
    given = trials.given
    wanted = [right(*case) for case in cases]
    wrong = [i for i, pair in enumerate(zip(given, wanted, strict=True)) if not _same(*pair)]
    if not wrong:
        trials.judge_manners(_same)
        return
    first = wrong[0]
    told = {
        "case": written(cases[first]),
        "given": shown(given[first]),
        "wanted": shown(wanted[first]),
    }

    def gives_the_same(makes: Callable) -> bool:
        return all(_same(g, makes(*case)) for g, case in zip(given, cases, strict=True))

    # One that gives the right answers in all cases would explain nothing.
    name_the_mistake(mistakes, gives_the_same, **told)
    # If None may be right, a wrong None does not show a forgotten `return`.
    if given[first] is None and (None not in wanted or all(g is None for g in given)):
        raise WrongAnswer("returns-nothing: by a formula", **told)
    if is_text(given[first]) and not is_text(wanted[first]):
        raise WrongAnswer("not-a-number: but a text", **told)
    factor = _factor(given, wanted)
    if factor is not None:
        raise WrongAnswer("off-by-a-factor", factor=factor, **told)
    reason = why(cases[first], given[first]) if why else None
    if reason:
        raise WrongAnswer("wrong-value: of a formula, and why", reason=reason, **told)
    raise WrongAnswer("wrong-value: of a formula", **told)


def _factor(given: list[Any], wanted: list[Any]) -> float | None:
    """Return the factor by which all numbers are wrong, None if there is none."""
    try:
        if any(map(is_text, given)):
            return None
        factors = [float(g) / w for g, w in zip(given, wanted, strict=True) if w != 0 or g != 0]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    same = all(_same(factor, factors[0]) for factor in factors)
    return factors[0] if same and factors[0] and len(factors) > 1 else None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if one is None or other is None:
        return one is other
    if is_text(one) or is_text(other):  # float("3") is a number, but "3" is none
        return one == other
    try:
        return math.isclose(float(one), float(other), rel_tol=_SAME, abs_tol=1e-12)
    except (TypeError, ValueError):
        return False
