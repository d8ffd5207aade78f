"""The one idea: how much of its learning rate a gradient gets depends on when it comes.

A rule takes the optimizer's own rate, the number of the update (from 0) and the gradient's
staleness, and returns the rate for this one update.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["RateRule", "constant", "over_staleness", "schedule"]

RateRule = Callable[[float, int, int], float]


def constant(rate: float, step: int, staleness: int) -> float:
    """Return ``rate`` itself."""
    return rate


def over_staleness(rate: float, step: int, staleness: int) -> float:
    """Return ``rate`` divided by the staleness, and undivided for a fresh gradient.

    Source: Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD for Distributed Deep Learning",
    2015 (IJCAI 2016), equation 6.
    """
    return rate / max(1, staleness)


def schedule(factor: Callable[[int], float], rule: RateRule = constant) -> RateRule:
    """Return the rule that multiplies ``rule`` by ``factor(step)``.

    Args:
        factor: of the number of updates that the server has made so far.
        rule: what is multiplied, e.g. :func:`over_staleness`.
    """

    def scheduled(rate: float, step: int, staleness: int) -> float:
        return rule(rate * factor(step), step, staleness)

    return scheduled
