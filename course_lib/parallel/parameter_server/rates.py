"""How much of its learning rate a gradient gets depends on when it comes.

A rule takes the optimizer's own rate, the number of the update (from 0) and the gradient's
staleness, and returns the rate for this one update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ..arguments import function

__all__ = ["RateRule", "constant", "over_staleness", "rates_by", "schedule"]

RateRule = Callable[[float, int, int], float]


def constant(rate: float, step: int, staleness: int) -> float:
    """Return ``rate`` itself."""
    return rate


def over_staleness(rate: float, step: int, staleness: int) -> float:
    """Return ``rate`` divided by the staleness, and undivided for a fresh gradient.

    Source: Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD for Distributed Deep Learning",
    2015 (IJCAI 2016), section 2.4.
    """
    return rate / max(1, staleness)


def schedule(factor: Callable[[int], float], rule: RateRule = constant) -> RateRule:
    """Return the rule that multiplies ``rule`` by ``factor(step)``.

    Args:
        factor: of the number of updates that the server has made so far.
        rule: what is multiplied, e.g. :func:`over_staleness`.

    Raises:
        TypeError: if one is no function.
    """
    function("factor", factor, "lambda step: 0.5 ** (step // 100)")
    function("rule", rule, "over_staleness")

    def scheduled(rate: float, step: int, staleness: int) -> float:
        return rule(rate * factor(step), step, staleness)

    return scheduled


def rates_by(rule: RateRule, rates: Iterable[float], step: int, staleness: int) -> list[float]:
    """Return what ``rule`` makes of each of the optimizer's ``rates``.

    Raises:
        TypeError: if it gives something else than a number.
        ValueError: if it gives a number that is no rate, which would ruin the weights.
    """
    return [_checked(rule(rate, step, staleness), rate, step, staleness) for rate in rates]


def _checked(given: float, rate: float, step: int, staleness: int) -> float:
    call = f"the rate rule gave {given!r} for rate {rate}, step {step}, staleness {staleness}"
    try:
        number = float(given)
    except (TypeError, ValueError):
        raise TypeError(f"{call}: a number is needed") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"{call}: a rate is at least 0, and finite")
    return number
