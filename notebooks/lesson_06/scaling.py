"""R ranks pay when T_sync / T_comp < R - 1.

One rank needs N/B steps of T_comp. R ranks with the batch B each need N/(R B) steps of
T_comp + T_sync. The second is the smaller exactly when T_sync < (R - 1) T_comp. This is
arithmetic on the definitions; times are in seconds, N and B in samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.teaching.cost.checked import at_least, count, positive

from .laws import amdahl, amdahl_limit, gustafson, serial_fraction
from .overlap import backward_with_buckets, best_bucket, largest_overlap_gain
from .stragglers import (
    expected_slowest_exponential,
    expected_slowest_normal,
    expected_slowest_of,
    harmonic,
    slowdown,
)

__all__ = [
    "Scaling",
    "amdahl",
    "amdahl_limit",
    "backward_with_buckets",
    "best_bucket",
    "efficiency",
    "epoch_seconds",
    "expected_slowest_exponential",
    "expected_slowest_normal",
    "expected_slowest_of",
    "fewest_ranks_that_pay",
    "gustafson",
    "harmonic",
    "largest_overlap_gain",
    "pays",
    "serial_fraction",
    "slowdown",
    "speed_up",
    "strong_scaling",
    "weak_scaling",
]


def epoch_seconds(
    samples: float, batch: float, comp_seconds: float, sync_seconds: float = 0.0, ranks: int = 1
) -> float:
    """Return the seconds an epoch takes: N / (R B) * (T_comp + T_sync).

    Args:
        samples: N, samples in the data set.
        batch: B, samples a rank takes in one step.
        comp_seconds: T_comp, seconds a step computes.
        sync_seconds: T_sync, seconds a step synchronises; one rank alone has none to pay.
        ranks: R.
    """
    steps = positive("samples", samples) / (positive("batch", batch) * count("ranks", ranks))
    sync = at_least("sync_seconds", sync_seconds) if ranks > 1 else 0.0
    return steps * (positive("comp_seconds", comp_seconds) + sync)


def speed_up(ranks: int, comp_seconds: float, sync_seconds: float) -> float:
    """Return T_epoch of one rank over T_epoch of R ranks: R / (1 + T_sync / T_comp)."""
    alone = epoch_seconds(1, 1, comp_seconds)
    return alone / epoch_seconds(1, 1, comp_seconds, sync_seconds, ranks)


def efficiency(ranks: int, comp_seconds: float, sync_seconds: float) -> float:
    """Return the speed-up per rank, between 0 and 1."""
    return speed_up(ranks, comp_seconds, sync_seconds) / ranks


def pays(ranks: int, comp_seconds: float, sync_seconds: float) -> bool:
    """Return whether R ranks finish an epoch sooner than one: T_sync / T_comp < R - 1."""
    at_least("sync_seconds", sync_seconds)
    return sync_seconds / positive("comp_seconds", comp_seconds) < count("ranks", ranks) - 1


def fewest_ranks_that_pay(
    comp_seconds: float, sync_seconds: Callable[[int], float], most: int = 100_000
) -> int | None:
    """Return the smallest R with T_sync(R) / T_comp < R - 1, None if there is none up to most.

    Args:
        sync_seconds: T_sync as a function of R, seconds.
    """
    for ranks in range(2, most + 1):
        if pays(ranks, comp_seconds, sync_seconds(ranks)):
            return ranks
    return None


@dataclass(frozen=True)
class Scaling:
    """One point of a scaling curve.

    Attributes:
        ranks: R.
        batch: samples a rank takes in a step.
        step_seconds: of one step, computing and synchronising.
        samples_per_second: of all ranks together.
        speed_up: samples/s over those of one rank.
        efficiency: speed-up per rank.
    """

    ranks: int
    batch: float
    step_seconds: float
    samples_per_second: float
    speed_up: float
    efficiency: float


def weak_scaling(
    ranks: Sequence[int],
    batch: float,
    comp_seconds: Callable[[float], float],
    sync_seconds: Callable[[int], float],
) -> list[Scaling]:
    """Return the curve for a fixed batch a rank: the work grows with R.

    Args:
        batch: samples a rank, the same for every R.
        comp_seconds: T_comp in seconds as a function of the samples a rank has.
        sync_seconds: T_sync in seconds as a function of R.

    Raises:
        ValueError: if a number of ranks, a batch or a time makes no sense.
    """
    return [_point(r, batch, batch, comp_seconds, sync_seconds) for r in ranks]


def strong_scaling(
    ranks: Sequence[int],
    global_batch: float,
    comp_seconds: Callable[[float], float],
    sync_seconds: Callable[[int], float],
) -> list[Scaling]:
    """Return the curve for a fixed batch of all ranks together: R shares the same work.

    Arguments and errors as in :func:`weak_scaling`, but every rank has ``global_batch / R``
    samples.
    """
    return [
        _point(r, global_batch / count("ranks", r), global_batch, comp_seconds, sync_seconds)
        for r in ranks
    ]


def _point(ranks, batch, batch_alone, comp_seconds, sync_seconds) -> Scaling:
    positive("batch", batch_alone)
    sync = at_least("sync_seconds", sync_seconds(ranks)) if count("ranks", ranks) > 1 else 0.0
    step = positive("comp_seconds", comp_seconds(batch)) + sync
    rate = ranks * batch / step
    gain = rate / (batch_alone / positive("comp_seconds", comp_seconds(batch_alone)))
    return Scaling(ranks, batch, step, rate, gain, gain / ranks)
