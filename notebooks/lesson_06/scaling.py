"""How long R ranks take, and what keeps them from being R times as fast as one.

**Epochs.** One rank needs N/B steps of T_comp. R ranks with a batch of B each need N/(R B) steps of
T_comp + T_sync. The latter is shorter exactly when T_sync / T_comp < R - 1.

**Laws.** Work that does not run in parallel sets the limit. Amdahl, "Validity of the single
processor approach to achieving large scale computing capabilities", AFIPS 1967; Gustafson,
"Reevaluating Amdahl's law", CACM 31(5), 1988; Karp and Flatt, "Measuring parallel processor
performance", CACM 33(5), 1990.

**Overlap.** Gradients become ready from the last layer to the first. A bucket leaves when its last
gradient is ready and the bucket before it has arrived; what is still under way when backward ends
is exposed. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
PVLDB 13(12), 2020, sections 3.2.2 and 3.2.3. Here communication does not slow computation down;
on real machines it may.

**Stragglers.** A synchronous step lasts as long as its slowest rank. David and Nagaraja, "Order
Statistics", 3rd edition, 2003, chapters 2 to 4 (exponential: mean times the R-th harmonic number).
The ranks are assumed to be independent and identically distributed, with a new draw in each step;
a rank that is always slow is a different case.

Times are in seconds, sizes in bytes, N and B in samples; speed-ups have no unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.teaching.cost import at_least, count, positive

__all__ = [
    "Backward",
    "Bucket",
    "Scaling",
    "amdahl",
    "amdahl_limit",
    "backward_with_buckets",
    "efficiency",
    "epoch_seconds",
    "expected_slowest_exponential",
    "expected_slowest_normal",
    "fewest_ranks_that_pay",
    "gustafson",
    "harmonic",
    "largest_overlap_gain",
    "pays",
    "serial_fraction",
    "speed_up",
    "strong_scaling",
    "weak_scaling",
]

_EXACT = 100_000
_EULER = 0.57721566490153286
_WIDTH, _POINTS = 12.0, 24_001


# ---- epochs -------------------------------------------------------------------------------------


def epoch_seconds(
    samples: float, batch: float, comp_seconds: float, sync_seconds: float = 0.0, ranks: int = 1
) -> float:
    """Return the seconds an epoch takes: N / (R B) * (T_comp + T_sync).

    Args:
        samples: N, samples in the data set.
        batch: B, samples per rank and step.
        comp_seconds: T_comp, the seconds of computing in a step.
        sync_seconds: T_sync, the seconds of synchronising in a step; ignored for a single rank.
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
        batch: samples per rank and step.
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
    """Return the curve for a fixed batch per rank: the work grows with R.

    Args:
        batch: samples per rank, the same for every R.
        comp_seconds: T_comp in seconds as a function of the samples per rank.
        sync_seconds: T_sync in seconds as a function of R.

    Raises:
        ValueError: if a number of ranks, a batch or a time is out of range.
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


# ---- laws ---------------------------------------------------------------------------------------


def _fraction(serial: float) -> float:
    if not 0 <= serial <= 1:
        raise ValueError(f"the serial fraction must lie between 0 and 1, not {serial!r}")
    return serial


def amdahl(ranks: int, serial: float) -> float:
    """Return the speed-up of a fixed problem: 1 / (s + (1 - s) / R).

    Args:
        serial: s, the fraction of *one* rank's time that cannot be shared.
    """
    return 1.0 / (_fraction(serial) + (1.0 - serial) / count("ranks", ranks))


def amdahl_limit(serial: float) -> float:
    """Return the speed-up of infinitely many ranks, 1/s; infinite for s = 0."""
    return float("inf") if _fraction(serial) == 0 else 1.0 / serial


def gustafson(ranks: int, serial: float) -> float:
    """Return the speed-up of a problem that grows with R: s + (1 - s) R.

    Args:
        serial: s, the fraction of the *parallel* run's time that is not shared.
    """
    return _fraction(serial) + (1.0 - serial) * count("ranks", ranks)


def serial_fraction(ranks: int, speed_up: float) -> float:
    """Return s from a measured speed-up (Karp-Flatt): (1/S - 1/R) / (1 - 1/R).

    If it grows with R, the loss is communication rather than serial work.
    """
    if count("ranks", ranks) < 2:
        raise ValueError("one rank tells nothing about the serial fraction")
    return (1.0 / positive("speed_up", speed_up) - 1.0 / ranks) / (1.0 - 1.0 / ranks)


# ---- overlap ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """One bucket on its way.

    Attributes:
        size: bytes.
        ready, start, end: seconds since backward began.
    """

    size: float
    ready: float
    start: float
    end: float


@dataclass(frozen=True)
class Backward:
    """A backward pass and its communication.

    Attributes:
        compute: seconds backward computes.
        seconds: until both are done.
        exposed: seconds of communication that nothing hides: ``seconds - compute``.
        communication: seconds all buckets take together.
        buckets: in the order they leave.
    """

    compute: float
    seconds: float
    exposed: float
    communication: float
    buckets: tuple[Bucket, ...]


def backward_with_buckets(
    layer_seconds: Sequence[float],
    layer_bytes: Sequence[float],
    bucket_bytes: float,
    all_reduce_seconds: Callable[[float], float],
) -> Backward:
    """Return a backward pass with the times at which its buckets travel.

    A layer is never split; a bucket closes as soon as it holds ``bucket_bytes`` or more, and the
    last closes when backward ends.

    Args:
        layer_seconds: backward of each layer in seconds, in the order in which backward runs
            (the last layer first).
        layer_bytes: bytes of its gradients, same order.
        bucket_bytes: 0 sends each layer by itself; infinity is one bucket, hence no overlap.
        all_reduce_seconds: seconds of an all-reduce as a function of its bytes, e.g.
            ``lambda n: cost("ring", 8, n).seconds(link)``.
    """
    if len(layer_seconds) != len(layer_bytes) or not len(layer_seconds):
        raise ValueError("there must be one time and one size for each of at least one layer")
    if not bucket_bytes >= 0:
        raise ValueError(f"bucket_bytes must be at least 0, not {bucket_bytes!r}")
    buckets: list[Bucket] = []
    now, held, free = 0.0, 0.0, 0.0
    last = len(layer_seconds) - 1
    for layer, (duration, size) in enumerate(zip(layer_seconds, layer_bytes, strict=True)):
        now += at_least("layer_seconds", duration)
        held += at_least("layer_bytes", size)
        if held and (held >= bucket_bytes or layer == last):
            start = max(now, free)
            free = start + at_least("all_reduce_seconds", all_reduce_seconds(held))
            buckets.append(Bucket(held, now, start, free))
            held = 0.0
    total = max(now, free)
    busy = sum(b.end - b.start for b in buckets)
    return Backward(now, total, total - now, busy, tuple(buckets))


def largest_overlap_gain(forward: float, backward: float, communication: float) -> float:
    """Return the fraction of a step that perfect overlap would save, between 0 and 1.

    Without: f + b + c. With: f + max(b, c). Saved: min(b, c) / (f + b + c). With b = 2 f it is
    largest at c = b, and then 40 %. All three in seconds.
    """
    at_least("forward", forward)
    hidden = min(at_least("backward", backward), at_least("communication", communication))
    total = positive("forward + backward + communication", forward + backward + communication)
    return hidden / total


# ---- stragglers ---------------------------------------------------------------------------------


def harmonic(ranks: int) -> float:
    """Return 1 + 1/2 + ... + 1/R (above 10**5 by Euler's expansion, error below 1e-16 relative)."""
    if count("ranks", ranks) <= _EXACT:
        return math.fsum(1.0 / k for k in range(1, ranks + 1))
    return math.log(ranks) + _EULER + 1 / (2 * ranks) - 1 / (12 * ranks**2)


def expected_slowest_exponential(ranks: int, base: float, mean_delay: float) -> float:
    """Return the expected seconds of the slowest of R ranks, exact.

    Each takes ``base`` plus an exponential delay of mean ``mean_delay`` (both seconds):
    base + mean_delay * H_R, which grows like ln R.
    """
    return at_least("base", base) + at_least("mean_delay", mean_delay) * harmonic(ranks)


def expected_slowest_normal(ranks: int, mean: float, deviation: float) -> float:
    """Return the expected seconds of the slowest of R ranks with normal step times.

    mean + deviation * E_R with E_R = integral of x R phi(x) Phi(x)**(R - 1) dx, by the trapezoid
    rule from -12 to 12 (absolute error below 1e-9 up to R = 10**6). About sqrt(2 ln R) for large R.
    """
    points = np.linspace(-_WIDTH, _WIDTH, _POINTS)
    above = 0.5 * np.array([math.erfc(x / math.sqrt(2)) for x in points])
    # Far to the left Phi is too small to tell from 0, whose logarithm is infinite.
    log_below = np.log1p(-np.minimum(above, 1 - 2**-53))
    power = np.exp((count("ranks", ranks) - 1) * log_below)
    density = np.exp(-points * points / 2) / math.sqrt(2 * math.pi)
    values = points * ranks * density * power
    step = points[1] - points[0]
    standard = float(step * (values.sum() - (values[0] + values[-1]) / 2))
    return at_least("mean", mean) + at_least("deviation", deviation) * standard
