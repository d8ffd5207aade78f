"""Judges the crossover, and tells from a wrong number which formula gave it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator

from course_lib.teaching.cost import Link
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import name_the_mistake

from .choosing import crossover_bytes

__all__ = ["judge_crossover"]

# p, alpha (s), beta (s/byte), gamma (s/byte). The first has all three: it tells most mistakes
# apart. With two ranks the ring saves no bytes, only additions.
CASES = (
    (8, 5e-6, 1e-10, 2e-10),
    (64, 2e-5, 8e-10, 1e-10),
    (4, 1e-3, 1e-8, 0.0),
    (2, 1e-3, 1e-8, 1e-8),
)


def judge_crossover(function: Callable) -> None:
    for case in CASES:
        _judge(function, *case)
    _judge_never(function)


def _judge(function: Callable, p: int, alpha: float, beta: float, gamma: float) -> None:
    got = function(p, alpha, beta, gamma)
    if got is None:
        raise WrongAnswer("returns-nothing")
    if not isinstance(got, numbers.Real):
        raise WrongAnswer("not-a-number", kind=type(got).__name__)
    right = _right(p, alpha, beta, gamma)
    if _same(got, right):
        return
    told = {"p": p, "alpha": alpha, "beta": beta, "gamma": gamma, "got": got}
    if p == 2 and got == math.inf:
        raise WrongAnswer("overtakes-by-additions", **told)
    suspects = _suspects(p, alpha, beta, gamma, right)
    name_the_mistake(suspects, lambda value: _same(got, value), **told)
    if not math.isfinite(got):
        raise WrongAnswer("wrongly-never", **told)
    if got < 0:
        raise WrongAnswer("wrong-sign: of another size", **told)
    raise WrongAnswer(_wrong_term(function, p, alpha, beta, gamma), **told)


def _same(got: float, value: float) -> bool:
    # Formulas written differently differ by rounding only; n* may be rounded or cut off to whole
    # bytes. A whole n* may come out just below itself, so that a whole byte is cut off.
    return math.isclose(got, value, rel_tol=1e-6, abs_tol=1 + 1e-6)


def _right(p: int, alpha: float, beta: float, gamma: float) -> float:
    rate = 1 / gamma if gamma else math.inf
    return crossover_bytes("recursive doubling", "ring", p, Link(alpha, 1 / beta, rate))


def _wrong_term(function: Callable, *case: float) -> str:
    """Return which of the three terms is wrong, for a formula that is none of the suspects."""
    p, alpha, beta, gamma = case
    few = p, alpha, beta, 0.0  # bytes, but no additions
    if gamma and p > 2:
        factors = [function(*given) / _right(*given) for given in (case, few)]
        if math.isclose(factors[1], 1, rel_tol=1e-6):
            return "wrong-additions"
        if math.isclose(*factors, rel_tol=1e-6):
            return "wrong-steps"
    return "wrong-bytes"


def _suspects(
    p: int, alpha: float, beta: float, gamma: float, right: float
) -> Iterator[tuple[str, float]]:
    lg = math.log2(p)
    ring_steps, ring_bytes, ring_added = 2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p

    def meet(steps: float, per_beta: float, per_gamma: float) -> float:
        per_byte = per_beta * beta + per_gamma * gamma
        return steps * alpha / per_byte if per_byte else math.inf

    if gamma:
        yield ("forgets-gamma", meet(ring_steps - lg, lg - ring_bytes, 0))
        yield ("additions-like-bytes", meet(ring_steps - lg, lg - ring_bytes, lg - ring_bytes))
    ln = math.log(p)
    for steps, per_byte in (ln, ln), (ln, lg), (lg, ln):
        yield (
            "natural-logarithm",
            meet(ring_steps - steps, per_byte - ring_bytes, per_byte - ring_added),
        )
    yield ("alpha-over-beta", alpha / beta)
    if gamma:
        for inverse in (1 / beta, 1 / gamma), (1 / beta, gamma):
            per_byte = (lg - ring_bytes) * inverse[0] + (lg - ring_added) * inverse[1]
            yield ("one-over-beta", (ring_steps - lg) * alpha / per_byte)
    yield ("rings-steps-only", meet(ring_steps, lg - ring_bytes, lg - ring_added))
    yield ("steps-added", meet(ring_steps + lg, lg - ring_bytes, lg - ring_added))
    yield ("rabenseifner-instead", meet(lg, lg - ring_bytes, lg - ring_added))
    yield ("half-the-ring", meet((p - 1) - lg, lg - ring_added, lg - ring_added))
    yield ("half-the-ring: in bytes", meet(ring_steps - lg, lg - ring_added, lg - ring_added))
    yield ("numbers-not-bytes: of 4 bytes", right / 4)
    yield ("numbers-not-bytes: of 8 bytes", right / 8)
    yield ("bits-not-bytes", right * 8)
    if p != 4:
        yield ("size-is-fixed", _right(4, alpha, beta, gamma))
    yield ("wrong-sign", -right)
    yield ("upside-down", 1 / right)


def _judge_never(function: Callable) -> None:
    try:
        got = function(2, 1e-3, 1e-8, 0.0)
    except ZeroDivisionError as error:
        raise WrongAnswer("never-overtakes") from error
    if got != math.inf:
        raise WrongAnswer("never-overtakes: another number", got=repr(got))
