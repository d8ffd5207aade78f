"""The speed-up of a project by formula: messages on a link, seconds of a step, steps to a target.

The right answers behind the lesson's exercises, and what its checks compare with. Seconds and
bytes; neither torch nor MPI is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "Run",
    "all_reduce_seconds",
    "bytes_on_links",
    "speed_up",
    "sync_seconds",
    "time_to_target",
]


def sync_seconds(buckets: Sequence[float], ranks: int, latency: float, megabits: float) -> float:
    """Return the seconds that averaging gradients takes, one all-reduce a bucket.

    Each takes the cheaper of recursive doubling and ring (lesson 06, section 3).

    Args:
        buckets: bytes of each.
        ranks: a power of two.
        latency: seconds a message.
        megabits: bandwidth of the link, Mbit/s each way.
    """
    return sum(all_reduce_seconds(size, ranks, latency, 8 / (megabits * 1e6)) for size in buckets)


def all_reduce_seconds(size_bytes: float, ranks: int, alpha: float, beta: float) -> float:
    """Return what one all-reduce takes; alpha: seconds a message, beta: seconds a byte."""
    doubling = (ranks.bit_length() - 1) * (alpha + size_bytes * beta)
    ring = 2 * (ranks - 1) * (alpha + size_bytes / ranks * beta)
    return min(doubling, ring)


class Run(NamedTuple):
    """One way to train to a target: ``ranks`` ranks, ``batch`` samples *each*, so many steps."""

    ranks: int
    batch: int
    steps: float


def speed_up(
    one: Run, many: Run, sample_seconds: float, fixed_seconds: float, sync: float, cores: int
) -> float:
    """Return how many times as fast as ``one`` rank ``many`` reach the target.

    Args:
        sample_seconds: computing, for each sample.
        fixed_seconds: of each step, whatever the batch.
        sync: seconds of synchronising, in each step of several ranks.
        cores: how many ranks really compute at a time.
    """
    turns = -(-many.ranks // cores)
    alone = one.steps * (fixed_seconds + one.batch * sample_seconds)
    step = turns * (fixed_seconds + many.batch * sample_seconds)
    if many.ranks > 1:
        step += sync
    return alone / (many.steps * step)


def bytes_on_links(
    strategy: str, steps: int, ranks: int, model_bytes: float, every: int = 1
) -> float:
    """Return the bytes that cross all links together.

    Args:
        strategy: "synchronous" or "local SGD", whose all-reduce is a ring, or "server".
        steps: of each rank; with a server, updates of all workers together.
        ranks: the server included.
        model_bytes: of all parameters, and so of all gradients.
        every: local SGD averages after so many steps.
    """
    if strategy == "server":
        return steps * 2 * model_bytes
    rounds = steps // every if strategy == "local SGD" else steps
    return rounds * 2 * (ranks - 1) * model_bytes


def time_to_target(looks: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return when the accuracy first was at ``target``; ``looks``: (seconds, accuracy)."""
    return next((seconds for seconds, accuracy in looks if accuracy >= target), None)
