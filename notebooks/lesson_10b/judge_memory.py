"""The bytes of model, gradients and optimizer on each rank, by stage of ZeRO.

The judge of lesson 10b's exercise on memory. Source of the formula:
Rajbhandari and others, "ZeRO", 2020, section 5 and figure 1: mixed precision with Adam.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from decimal import Decimal

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import name_the_mistake, plain

WEIGHTS, GRADIENTS, OPTIMIZER = 2, 2, 12  # bytes a parameter
STAGES = (0, 1, 2, 3)
_CASES = ((8_000, 4), (70_000_000_000, 64), (1_000_000, 1))


def expected(stage: int, parameters: int, ranks: int, optimizer: float = OPTIMIZER) -> float:
    """Return the bytes on each rank at a stage from 0 (nothing sharded) to 3 (everything)."""
    kinds = ((WEIGHTS, 3), (GRADIENTS, 2), (optimizer, 1))
    return parameters * sum(
        each / ranks if stage >= sharded_from else each for each, sharded_from in kinds
    )


def judge_bytes_per_rank(bytes_per_rank: Callable[[int, int, int], float]) -> None:
    """Raise WrongAnswer unless the learner's function gives the same numbers as the formula."""
    found: dict[tuple[int, int, int], float] = {}
    for parameters, ranks in _CASES:
        for stage in STAGES:
            value = plain(bytes_per_rank(stage, parameters, ranks))
            if value is None:
                raise WrongAnswer("returns-nothing", stage=stage)
            if not isinstance(value, numbers.Real | Decimal) or isinstance(value, bool):
                raise WrongAnswer("not-a-number", stage=stage, value=repr(value))
            found[stage, parameters, ranks] = float(value)

    def gives_the_same(wrong: Callable[[int, int, int], float]) -> bool:
        return all(_close(value, wrong(*case)) for case, value in found.items())

    name_the_mistake(_MISTAKES, gives_the_same)
    for (stage, parameters, ranks), value in found.items():
        right = expected(stage, parameters, ranks)
        if not _close(value, right):
            raise WrongAnswer(
                "wrong-number",
                stage=stage,
                parameters=parameters,
                ranks=ranks,
                right=right,
                value=value,
            )


def _close(one: float, other: float) -> bool:
    # Within a byte: rounding is right, too.
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=min(2.0, abs(other) / 1e3))


_FROM = ((WEIGHTS, 3), (GRADIENTS, 2), (OPTIMIZER, 1))  # bytes, and the stage that divides them
_MISTAKES: tuple[tuple[str, Callable[[int, int, int], float]], ...] = (
    ("forgets-the-master-copy", lambda stage, n, p: expected(stage, n, p, optimizer=8)),
    ("off-by-one-stage", lambda stage, n, p: expected(stage + 1, n, p)),
    ("shards-everything", lambda stage, n, p: expected(3 if stage else 0, n, p)),
    ("nothing-divided", lambda stage, n, p: expected(0, n, p)),
    (
        "weights-first",
        lambda stage, n, p: (
            n * sum(b / p if stage >= s else b for b, s in ((2, 1), (2, 2), (12, 3)))
        ),
    ),
    ("only-one-kind", lambda stage, n, p: n * sum(b / p if stage == s else b for b, s in _FROM)),
    ("all-ranks-together", lambda stage, n, p: p * expected(stage, n, p)),
    ("for-one-parameter", lambda stage, n, p: expected(stage, 1, p)),
    ("in-gigabytes", lambda stage, n, p: expected(stage, n, p) / 1e9),
)
