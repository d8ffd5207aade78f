"""Which mistake a learner's prediction resembles, once the run has shown the number of steps.

For the strategies that have a formula for the seconds per step, each usual mistake gives a speed-up
of its own, from the task's numbers and the measured steps. A prediction that equals one of these,
but not the right value, probably contains that mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .costs import Run, all_reduce_seconds, speed_up, sync_seconds
from .tasks import Plan, Task

__all__ = ["Guess", "guesses", "reading"]

_SAME = 0.02  # as a fraction: people round
_NEAR = 0.05  # this close to the formula, there is nothing to explain
_GOOD = 0.10  # of the measurement
_WITHOUT_MESSAGES = (
    "by-the-formula",
    "as-many-times-as-ranks",
    "speed-up-of-an-epoch",
    "same-number-of-steps",
    "forgets-the-fixed-part",
    "ranks-share-cores",
    "upside-down",
)


class Guess(NamedTuple):
    """A speed-up, and the mistake that leads to it (empty for the right one)."""

    name: str
    speed_up: float
    forgets: str


def guesses(
    task: Task, plan: Plan, ranks: int, steps: tuple[int, int], tensors: Sequence[int]
) -> list[Guess]:
    """Return the right prediction first, then one for each usual mistake.

    Args:
        steps: to the target, of one rank and of all.
        tensors: bytes of each parameter.

    Returns:
        An empty list for a strategy without a formula.
    """
    buckets = _buckets(plan, tensors)
    if buckets is None:
        return []
    alpha, bits = task.latency, task.megabits
    seldom = plan.options.get("every", 1)
    sync = sync_seconds(buckets, ranks, alpha, bits) / seldom
    one, many = Run(1, task.batch, steps[0]), Run(ranks, plan.batch, steps[1])
    sample, fixed = task.sample_seconds, task.fixed_seconds

    def by(sync: float = sync, many: Run = many, cores: int = ranks, fixed: float = fixed) -> float:
        return speed_up(one, many, sample, fixed, sync, cores)

    def without(latency: float, buckets: Sequence[float] = buckets, times: float = 1) -> float:
        return sync_seconds(buckets, ranks, latency, bits * times) / seldom

    beta = 8 / (bits * 1e6)
    latency_once = sum(all_reduce_seconds(size, ranks, 0, beta) for size in buckets) + alpha
    samples = many._replace(steps=one.steps * one.batch / (ranks * plan.batch))
    found = [
        Guess("by-the-formula", by(), ""),
        Guess(
            "as-many-times-as-ranks",
            float(ranks),
            "nothing costs anything: R ranks, R times as fast",
        ),
        Guess("forgets-communication", by(0), "communication is left out"),
        Guess(
            "speed-up-of-an-epoch",
            by(many=samples),
            "the larger batch learns as much from each sample, so the steps are divided by the "
            "number of ranks",
        ),
        Guess(
            "same-number-of-steps",
            by(many=many._replace(steps=one.steps)),
            "the larger batch needs as many steps as the small one",
        ),
        Guess(
            "forgets-both",
            by(0, samples),
            "communication is left out, and the steps are divided by the number of ranks",
        ),
        Guess(
            "forgets-the-fixed-part",
            by(fixed=0),
            "the part of a step that no number of ranks makes shorter (Amdahl) is left out",
        ),
        Guess("bits-for-bytes", by(without(alpha, times=8)), "Mbit/s are read as MB/s"),
        Guess("forgets-latency", by(without(0)), "the latency is left out"),
        Guess("latency-once", by(latency_once / seldom), "the latency is counted once per step"),
        Guess(
            "one-bucket",
            by(without(alpha, [sum(buckets)])),
            "all buckets are counted as one message, with a single latency",
        ),
        Guess(
            "latency-of-each-tensor",
            by(without(alpha, tensors)),
            "each tensor is counted as a message of its own, though they leave together",
        ),
        Guess("one-direction", by(sync / 2), "only one direction of the communication is counted"),
        Guess(
            "once-for-each-rank",
            by(sync * ranks),
            "the ranks were assumed to send one after another",
        ),
        Guess(
            "in-every-step",
            by(sync * seldom),
            "the weights were assumed to be averaged in every step",
        ),
        Guess(
            "ranks-share-cores",
            by(cores=(ranks + 1) // 2),
            "the ranks were assumed to compute in turns; here each has a simulated device",
        ),
        Guess("upside-down", 1 / by(), "it is upside down: the time of many over that of one"),
    ]
    if not buckets:
        return [one for one in found if one.name in _WITHOUT_MESSAGES]
    return found


def reading(predicted: float, measured: float, found: Sequence[Guess]) -> str:
    """Return, in a sentence, what a prediction resembles."""
    if not found:
        return "this strategy has no formula here; look at the timeline"
    right, *mistakes = found
    if abs(predicted / right.speed_up - 1) <= _NEAR:
        off = abs(predicted / measured - 1)
        rest = "so does the measurement" if off <= _GOOD else "the machine was slower or busy"
        by_formula = f"which gives {right.speed_up:.2f} with the measured steps"
        return f"agrees with the formula, {by_formula}; {rest}"
    alike = [
        one
        for one in mistakes
        if abs(predicted / one.speed_up - 1) <= _SAME
        and abs(one.speed_up / right.speed_up - 1) > _NEAR
    ]
    if not alike:
        return f"with the measured steps, the formula gives {right.speed_up:.2f}"
    alike.sort(key=lambda one: abs(predicted / one.speed_up - 1))
    causes = ", or ".join(f"{one.forgets} ({one.speed_up:.2f})" for one in alike[:2])
    return f"looks as if {causes}; the formula gives {right.speed_up:.2f}"


def _buckets(plan: Plan, tensors: Sequence[int]) -> list[float] | None:
    """Return the bytes of each all-reduce; None for a strategy without a formula."""
    whole = float(sum(tensors))
    return {
        "alone": [],
        "per layer": [float(size) for size in tensors],
        "flattened": [whole],
        "local SGD": [whole],
    }.get(plan.strategy)
