"""Learning rates for batches that R ranks make R times as large, and warm-up.

Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017,
arXiv:1706.02677, sections 2.1 (linear scaling rule) and 2.2 (warm-up). The square-root rule:
Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014,
arXiv:1404.5997.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

__all__ = ["Rule", "WarmUp", "scaled_rate", "warm_up"]

Rule = Literal["none", "linear", "square root"]
WarmUp = Literal["none", "constant", "gradual"]
_FACTOR: dict[str, Callable[[int], float]] = {
    "none": lambda workers: 1.0,
    "linear": float,
    "square root": math.sqrt,
}
_WARM_UPS = ("none", "constant", "gradual")


def scaled_rate(rate: float, workers: int, rule: Rule = "linear") -> float:
    """Return the learning rate for a batch ``workers`` times as large as that of ``rate``.

    ============= ==========================================================
    "none"        ``rate``
    "linear"      ``rate * workers``: R steps of one batch become one of R batches
    "square root" ``rate * sqrt(workers)``: keeps the variance of a step
    ============= ==========================================================

    Raises:
        ValueError: for another rule, or fewer than one worker.
    """
    if rule not in _FACTOR:
        raise ValueError(f"rule must be one of {', '.join(_FACTOR)}, not {rule!r}")
    if workers < 1:
        raise ValueError(f"there is at least one worker, not {workers}")
    return rate * _FACTOR[rule](workers)


def warm_up(step: int, steps: int, rate: float, start: float, kind: WarmUp = "gradual") -> float:
    """Return the learning rate at a step, the first being 0.

    ========== ==============================================================
    "none"     ``rate`` from the first step on
    "constant" ``start`` for the first ``steps`` steps, then ``rate``
    "gradual"  from ``start`` in equal increments, ``rate`` from step ``steps`` on
    ========== ==============================================================

    Args:
        step: steps done so far, at least 0.
        steps: length of the warm-up in steps; 0 is no warm-up.
        rate: learning rate after the warm-up.
        start: learning rate at its beginning, usually that of one worker.
        kind: one of the three.

    Raises:
        ValueError: for another kind, or a negative number of steps.
    """
    if kind not in _WARM_UPS:
        raise ValueError(f"kind must be one of {', '.join(_WARM_UPS)}, not {kind!r}")
    if step < 0 or steps < 0:
        raise ValueError(f"numbers of steps are at least 0, not step {step} of {steps}")
    if kind == "none" or step >= steps:
        return rate
    if kind == "constant":
        return start
    return start + (rate - start) * step / steps
