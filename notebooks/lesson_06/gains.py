"""DDP's published overlap gains are more than its hardware numbers explain.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", PVLDB 13(12),
2020, section 5.1, publish the speed-up by overlap on 32 GPUs: 4 servers with 8 V100 and one
100 Gbit/s card each. It is read here as the part of a step that is saved. Two questions are asked
of each gain:

- *implied*: which T_sync / T_backward must the run have had, if overlap is perfect and
  T_forward = T_backward / 2? There are two answers, see
  :func:`.published_runs.implied_sync_over_backward`.
- *predicted*, only for ResNet-50 with NCCL: what do published hardware numbers give? The speed of
  a V100 in float32 is NVIDIA's: 2,857.9 images/s on 8 of them (DeepLearningExamples, PyTorch
  RN50v1.5, README of June 2019); the all-reduce is one flat ring at the card's line rate.
  The paper does not state the batch; 32 and 64 images a GPU are assumed.

The prediction is too low by 20 to 30 points: their all-reduce took several times as long as the
line rate says. No speed of BERT or gloo in that setting is published, so those rows have none.

The paper's abstract also claims "near-linear scalability using 256 GPUs", without a number. The
same servers and the same ring, only longer, give two bounds of the efficiency there, as in
:mod:`.published_runs`: without any overlap and with perfect overlap. "Near-linear" fits between
them, which is all that can be said; as their all-reduce was slower than the line rate, neither is
safe.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.teaching.cost.all_reduce import cost
from course_lib.teaching.cost.link import Link, bytes_per_second

from .overlap import largest_overlap_gain
from .published_runs import BACKWARD, implied_sync_over_backward
from .runs import LATENCY

__all__ = ["GAINS", "Gain", "efficiency_bounds", "gains_table", "predicted_gain"]

RANKS = 32
MOST_RANKS = 256
GIGABITS = 100.0
IMAGES_PER_SECOND = 2857.9 / 8
GRADIENT_BYTES = 4 * 25.6e6
BATCHES = (32, 64)


@dataclass(frozen=True)
class Gain:
    """A published gain: the part of a step that overlap saved, between 0 and 1."""

    model: str
    backend: str
    published: float

    @property
    def has_prediction(self) -> bool:
        """Whether hardware numbers for it are published."""
        return (self.model, self.backend) == ("ResNet-50", "NCCL")


GAINS = (
    Gain("ResNet-50", "NCCL", 0.380),
    Gain("BERT", "NCCL", 0.352),
    Gain("ResNet-50", "gloo", 0.268),
    Gain("BERT", "gloo", 0.215),
)


def predicted_gain(batch: int, latency: float = LATENCY) -> float:
    """Return the part of a ResNet-50 step that perfect overlap saves, between 0 and 1.

    Args:
        batch: images a GPU.
        latency: seconds a message.
    """
    comp, sync = _comp_and_sync(RANKS, batch, latency)
    return largest_overlap_gain((1 - BACKWARD) * comp, BACKWARD * comp, sync)


def efficiency_bounds(
    batch: int, ranks: int = MOST_RANKS, latency: float = LATENCY
) -> tuple[float, float]:
    """Return ResNet-50's efficiencies, between 0 and 1: without overlap, and with a perfect one.

    Args:
        batch: images a GPU.
        ranks: GPUs in one flat ring.
        latency: seconds a message.
    """
    comp, sync = _comp_and_sync(ranks, batch, latency)
    return comp / (comp + sync), comp / (comp + max(0.0, sync - BACKWARD * comp))


def _comp_and_sync(ranks: int, batch: int, latency: float) -> tuple[float, float]:
    link = Link(latency, bytes_per_second(GIGABITS))
    return batch / IMAGES_PER_SECOND, cost("ring", ranks, GRADIENT_BYTES).seconds(link)


def gains_table() -> str:
    """Return published, implied and predicted as a Markdown table, with the error in points.

    A second table is about the claim on 256 GPUs, which has no number and hence no error.
    """
    rows = [
        "| model, backend | published gain | implied T_sync / T_backward "
        f"| predicted, {BATCHES[0]} / {BATCHES[1]} images a GPU | error (points) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for gain in GAINS:
        low, high = implied_sync_over_backward(gain.published)
        predicted = [predicted_gain(batch) for batch in BATCHES] if gain.has_prediction else []
        shown = " / ".join(f"{value:.1%}" for value in predicted) or "no numbers published"
        errors = " / ".join(f"{100 * (value - gain.published):+.1f}" for value in predicted) or "-"
        rows.append(
            f"| {gain.model}, {gain.backend} | {gain.published:.1%} | {low:.2f} or {high:.2f} "
            f"| {shown} | {errors} |"
        )
    return "\n".join([*rows, "", *_claim()])


def _claim() -> list[str]:
    low, high = zip(*map(efficiency_bounds, BATCHES), strict=True)
    return [
        f"| model, backend, GPUs | published | predicted efficiency, {BATCHES[0]} / {BATCHES[1]} "
        "images a GPU | assumed |",
        "| --- | --- | --- | --- |",
        f"| ResNet-50, NCCL, {MOST_RANKS} | near-linear; no number | without overlap "
        f"{' / '.join(f'{value:.0%}' for value in low)}, perfect overlap "
        f"{' / '.join(f'{value:.0%}' for value in high)} | the same servers, one flat ring at "
        "line rate, nobody ever late |",
    ]
