"""A synchronous step lasts as long as its slowest rank: the maximum of R samples.

Source of the order statistics: David and Nagaraja, "Order Statistics", 3rd edition, 2003,
chapters 2 to 4 (exponential: mean times the R-th harmonic number). The ranks are taken as
independent and alike, with a new draw each step; a rank that is always slow is another case.
Times in seconds; a slowdown has no unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from course_lib.teaching.cost.checked import at_least, count, positive

__all__ = [
    "expected_slowest_exponential",
    "expected_slowest_normal",
    "expected_slowest_of",
    "harmonic",
    "slowdown",
]

_EXACT = 100_000
_EULER = 0.57721566490153286
_WIDTH, _POINTS = 12.0, 24_001


def harmonic(ranks: int) -> float:
    """Return 1 + 1/2 + ... + 1/R (above 10**5 by Euler's expansion, error below 1e-16 relative)."""
    if count("ranks", ranks) <= _EXACT:
        return math.fsum(1.0 / k for k in range(1, ranks + 1))
    return math.log(ranks) + _EULER + 1 / (2 * ranks) - 1 / (12 * ranks**2)


def expected_slowest_exponential(ranks: int, base: float, mean_delay: float) -> float:
    """Return the expected seconds of the slowest of R ranks, exact.

    Each takes ``base`` plus an exponential delay of mean ``mean_delay`` (both seconds):
    base + mean_delay * H_R, which grows like ln R.
    """
    return at_least("base", base) + at_least("mean_delay", mean_delay) * harmonic(ranks)


def expected_slowest_normal(ranks: int, mean: float, deviation: float) -> float:
    """Return the expected seconds of the slowest of R ranks with normal step times.

    mean + deviation * E_R with E_R = integral of x R phi(x) Phi(x)**(R - 1) dx, by the trapezoid
    rule from -12 to 12 (absolute error below 1e-9 up to R = 10**6). About sqrt(2 ln R) for large R.
    """
    points = np.linspace(-_WIDTH, _WIDTH, _POINTS)
    above = 0.5 * np.array([math.erfc(x / math.sqrt(2)) for x in points])
    # Far to the left Phi is too small to tell from 0, whose logarithm is infinite.
    log_below = np.log1p(-np.minimum(above, 1 - 2**-53))
    power = np.exp((count("ranks", ranks) - 1) * log_below)
    density = np.exp(-points * points / 2) / math.sqrt(2 * math.pi)
    values = points * ranks * density * power
    step = points[1] - points[0]
    standard = float(step * (values.sum() - (values[0] + values[-1]) / 2))
    return at_least("mean", mean) + at_least("deviation", deviation) * standard


def expected_slowest_of(samples: Sequence[float], ranks: int) -> float:
    """Return the expected slowest of R draws (with replacement) from measured step times.

    Exact for the empirical distribution: the i-th smallest of k samples is the maximum with
    probability (i/k)**R - ((i-1)/k)**R. It can never exceed the largest sample: for R above the
    number of samples it is a lower bound of the truth.

    Args:
        samples: seconds, one a measured step.
        ranks: R.
    """
    ordered = np.sort(np.asarray(samples, dtype=float))
    if not len(ordered) or not np.isfinite(ordered).all():
        raise ValueError("needs at least one measured time, all of them finite")
    edges = (np.arange(len(ordered) + 1) / len(ordered)) ** count("ranks", ranks)
    return float(ordered @ np.diff(edges))


def slowdown(slowest: float, mean: float) -> float:
    """Return how many times longer the slowest takes than the mean, both in seconds."""
    return slowest / positive("mean", mean)
