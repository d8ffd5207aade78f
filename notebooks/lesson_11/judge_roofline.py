"""Operations, bytes and the least time: each usual mistake gives numbers of its own.

The judges of the two exercises of lesson 11 about the roofline.
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
    Mistake(
        "a-product-is-one-operation",
        lambda b, i, o, s: intensity(b, i, o, s) / 2,
        "it counts a multiplication and its addition as one operation. They are two",
    ),
    Mistake(
        "numbers-not-bytes",
        lambda b, i, o, s: intensity(b, i, o, 1),
        "it divides by numbers. The roofline's bandwidth is in bytes: a number has `size` of them",
    ),
    Mistake(
        "always-four-bytes",
        lambda b, i, o, s: intensity(b, i, o, 4),
        "it takes 4 bytes for every number; ask `size`: bfloat16 has 2, float64 has 8",
    ),
    Mistake(
        "forgets-the-weights",
        lambda b, i, o, s: 2 * b * i * o / (s * (b * i + b * o)),
        "the weights (and the bias) do not occur among the bytes; they have to be fetched, too",
    ),
    Mistake(
        "only-the-weights",
        lambda b, i, o, s: 2 * b * i * o / (s * i * o),
        "only the weights occur among the bytes. Input, bias and output are moved, too",
    ),
    Mistake(
        "forgets-the-output",
        lambda b, i, o, s: 2 * b * i * o / (s * (b * i + i * o + o)),
        "the output does not occur among the bytes: it has to be written",
    ),
    Mistake(
        "forgets-the-input",
        lambda b, i, o, s: 2 * b * i * o / (s * (b * o + i * o + o)),
        "the input does not occur among the bytes: it has to be read",
    ),
    Mistake(
        "forgets-the-bias",
        lambda b, i, o, s: 2 * b * i * o / (s * (b * i + i * o + b * o)),
        "the bias does not occur among the bytes: a number for each output",
    ),
    Mistake(
        "weights-for-every-sample",
        lambda b, i, o, s: 2 * b * i * o / (s * b * (i + i * o + o + o)),
        "it fetches the weights anew for every sample. Then batching would not help at all; they "
        "are fetched once for the whole batch",
    ),
    Mistake(
        "bias-for-every-sample",
        lambda b, i, o, s: 2 * b * i * o / (s * (b * i + i * o + 2 * b * o)),
        "it fetches the bias anew for every sample; it is moved once",
    ),
    Mistake(
        "bias-among-the-operations",
        lambda b, i, o, s: (2 * i + 1) * b * o / (s * (b * i + i * o + o + b * o)),
        "it counts the additions of the bias as operations. Right in principle; the task leaves "
        "them out, as `FlopCounterMode` does",
    ),
    Mistake(
        "bytes-for-each-flop",
        lambda b, i, o, s: 1 / intensity(b, i, o, s),
        "these are bytes for each operation: turn the fraction round",
    ),
    Mistake(
        "flop-not-intensity",
        lambda b, i, o, s: 2 * b * i * o,
        "these are the operations. Divide them by the bytes",
    ),
)


def judge_intensity(linear_intensity: Callable) -> None:
    """Raise WrongAnswer unless the function gives FLOP/byte in all cases."""
    judge_formula(linear_intensity, intensity, _INTENSITY_MISTAKES, _INTENSITY_CASES)


# ---- the least time ---------------------------------------------------------------------------

Layers = Sequence[tuple[float, float]]


def least(layers: Layers, peak: float, bandwidth: float) -> float:
    """Return the least seconds of layers, pairs of FLOP and bytes, one after another."""
    return sum(max(flops / peak, moved / bandwidth) for flops, moved in layers)


# Ridge at 10, 4 and 50 FLOP/byte; in each case layers on both sides of it.
_LEAST_CASES: tuple[tuple[Layers, float, float], ...] = (
    ([(2e9, 1e8), (1e6, 8e6), (5e8, 4e8)], 1e11, 1e10),
    ([(3e6, 4e6), (8e8, 1e8), (7e5, 3e6)], 2e10, 5e9),
    ([(4e9, 2e8), (6e9, 1e7)], 1e12, 2e10),
)


def _totals(layers: Layers) -> tuple[float, float]:
    return sum(flops for flops, _ in layers), sum(moved for _, moved in layers)


def _max_of_totals(layers: Layers, peak: float, bandwidth: float) -> float:
    flops, moved = _totals(layers)
    return max(flops / peak, moved / bandwidth)


_LEAST_MISTAKES = (
    Mistake(
        "roof-over-the-total",
        _max_of_totals,
        "it takes all operations and all bytes together, and the larger of the two times. But one "
        "layer's arithmetic does not hide another's traffic: they come one after another, and each "
        "has its own larger time",
    ),
    Mistake(
        "adds-the-two-times",
        lambda ls, p, b: _totals(ls)[0] / p + _totals(ls)[1] / b,
        "it adds arithmetic and traffic. A processor fetches while it computes: the larger of the "
        "two counts, for each layer",
    ),
    Mistake(
        "takes-the-smaller-time",
        lambda ls, p, b: sum(min(f / p, m / b) for f, m in ls),
        "it takes the smaller of the two times. The slower one is what has to be waited for (the "
        "minimum stands in the formula for the *speed*)",
    ),
    Mistake(
        "arithmetic-only",
        lambda ls, p, b: _totals(ls)[0] / p,
        "the bytes do not occur: that is the time with a memory without limit",
    ),
    Mistake(
        "memory-only",
        lambda ls, p, b: _totals(ls)[1] / b,
        "the operations do not occur: that is the time with a processor without limit",
    ),
    Mistake(
        "slowest-layer-only",
        lambda ls, p, b: max(max(f / p, m / b) for f, m in ls),
        "it is the time of the slowest layer. They come one after another: add up",
    ),
    Mistake(
        "mean-not-sum",
        lambda ls, p, b: least(ls, p, b) / len(ls),
        "it is the mean over the layers. They come one after another: add up",
    ),
    Mistake(
        "first-layer-only",
        lambda ls, p, b: least(ls[:1], p, b),
        "it is the time of the first layer. Is there a `return` inside of the loop?",
    ),
    Mistake(
        "flop-and-bytes-exchanged",
        lambda ls, p, b: sum(max(m / p, f / b) for f, m in ls),
        "it divides bytes by the peak and operations by the bandwidth; a pair is (FLOP, bytes)",
    ),
    Mistake(
        "speed-not-time",
        lambda ls, p, b: sum(min(p, b * f / m) for f, m in ls),
        "these are FLOP/s, the height of the roof. The time is the operations divided by it",
    ),
    Mistake(
        "a-list-not-a-sum",
        lambda ls, p, b: [max(f / p, m / b) for f, m in ls],
        "these are the right times, one for each layer: add them up",
    ),
)


def judge_least(least_seconds: Callable) -> None:
    """Raise WrongAnswer unless the function adds up each layer's larger time."""
    judge_formula(least_seconds, least, _LEAST_MISTAKES, _LEAST_CASES)
