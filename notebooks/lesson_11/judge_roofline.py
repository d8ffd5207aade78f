"""The judges of lesson 11 for the two exercises about the roofline.

Each common mistake leads to numbers that no other mistake gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.teaching.judges.formulas import Mistake, judge_formula

# ---- intensity --------------------------------------------------------------------------------


def intensity(b: int, i: int, o: int, size: int) -> float:
    """Return the FLOP/byte of a linear layer with bias, forward."""
    return 2 * b * i * o / (size * (b * i + i * o + o + b * o))


_INTENSITY_CASES = ((1, 1024, 1024, 4), (64, 784, 512, 4), (7, 3, 5, 2), (256, 4096, 1000, 8))

_INTENSITY_MISTAKES = (
    Mistake("a-product-is-one-operation", lambda b, i, o, s: intensity(b, i, o, s) / 2),
    Mistake("numbers-not-bytes", lambda b, i, o, s: intensity(b, i, o, 1)),
    Mistake("always-four-bytes", lambda b, i, o, s: intensity(b, i, o, 4)),
    Mistake("forgets-the-weights", lambda b, i, o, s: 2 * b * i * o / (s * (b * i + b * o))),
    Mistake("only-the-weights", lambda b, i, o, s: 2 * b * i * o / (s * i * o)),
    Mistake("forgets-the-output", lambda b, i, o, s: 2 * b * i * o / (s * (b * i + i * o + o))),
    Mistake("forgets-the-input", lambda b, i, o, s: 2 * b * i * o / (s * (b * o + i * o + o))),
    Mistake("forgets-the-bias", lambda b, i, o, s: 2 * b * i * o / (s * (b * i + i * o + b * o))),
    Mistake(
        "weights-for-every-sample", lambda b, i, o, s: 2 * b * i * o / (s * b * (i + i * o + o + o))
    ),
    Mistake(
        "bias-for-every-sample",
        lambda b, i, o, s: 2 * b * i * o / (s * (b * i + i * o + 2 * b * o)),
    ),
    Mistake(
        "bias-among-the-operations",
        lambda b, i, o, s: (2 * i + 1) * b * o / (s * (b * i + i * o + o + b * o)),
    ),
    Mistake("bytes-for-each-flop", lambda b, i, o, s: 1 / intensity(b, i, o, s)),
    Mistake("flop-not-intensity", lambda b, i, o, s: 2 * b * i * o),
)


def judge_intensity(linear_intensity: Callable) -> None:
    """Raise WrongAnswer unless the function gives FLOP/byte in all cases."""
    judge_formula(linear_intensity, intensity, _INTENSITY_MISTAKES, _INTENSITY_CASES)


# ---- the least time ---------------------------------------------------------------------------

Layers = Sequence[tuple[float, float]]


def least(layers: Layers, peak: float, bandwidth: float) -> float:
    """Return the least seconds of layers, pairs of FLOP and bytes, one after another."""
    return sum(max(flops / peak, moved / bandwidth) for flops, moved in layers)


# Ridge at 10, 4, 50 and 10 FLOP/byte; in each case layers on both sides of it. The last has a layer
# that computes nothing, such as a copy.
_LEAST_CASES: tuple[tuple[Layers, float, float], ...] = (
    ([(2e9, 1e8), (1e6, 8e6), (5e8, 4e8)], 1e11, 1e10),
    ([(3e6, 4e6), (8e8, 1e8), (7e5, 3e6)], 2e10, 5e9),
    ([(4e9, 2e8), (6e9, 1e7)], 1e12, 2e10),
    ([(3e9, 1e8), (0.0, 4e8), (5e8, 2e8)], 1e11, 1e10),
)


def _totals(layers: Layers) -> tuple[float, float]:
    return sum(flops for flops, _ in layers), sum(moved for _, moved in layers)


def _max_of_totals(layers: Layers, peak: float, bandwidth: float) -> float:
    flops, moved = _totals(layers)
    return max(flops / peak, moved / bandwidth)


_LEAST_MISTAKES = (
    Mistake("roof-over-the-total", _max_of_totals),
    Mistake("adds-the-two-times", lambda ls, p, b: _totals(ls)[0] / p + _totals(ls)[1] / b),
    Mistake("takes-the-smaller-time", lambda ls, p, b: sum(min(f / p, m / b) for f, m in ls)),
    Mistake("arithmetic-only", lambda ls, p, b: _totals(ls)[0] / p),
    Mistake("memory-only", lambda ls, p, b: _totals(ls)[1] / b),
    Mistake("slowest-layer-only", lambda ls, p, b: max(max(f / p, m / b) for f, m in ls)),
    Mistake("mean-not-sum", lambda ls, p, b: least(ls, p, b) / len(ls)),
    Mistake("first-layer-only", lambda ls, p, b: least(ls[:1], p, b)),
    Mistake("flop-and-bytes-exchanged", lambda ls, p, b: sum(max(m / p, f / b) for f, m in ls)),
    Mistake("speed-not-time", lambda ls, p, b: sum(min(p, b * f / m) for f, m in ls)),
    Mistake("a-list-not-a-sum", lambda ls, p, b: [max(f / p, m / b) for f, m in ls]),
)


def judge_least(least_seconds: Callable) -> None:
    """Raise WrongAnswer unless the function adds up each layer's larger time."""
    judge_formula(least_seconds, least, _LEAST_MISTAKES, _LEAST_CASES)
