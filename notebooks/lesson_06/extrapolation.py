"""Formulas for what breaks first with far more ranks than this machine has.

Three things grow with the number of ranks R: the latency of a ring (2(R-1) alpha), the batch
(R B), which past a critical size no longer saves steps, and the failures per hour. Sources:
critical batch: McCandlish et al., "An Empirical Model of Large-Batch Training", 2018,
arXiv:1812.06162, equations 2.11 and 2.12 (steps needed = least steps * (1 + critical / batch));
failures: "The Llama 3 Herd of Models", 2024, arXiv:2407.21783, section 3.3.4 (419 unexpected
interruptions in 54 days of 16,384 GPUs); checkpoints: Young, "A first order approximation to the
optimum checkpoint interval", CACM 17(9), 1974. All rates are extrapolated as if they stayed the
same, which is the weakest point.

There are h nodes of k ranks each, n bytes per rank, and one network card per node, which its k
ranks share. Bandwidth is high inside a node and low between nodes. Two ways to all-reduce:

- flat ring: each of 2(p-1) steps waits for its slowest link, the one between nodes, which one
  message a step crosses in each direction: 2(p-1) alpha_b + 2(p-1)/p n beta_b.
- two levels: reduce-scatter inside, k all-reduces of n/k between the nodes at the same time (they
  share the card), all-gather inside. Source: the scheme of Goyal et al. 2017, section 4, in the
  form of Horovod's hierarchical all-reduce.

Times in seconds, sizes in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.teaching.cost import Link, at_least, cost, count, positive

__all__ = [
    "FAILURES_PER_RANK_HOUR",
    "Far",
    "Hierarchy",
    "Job",
    "availability",
    "extrapolate",
    "extrapolated_table",
    "limits",
]

FAILURES_PER_RANK_HOUR = 419 / (54 * 24 * 16_384)
_MOST = 10**8


@dataclass(frozen=True)
class Hierarchy:
    """A cluster of identical nodes.

    Attributes:
        nodes: h.
        ranks_per_node: k.
        inside: the link between two ranks of a node.
        between: the link between two nodes; its bandwidth is that of a whole node.
    """

    nodes: int
    ranks_per_node: int
    inside: Link
    between: Link

    def __post_init__(self) -> None:
        count("nodes", self.nodes)
        count("ranks_per_node", self.ranks_per_node)

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def flat_ring(self, size_bytes: float) -> float:
        """Return the seconds of one ring through all ranks, node by node."""
        if self.nodes == 1:
            return cost("ring", self.ranks, size_bytes).seconds(self.inside)
        whole = cost("ring", self.ranks, size_bytes)
        if self.ranks_per_node == 1:
            return whole.seconds(self.between)
        # Every step lasts as long as the slower kind of link needs for one chunk.
        slowest = Link(
            max(self.inside.latency, self.between.latency),
            min(self.inside.bandwidth, self.between.bandwidth),
            min(self.inside.reduce_rate, self.between.reduce_rate),
        )
        return whole.seconds(slowest)

    def two_levels(self, size_bytes: float, algorithm: str = "ring") -> float:
        """Return the seconds of reduce-scatter inside, all-reduces between, all-gather inside.

        Args:
            algorithm: of the all-reduce between nodes.
        """
        # A ring all-reduce is exactly a reduce-scatter and an all-gather.
        within = cost("ring", self.ranks_per_node, size_bytes).seconds(self.inside)
        share = self.between.shared_by(self.ranks_per_node)
        part = size_bytes / self.ranks_per_node
        return within + cost(algorithm, self.nodes, part).seconds(share)


@dataclass(frozen=True)
class Job:
    """A training job and its cluster.

    Attributes:
        batch: samples per rank and step.
        comp_seconds: T_comp, seconds.
        gradient_bytes: bytes all-reduced each step.
        inside, between: links as in :class:`Hierarchy`.
        ranks_per_node: that share a network card.
        critical_batch: samples; McCandlish et al. put the limit for ImageNet at tens of thousands.
        failures_per_rank_hour: interruptions of the job.
        checkpoint_seconds: to write a checkpoint while all ranks wait.
        restart_seconds: from a failure to the next step, without the steps that are repeated.
    """

    batch: float
    comp_seconds: float
    gradient_bytes: float
    inside: Link
    between: Link
    ranks_per_node: int = 8
    critical_batch: float = 20_000.0
    failures_per_rank_hour: float = FAILURES_PER_RANK_HOUR
    checkpoint_seconds: float = 10.0
    restart_seconds: float = 300.0

    def __post_init__(self) -> None:
        positive("batch", self.batch)
        positive("comp_seconds", self.comp_seconds)
        at_least("gradient_bytes", self.gradient_bytes)
        count("ranks_per_node", self.ranks_per_node)
        positive("critical_batch", self.critical_batch)
        at_least("failures_per_rank_hour", self.failures_per_rank_hour)
        positive("checkpoint_seconds", self.checkpoint_seconds)
        at_least("restart_seconds", self.restart_seconds)


@dataclass(frozen=True)
class Far:
    """A job at R ranks; efficiencies between 0 and 1.

    Attributes:
        ranks: R.
        ring_seconds: T_sync of one flat ring, nothing overlapped.
        ring_latency_seconds: the part of it that is latency.
        two_level_seconds: T_sync inside nodes, then ring or Rabenseifner between them, the better.
        ring_efficiency, two_level_efficiency: T_comp / (T_comp + T_sync).
        global_batch: R B, samples.
        sample_efficiency: 1 / (1 + R B / critical batch): the fraction of the samples that count,
            compared with small batches.
        failures_per_hour: of the whole job.
        availability: fraction of time left after checkpoints, repeated steps and restarts.
        useful: the product of all three with the better all-reduce: progress compared with R
            independent ranks.
    """

    ranks: int
    ring_seconds: float
    ring_latency_seconds: float
    two_level_seconds: float
    ring_efficiency: float
    two_level_efficiency: float
    global_batch: float
    sample_efficiency: float
    failures_per_hour: float
    availability: float
    useful: float


def availability(job: Job, ranks: int) -> float:
    """Return the fraction of the time that is not lost to failures, with Young's interval.

    Mean time between failures M = 3600 / (R rate) seconds; interval sqrt(2 C M) for a checkpoint
    of C seconds; lost: C / interval + interval / (2 M) + restart / M. First order: trust it only
    while the loss is small. Not below 0.
    """
    if job.failures_per_rank_hour == 0:
        return 1.0
    between = 3600 / (ranks * job.failures_per_rank_hour)
    interval = math.sqrt(2 * job.checkpoint_seconds * between)
    lost = job.checkpoint_seconds / interval + interval / (2 * between)
    return max(0.0, 1 - lost - job.restart_seconds / between)


def extrapolate(job: Job, ranks: int) -> Far:
    """Return the predictions for R ranks, a multiple of the number of ranks per node."""
    nodes = count("ranks", ranks) // job.ranks_per_node
    if nodes * job.ranks_per_node != ranks:
        raise ValueError(f"{ranks} ranks do not fill nodes of {job.ranks_per_node}")
    cluster = Hierarchy(nodes, job.ranks_per_node, job.inside, job.between)
    ring = cluster.flat_ring(job.gradient_bytes)
    levels = min(cluster.two_levels(job.gradient_bytes, name) for name in ("ring", "Rabenseifner"))
    ring_efficiency, level_efficiency = (
        job.comp_seconds / (job.comp_seconds + sync) for sync in (ring, levels)
    )
    samples = 1 / (1 + ranks * job.batch / job.critical_batch)
    up = availability(job, ranks)
    return Far(
        ranks,
        ring,
        cluster.flat_ring(0.0),
        levels,
        ring_efficiency,
        level_efficiency,
        ranks * job.batch,
        samples,
        ranks * job.failures_per_rank_hour,
        up,
        max(ring_efficiency, level_efficiency) * samples * up,
    )


def limits(job: Job) -> list[tuple[str, int]]:
    """Return each limit with the number of ranks at which it halves the efficiency, fewest first.

    Each limit is considered by itself, on whole nodes; one not reached by 10**8 nodes is left out.
    """
    wanted = {
        "batch beyond the critical batch": lambda far: far.sample_efficiency,
        "latency of the flat ring": lambda far: (
            job.comp_seconds / (job.comp_seconds + far.ring_latency_seconds)
        ),
        "all-reduce in two levels": lambda far: far.two_level_efficiency,
        "failures": lambda far: far.availability,
    }
    found = []
    for what, measure in wanted.items():
        nodes = _first(lambda h, m=measure: m(extrapolate(job, h * job.ranks_per_node)) <= 0.5)
        if nodes is not None:
            found.append((what, nodes * job.ranks_per_node))
    return sorted(found, key=lambda pair: pair[1])


def _first(holds) -> int | None:
    """Return the least whole number for which a monotone condition holds."""
    high = 1
    while not holds(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def extrapolated_table(job: Job, ranks: Sequence[int] = (8, 256, 10_000, 100_000)) -> str:
    """Return a Markdown table, with a column per quantity and a row per number of ranks."""
    head = (
        "| ranks | flat ring (s) | latency part (s) | two levels (s) | step efficiency "
        "| batch | samples that count | failures/h | availability | useful |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    rows = []
    for far in (extrapolate(job, r) for r in ranks):
        step = max(far.ring_efficiency, far.two_level_efficiency)
        rows.append(
            f"| {far.ranks:,} | {far.ring_seconds:.3f} | {far.ring_latency_seconds:.3f} "
            f"| {far.two_level_seconds:.3f} | {step:.0%} | {far.global_batch:,.0f} "
            f"| {far.sample_efficiency:.1%} | {far.failures_per_hour:.2g} "
            f"| {far.availability:.1%} | {far.useful:.1%} |"
        )
    return "\n".join([head, *rows])
