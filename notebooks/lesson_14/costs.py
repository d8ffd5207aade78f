"""Formulas for a project's speed-up: messages on a link, seconds per step, steps to a target.

These are the right answers to the lesson's exercises, with which the checks compare. All times are
in seconds and all sizes in bytes; neither torch nor MPI is needed.
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
    """Return the seconds it takes to average gradients, with one all-reduce per bucket.

    Each all-reduce uses the faster of recursive doubling and the ring (lesson 06, section 3).

    Args:
        buckets: the size of each bucket in bytes.
        ranks: a power of two.
        latency: seconds per message.
        megabits: bandwidth of the link, Mbit/s each way.
    """
    return sum(all_reduce_seconds(size, ranks, latency, 8 / (megabits * 1e6)) for size in buckets)


def all_reduce_seconds(size_bytes: float, ranks: int, alpha: float, beta: float) -> float:
    """Return the seconds of one all-reduce; alpha: seconds per message, beta: per byte."""
    doubling = (ranks.bit_length() - 1) * (alpha + size_bytes * beta)
    ring = 2 * (ranks - 1) * (alpha + size_bytes / ranks * beta)
    return min(doubling, ring)


class Run(NamedTuple):
    """One way to train to a target: ``ranks`` ranks, ``batch`` samples *each*, ``steps`` steps."""

    ranks: int
    batch: int
    steps: float


def speed_up(
    one: Run, many: Run, sample_seconds: float, fixed_seconds: float, sync: float, cores: int
) -> float:
    """Return how many times as fast ``many`` reaches the target as ``one``.

    Args:
        sample_seconds: computing time for each sample.
        fixed_seconds: computing time for each step, whatever the batch size.
        sync: synchronisation time in each step of several ranks.
        cores: the number of ranks that can compute at the same time.
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
    """Return the total number of bytes that cross the links.

    Args:
        strategy: "synchronous" or "local SGD", whose all-reduce is a ring, or "server".
        steps: the steps of each rank; with a server, the updates of all workers together.
        ranks: the number of ranks, including the server.
        model_bytes: the size of all parameters, and therefore of all gradients.
        every: the number of steps after which local SGD averages.
    """
    if strategy == "server":
        return steps * 2 * model_bytes
    rounds = steps // every if strategy == "local SGD" else steps
    return rounds * 2 * (ranks - 1) * model_bytes


def time_to_target(looks: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return the seconds of the first of the ``looks`` (seconds, accuracy) at ``target``."""
    return next((seconds for seconds, accuracy in looks if accuracy >= target), None)
