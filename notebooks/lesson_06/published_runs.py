"""Predict published efficiencies and overlap gains from published hardware numbers.

A prediction is only as good as its inputs, so all inputs are given with their sources. Nothing in
``RUNS`` is adjusted to make a prediction fit. ``ASSUMPTIONS`` lists what no source states.

Each run has three predictions of ``T_comp / (T_comp + exposed T_sync)``:

- *low*: nothing overlaps, exposed = T_sync. No fitted number.
- *high*: perfect overlap, exposed = T_sync beyond the two thirds of T_comp that backward takes.
  No fitted number.
- *predicted*: exposed = f * T_sync with one fraction f for all runs, fitted to the three 16-GPU
  runs only. The fit does not use the other rows.

All published values lie between low and high. The predictions for the other rows are all
too good, by 2 to 12 points: the effects that the model leaves out (stragglers, contention,
protocol overhead) cost time in every run.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", PVLDB 13(12),
2020, section 5.1, publish the speed-up by overlap on 32 GPUs: 4 servers with 8 V100 and one
100 Gbit/s card each. Here we read it as the fraction of a step that is saved. We ask two questions
about each gain:

- *implied*: what T_sync / T_backward must the run have had, if overlap is perfect and
  T_forward = T_backward / 2? There are two answers, see :func:`implied_sync_over_backward`.
- *predicted*, only for ResNet-50 with NCCL: what do published hardware numbers give? The speed of
  a V100 in float32 is NVIDIA's: 363.1 images/s on a single GPU, which synchronises with no other
  (DeepLearningExamples, PyTorch RN50v1.5, README of June 2019: 2,857.9 on 8, 7.87 times as many;
  measured with 128 images per GPU). The all-reduce is one flat ring at the card's line rate. The
  paper does not state the batch; 32 and 64 images per GPU are assumed.

The prediction is too low by 20 to 30 points: their all-reduce took several times as long as at
line rate. No speed of BERT or gloo in that setting is published, so those rows have no prediction.

The paper's abstract also claims "near-linear scalability using 256 GPUs", without a number. The
same servers with a longer ring give two bounds for the efficiency there, without any overlap and
with perfect overlap. "Near-linear" lies between these bounds, and no more can be said; because
their all-reduce was slower than the line rate, neither bound is safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.teaching.cost import Link, bytes_per_second, cost

from .scaling import largest_overlap_gain

__all__ = [
    "ASSUMPTIONS",
    "BACKWARD",
    "GAINS",
    "LATENCY",
    "RUNS",
    "SOURCES",
    "Assumption",
    "Gain",
    "Reproduced",
    "Run",
    "assumptions_table",
    "efficiency_bounds",
    "exposed_fraction",
    "gains_table",
    "implied_sync_over_backward",
    "predicted_gain",
    "reproduce",
    "reproduced_table",
    "sync_seconds",
]

# ---- what was published -------------------------------------------------------------------------


SOURCES = {
    "Goyal et al.": '"Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, '
    "arXiv:1706.02677, section 4 (hardware) and section 5.5 with figures 7 and 8 (run time)",
    "Horovod, 512 GPUs": "docs/benchmarks.rst and README: 128 servers of 4 Pascal GPUs, RoCE at "
    '25 Gbit/s; see Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in '
    'TensorFlow", 2018, arXiv:1802.05799',
    "Horovod, 128 GPUs": "README of late 2017: 32 servers of 4 Pascal GPUs, RoCE at 25 Gbit/s",
    "Horovod, 16 GPUs": "README before 2017-10-17 (the table that pull request #44 removes), "
    "row 'RDMA Horovod (allreduce on GPU with NCCL)': images/s on 1 and on 16 GPUs, batch size 64",
}

LATENCY = 10e-6
_FUSION = 64 * 2**20


@dataclass(frozen=True)
class Assumption:
    """Something the sources do not say, and what we assume instead."""

    what: str
    value: str
    why: str


ASSUMPTIONS = (
    Assumption(
        "latency between GPUs of two nodes",
        f"{LATENCY * 1e6:g} µs per message",
        "not published; an order-of-magnitude estimate. The results also show 5 and 20 µs",
    ),
    Assumption(
        "usable bandwidth",
        "the card's line rate, with nothing deducted for protocols",
        "an upper bound, which makes every prediction too good",
    ),
    Assumption(
        "all-reduce of Horovod",
        "one flat ring over all GPUs, limited by the card of each node; one call for each 64 MiB",
        "in 2017, NCCL 2 had only rings, and Horovod's default fusion buffer was 64 MiB. How the "
        "runs packed their buffers is not published. We chose this knowing that the published "
        "efficiency of VGG-16 falls as the ring grows, so those rows are not blind predictions",
    ),
    Assumption(
        "all-reduce of Goyal et al.",
        "sum inside each node, then Rabenseifner's algorithm between the leaders; one call",
        "section 4 describes this (halving and doubling between servers). The step inside a node "
        "is part of the published baseline of 8 GPUs, so only the network counts here",
    ),
    Assumption(
        "352 GPUs of Goyal et al. (44 servers, not a power of two)",
        "Rabenseifner's fold with whole buffers",
        "section 4 describes the cheaper binary blocks instead, so our lower bound is too low",
    ),
    Assumption(
        "single-GPU speed at 128 and 512 GPUs",
        "that of the 16-GPU table",
        "the later charts do not give this speed; they may be from a newer TensorFlow",
    ),
    Assumption(
        "step of 8 GPUs in Goyal et al.",
        "16 min per epoch of 1.28 million images, 256 images per step: 0.192 s",
        "section 5.5 says 'over 16 minutes', so this is a lower bound; figure 7 gives no number",
    ),
    Assumption(
        "hidden communication",
        "one exposed fraction for all models and sizes and for both systems",
        "the only fitted number, fitted to the three 16-GPU runs alone; every other row is a "
        "prediction. Without this number, the model gives only the two bounds",
    ),
    Assumption(
        "backward",
        "2/3 of the step's computing",
        "the usual count of operations; used only for the upper bound (perfect overlap)",
    ),
    Assumption(
        "stragglers, input, contention between servers",
        "none",
        "no published data from which to model them",
    ),
)


@dataclass(frozen=True)
class Run:
    """One published run.

    Attributes:
        name: as printed in tables.
        source: key of ``SOURCES``.
        ranks: GPUs.
        ranks_per_node: GPUs that share a network card.
        gigabits: Gbit/s of a node's card.
        gradient_bytes: n, float32 gradients, bytes.
        comp_seconds: a step of the baseline, seconds.
        baseline_ranks: GPUs of the run to which the efficiency is relative.
        published: efficiency, between 0 and 1.
        digits: half a unit of the last published digit, between 0 and 1: no prediction can be
            checked more finely than that.
        network: "ring of all" or "Rabenseifner between nodes".
        calls: all-reduces per step.
        calibrates: whether the exposed fraction is fitted to it.
    """

    name: str
    source: str
    ranks: int
    ranks_per_node: int
    gigabits: float
    gradient_bytes: float
    comp_seconds: float
    baseline_ranks: int
    published: float
    digits: float
    network: str
    calls: int = 1
    calibrates: bool = False


# Parameters: Inception V3 as in Keras without the auxiliary head; ResNet-101 as in torchvision;
# VGG-16 from Simonyan and Zisserman 2014, table 2, network D.
_PARAMETERS = {"Inception V3": 23.85e6, "ResNet-101": 44.55e6, "VGG-16": 138e6}
# images/s of one GPU and of 16, batch size 64; efficiencies at 128 and at 512.
_HOROVOD = {
    "Inception V3": (134.4, 2022.6, 0.90, 0.90),
    "ResNet-101": (119.4, 1746.2, 0.90, 0.90),
    "VGG-16": (130.9, 1787.4, 0.79, 0.68),
}


def _horovod(model: str, ranks: int, published: float, source: str) -> Run:
    size = 4 * _PARAMETERS[model]
    return Run(
        f"Horovod, {model}, {ranks} GPUs",
        source,
        ranks,
        4,
        25.0,
        size,
        64 / _HOROVOD[model][0],
        1,
        published,
        0.0005 if ranks == 16 else 0.005,
        "ring of all",
        int(-(-size // _FUSION)),
        ranks == 16,
    )


def _goyal(ranks: int, published: float) -> Run:
    step = 16 * 60 / (1.28e6 / 256)
    return Run(
        f"Goyal et al., ResNet-50, {ranks} GPUs",
        "Goyal et al.",
        ranks,
        8,
        50.0,
        100e6,
        step,
        8,
        published,
        0.005,
        "Rabenseifner between nodes",
    )


RUNS = (
    *(
        _horovod(m, 16, all16 / one / 16, "Horovod, 16 GPUs")
        for m, (one, all16, *_) in _HOROVOD.items()
    ),
    *(_horovod(m, 128, at128, "Horovod, 128 GPUs") for m, (_, _, at128, _) in _HOROVOD.items()),
    *(_horovod(m, 512, at512, "Horovod, 512 GPUs") for m, (_, _, _, at512) in _HOROVOD.items()),
    _goyal(256, 0.90),
    # "increases only 12% while scaling the minibatch size by 44x": 352 GPUs, 1 / 1.12.
    _goyal(352, 1 / 1.12),
)


# ---- efficiencies -------------------------------------------------------------------------------


BACKWARD = 2 / 3  # of T_comp


@dataclass(frozen=True)
class Reproduced:
    """A run and its predictions; efficiencies are between 0 and 1.

    Attributes:
        run: the published run.
        sync: T_sync, seconds.
        low, predicted, high: efficiencies.
        fitted: whether the exposed fraction was fitted to this run; if so, it is not a prediction.
    """

    run: Run
    sync: float
    low: float
    predicted: float
    high: float

    @property
    def fitted(self) -> bool:
        return self.run.calibrates

    @property
    def error(self) -> float:
        """Predicted minus published efficiency."""
        return self.predicted - self.run.published

    @property
    def within_bounds(self) -> bool:
        """Whether the published value lies between low and high, up to its last digit."""
        slack = self.run.digits
        return self.low - slack <= self.run.published <= self.high + slack


def sync_seconds(run: Run, latency: float = LATENCY) -> float:
    """Return T_sync in seconds, apart from what the baseline already includes."""
    link = Link(latency, bytes_per_second(run.gigabits))
    part = run.gradient_bytes / run.calls
    if run.network == "ring of all":
        ranks, algorithm = run.ranks, "ring"
    else:
        ranks, algorithm = run.ranks // run.ranks_per_node, "Rabenseifner"
    return run.calls * cost(algorithm, ranks, part).seconds(link)


def exposed_fraction(runs: Sequence[Run] = RUNS, latency: float = LATENCY) -> float:
    """Return f, fitted to the runs marked for it by least squares of lost time over T_comp."""
    chosen = [run for run in runs if run.calibrates]
    if not chosen:
        raise ValueError("no run is marked for the fit of the exposed fraction")
    loss = [1 / run.published - 1 for run in chosen]
    share = [sync_seconds(run, latency) / run.comp_seconds for run in chosen]
    return sum(x * y for x, y in zip(share, loss, strict=True)) / sum(x * x for x in share)


def reproduce(runs: Sequence[Run] = RUNS, latency: float = LATENCY) -> list[Reproduced]:
    """Return the predictions for all runs; ``latency`` is in seconds per message."""
    fraction = exposed_fraction(RUNS, latency)
    answer = []
    for run in runs:
        sync, comp = sync_seconds(run, latency), run.comp_seconds
        beyond = max(0.0, sync - BACKWARD * comp)
        low, predicted, high = (
            comp / (comp + exposed) for exposed in (sync, fraction * sync, beyond)
        )
        answer.append(Reproduced(run, sync, low, predicted, high))
    return answer


def implied_sync_over_backward(gain: float) -> tuple[float, float] | None:
    """Return the two ratios T_sync / T_backward at which perfect overlap saves ``gain`` of a step.

    With T_forward = T_backward / 2 the saving is min(1, c) / (1.5 + c) for c = T_sync / T_backward:
    at most 0.4, at c = 1. None above that. The DDP paper (Li et al. 2020, section 5.1) publishes
    speed-ups of 0.380 (ResNet50) and 0.352 (BERT) with NCCL, 0.268 and 0.215 with gloo, on 32
    GPUs, here read as parts of a step: all below the bound. That is a check of the bound; the
    paper's efficiencies are not reproduced here.
    """
    if not 0 < gain < 1:
        raise ValueError(f"a gain lies between 0 and 1, not {gain!r}")
    if gain > 0.4:
        return None
    return 1.5 * gain / (1 - gain), 1 / gain - 1.5


def assumptions_table() -> str:
    """Return all assumptions as a Markdown table."""
    rows = [f"| {a.what} | {a.value} | {a.why} |" for a in ASSUMPTIONS]
    return "\n".join(
        ["| assumption | value | why, and what it does |", "| --- | --- | --- |", *rows]
    )


def reproduced_table() -> str:
    """Return published and predicted efficiencies as a Markdown table, sources below."""
    head = (
        "| run | published | predicted | error (points) | with 5 / 20 µs | no overlap to perfect "
        "overlap | kind |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    slow, fast = reproduce(latency=20e-6), reproduce(latency=5e-6)
    rows = [
        f"| {row.run.name} | {row.run.published:.1%} | {row.predicted:.1%} "
        f"| {100 * row.error:+.1f} | {f.predicted:.1%} / {s.predicted:.1%} "
        f"| {row.low:.1%} to {row.high:.1%}{'' if row.within_bounds else ' (outside)'} "
        f"| {'fitted' if row.fitted else 'predicted'} |"
        for row, f, s in zip(reproduce(), fast, slow, strict=True)
    ]
    used = {row.run.source: SOURCES[row.run.source] for row in reproduce()}
    notes = [f"- {key}: {text}." for key, text in used.items()]
    fraction = f"Exposed fraction of T_sync, fitted to the 16-GPU runs: {exposed_fraction():.3f}."
    return "\n".join([head, *rows, "", fraction, "Sources:", "", *notes])


# ---- gains by overlap ---------------------------------------------------------------------------


RANKS = 32
MOST_RANKS = 256
GIGABITS = 100.0
IMAGES_PER_SECOND = 363.1
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
        f"| predicted, {BATCHES[0]} / {BATCHES[1]} images per GPU | error (points) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for gain in GAINS:
        low, high = implied_sync_over_backward(gain.published)
        predicted = [predicted_gain(batch) for batch in BATCHES] if gain.has_prediction else []
        shown = " / ".join(f"{value:.1%}" for value in predicted) or "too few numbers published"
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
        "images per GPU | assumed |",
        "| --- | --- | --- | --- |",
        f"| ResNet-50, NCCL, {MOST_RANKS} | near-linear; no number | without overlap "
        f"{' / '.join(f'{value:.0%}' for value in low)}, perfect overlap "
        f"{' / '.join(f'{value:.0%}' for value in high)} | the same servers, one flat ring at "
        "line rate, no stragglers |",
    ]
