"""A wrong formula gives a number by which one can tell which formula it was."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator

from course_lib.teaching.cost import Link
from course_lib.teaching.exercise import WrongAnswer

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
        raise WrongAnswer("returns-nothing", "it returns None")
    if not isinstance(got, numbers.Real):
        raise WrongAnswer("not-a-number", f"it returns a {type(got).__name__}, not a number")
    right = _right(p, alpha, beta, gamma)
    if _same(got, right):
        return
    told = f"with p = {p}, alpha = {alpha:g}, beta = {beta:g}, gamma = {gamma:g} it returns "
    told += f"{got:.4g}"
    if p == 2 and got == math.inf:
        raise WrongAnswer(
            "overtakes-by-additions",
            f"{told}. With two ranks both send n bytes, but recursive doubling adds n bytes and "
            "the ring n/2: it does overtake, unless gamma is 0",
        )
    for name, value, explanation in _suspects(p, alpha, beta, gamma, right):
        if _same(got, value):
            raise WrongAnswer(name, f"{told}. {explanation}")
    if not math.isfinite(got):
        raise WrongAnswer(
            "wrongly-never",
            f"{told}, but the ring does overtake: what it saves a byte must be above 0. Are its "
            "terms the right way round, and is lg to base 2?",
        )
    if got < 0:
        raise WrongAnswer(
            "wrong-sign",
            f"{told} bytes. The ring's additional steps have to be paid by what it saves per "
            "byte: mind which difference stands on which side",
        )
    raise WrongAnswer(*_wrong_term(function, told, p, alpha, beta, gamma))


def _same(got: float, value: float) -> bool:
    # Formulas written differently differ by rounding only; and whoever rounds n*, or cuts it off,
    # to whole bytes is right.
    return math.isclose(got, value, rel_tol=1e-6, abs_tol=1.0)


def _right(p: int, alpha: float, beta: float, gamma: float) -> float:
    rate = 1 / gamma if gamma else math.inf
    return crossover_bytes("recursive doubling", "ring", p, Link(alpha, 1 / beta, rate))


def _wrong_term(function: Callable, told: str, *case: float) -> tuple[str, str]:
    """Return the name and text of which of the three terms is wrong, as nothing else is known."""
    p, alpha, beta, gamma = case
    few = p, alpha, beta, 0.0  # bytes, but no additions
    if gamma and p > 2:
        factors = [function(*given) / _right(*given) for given in (case, few)]
        if math.isclose(factors[1], 1, rel_tol=1e-6):
            return (
                "wrong-additions",
                f"{told}. Without additions, gamma = 0, it is right. So look at the factor of "
                "gamma: how many bytes does the one add and the other not?",
            )
        if math.isclose(*factors, rel_tol=1e-6):
            return (
                "wrong-steps",
                f"{told}. The seconds a byte are right, the factor of alpha is not: how many "
                "steps does the one take and the other not?",
            )
    return (
        "wrong-bytes",
        f"{told}, which is not where the two lines meet. Work out both times with your n* and "
        "these four numbers: they ought to be equal. Begin with the factor of beta, the bytes that "
        "one moves and the other does not",
    )


def _suspects(
    p: int, alpha: float, beta: float, gamma: float, right: float
) -> Iterator[tuple[str, float, str]]:
    lg = math.log2(p)
    ring_steps, ring_bytes, ring_added = 2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p

    def meet(steps: float, per_beta: float, per_gamma: float) -> float:
        per_byte = per_beta * beta + per_gamma * gamma
        return steps * alpha / per_byte if per_byte else math.inf

    if gamma:
        yield (
            "forgets-gamma",
            meet(ring_steps - lg, lg - ring_bytes, 0),
            "That leaves out the additions: recursive doubling adds lg p times n bytes, the ring "
            "(p - 1)/p times n",
        )
        yield (
            "additions-like-bytes",
            meet(ring_steps - lg, lg - ring_bytes, lg - ring_bytes),
            "That takes as many bytes for added as for moved, but the ring adds on the first half "
            "of its way only: (p - 1)/p times n bytes",
        )
    ln = math.log(p)
    for steps, per_byte in (ln, ln), (ln, lg), (lg, ln):
        yield (
            "natural-logarithm",
            meet(ring_steps - steps, per_byte - ring_bytes, per_byte - ring_added),
            "`math.log` is the natural logarithm; lg is `math.log2`",
        )
    yield "alpha-over-beta", alpha / beta, "alpha / beta is where one message pays as much for both"
    if gamma:
        for inverse in (1 / beta, 1 / gamma), (1 / beta, gamma):
            per_byte = (lg - ring_bytes) * inverse[0] + (lg - ring_added) * inverse[1]
            yield (
                "one-over-beta",
                (ring_steps - lg) * alpha / per_byte,
                "beta is in seconds a byte already, so it is multiplied with bytes; 1/beta would "
                "be the bandwidth",
            )
    yield (
        "rings-steps-only",
        meet(ring_steps, lg - ring_bytes, lg - ring_added),
        "The ring takes 2 (p - 1) steps, but recursive doubling takes some too: lg p of them",
    )
    yield (
        "steps-added",
        meet(ring_steps + lg, lg - ring_bytes, lg - ring_added),
        "That adds the steps of both; what counts is how many more one of them takes",
    )
    yield (
        "rabenseifner-instead",
        meet(lg, lg - ring_bytes, lg - ring_added),
        "That is where Rabenseifner overtakes. The ring takes 2 (p - 1) steps",
    )
    yield (
        "half-the-ring",
        meet((p - 1) - lg, lg - ring_added, lg - ring_added),
        "A ring goes round twice: reduce-scatter and all-gather",
    )
    yield (
        "half-the-ring",
        meet(ring_steps - lg, lg - ring_added, lg - ring_added),
        "A ring goes round twice: it sends 2 (p - 1)/p times n bytes",
    )
    for size in (4, 8):
        yield "numbers-not-bytes", right / size, f"That is a count of numbers of {size} bytes each"
    yield "bits-not-bytes", right * 8, "That is in bits"
    yield (
        "wrong-sign",
        -right,
        "The size is right, the sign is not: n* is the additional steps' time over what is *saved* "
        "a byte",
    )
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
