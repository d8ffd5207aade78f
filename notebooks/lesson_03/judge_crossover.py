"""A wrong formula gives a number by which one can tell which formula it was."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable

from course_lib.teaching.cost import Link
from course_lib.teaching.exercise import WrongAnswer

from .choosing import crossover_bytes

__all__ = ["judge_crossover"]

# p, alpha (s), beta (s/byte), gamma (s/byte)
CASES = ((4, 1e-3, 1e-8, 0.0), (8, 5e-6, 1e-10, 2e-10), (64, 2e-5, 8e-10, 1e-10))


def judge_crossover(function: Callable) -> None:
    for case in CASES:
        _judge(function, *case)
    _judge_never(function)


def _judge(function: Callable, p: int, alpha: float, beta: float, gamma: float) -> None:
    got = function(p, alpha, beta, gamma)
    if got is None:
        raise WrongAnswer("returns-nothing", "it returns None")
    if not isinstance(got, numbers.Real):
        raise WrongAnswer("not-a-number", f"it returns a {type(got).__name__}, not a number")
    right = _right(p, alpha, beta, gamma)
    if math.isclose(got, right, rel_tol=1e-6):
        return
    where = f"with p = {p}, alpha = {alpha:g}, beta = {beta:g}, gamma = {gamma:g}"
    for name, value, explanation in _suspects(p, alpha, beta, gamma, right):
        if value is not None and math.isclose(got, value, rel_tol=1e-6):
            raise WrongAnswer(name, f"{where} it returns {got:.4g}. {explanation}")
    if got < 0:
        raise WrongAnswer(
            "wrong-sign",
            f"{where} it returns {got:.4g} bytes. The ring's additional steps have to be paid by "
            "what it saves per byte: mind which difference stands on which side",
        )
    raise WrongAnswer("wrong-number", f"{where} it returns {got:.4g}, but {right:.4g} is right")


def _right(p: int, alpha: float, beta: float, gamma: float) -> float:
    rate = 1 / gamma if gamma else math.inf
    return crossover_bytes("recursive doubling", "ring", p, Link(alpha, 1 / beta, rate))


def _suspects(p: int, alpha: float, beta: float, gamma: float, right: float):
    lg = math.log2(p)
    steps = 2 * (p - 1) - lg
    per_byte = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    ln = math.log(p)
    by_ln = (ln - 2 * (p - 1) / p) * beta + (ln - (p - 1) / p) * gamma
    half_ring = (lg - (p - 1) / p) * (beta + gamma)
    yield (
        "forgets-gamma",
        steps * alpha / ((lg - 2 * (p - 1) / p) * beta) if gamma else None,
        "That leaves out the additions: recursive doubling adds lg p times n bytes, the ring "
        "(p - 1)/p times n",
    )
    yield (
        "natural-logarithm",
        (2 * (p - 1) - ln) * alpha / by_ln if by_ln else None,
        "`math.log` is the natural logarithm; lg is `math.log2`",
    )
    yield "alpha-over-beta", alpha / beta, "alpha / beta is where one message pays as much for both"
    yield (
        "rabenseifner-instead",
        lg * alpha / per_byte,
        "That is where Rabenseifner overtakes. The ring takes 2 (p - 1) steps",
    )
    yield (
        "half-the-ring",
        ((p - 1) - lg) * alpha / half_ring,
        "A ring goes round twice: reduce-scatter and all-gather",
    )
    yield (
        "half-the-ring",
        steps * alpha / half_ring,
        "A ring goes round twice: it sends 2 (p - 1)/p times n bytes",
    )
    for size in (4, 8):
        yield "numbers-not-bytes", right / size, f"That is a count of numbers of {size} bytes each"
    yield "bits-not-bytes", right * 8, "That is in bits"
    yield "wrong-sign", -right, "The size is right, the sign is not"
    yield "upside-down", 1 / right, "That is one over the answer"


def _judge_never(function: Callable) -> None:
    try:
        got = function(2, 1e-3, 1e-8, 0.0)
    except ZeroDivisionError as error:
        raise WrongAnswer(
            "never-overtakes",
            "with p = 2 and gamma = 0 it divides by zero. Both send n bytes then, and the ring "
            "needs two steps instead of one: it never overtakes, so return math.inf",
        ) from error
    if got != math.inf:
        raise WrongAnswer(
            "never-overtakes",
            f"with p = 2 and gamma = 0 it returns {got!r}. Both send n bytes then, and the ring "
            "needs two steps instead of one: it never overtakes, so return math.inf",
        )
