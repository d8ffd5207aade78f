"""R ranks make the batch R times as large, and the learning rate has to answer.

Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017,
arXiv:1706.02677, sections 2.1 (linear scaling rule) and 2.2 (warm-up). The square-root rule:
Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014,
arXiv:1404.5997.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

__all__ = ["Rule", "WarmUp", "scaled_rate", "warm_up", "warm_up_factor", "warm_up_scheduler"]

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
        rate: learning rate after it.
        start: learning rate at its beginning, as a rule that of one worker.
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


def warm_up_factor(
    steps: int, rate: float, start: float, kind: WarmUp = "gradual"
) -> Callable[[int], float]:
    """Return the function for ``torch.optim.lr_scheduler.LambdaLR`` over an optimizer at ``rate``.

    Raises:
        ValueError: if ``rate`` is not positive, and as :func:`warm_up`.
    """
    if not rate > 0:
        raise ValueError(f"the learning rate after the warm-up must be positive, not {rate}")
    warm_up(0, steps, rate, start, kind)
    return lambda step: warm_up(step, steps, rate, start, kind) / rate


def warm_up_scheduler(
    optimizer: torch.optim.Optimizer, steps: int, start: float, kind: WarmUp = "gradual"
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a scheduler whose ``step()`` is called once per optimizer step.

    Args:
        optimizer: made with the learning rate after the warm-up, one for all its groups.
        steps: length of the warm-up in optimizer steps.
        start: learning rate at its beginning.
        kind: see :func:`warm_up`.
    """
    rates = {group["lr"] for group in optimizer.param_groups}
    if len(rates) != 1:
        raise ValueError(f"all parameter groups must have one learning rate, not {sorted(rates)}")
    factor = warm_up_factor(steps, float(rates.pop()), start, kind)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
