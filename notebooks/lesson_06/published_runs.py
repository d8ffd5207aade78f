"""Published hardware numbers in, published efficiencies out, errors stated.

For each run of :mod:`.runs` three predictions of ``T_comp / (T_comp + exposed T_sync)``:

- *low*: nothing overlaps, exposed = T_sync. No fitted number.
- *high*: perfect overlap, exposed = T_sync beyond the two thirds of T_comp that backward takes.
  No fitted number.
- *predicted*: exposed = f * T_sync with one fraction f for all runs, fitted to the three 16-GPU
  runs only. The other rows were not looked at by the fit.

All published values lie between low and high. The predictions of the rows that were not fitted are
all too good, by 2 to 12 points: what the model leaves out (stragglers, contention, protocol) costs
time in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.teaching.cost.all_reduce import cost
from course_lib.teaching.cost.link import Link, bytes_per_second

from .runs import ASSUMPTIONS, LATENCY, RUNS, SOURCES, Run

__all__ = [
    "Reproduced",
    "assumptions_table",
    "exposed_fraction",
    "implied_sync_over_backward",
    "reproduce",
    "reproduced_table",
    "sync_seconds",
]

BACKWARD = 2 / 3


@dataclass(frozen=True)
class Reproduced:
    """A run and what the model says about it; efficiencies between 0 and 1.

    Attributes:
        run: the published run.
        sync: T_sync, seconds.
        low, predicted, high: efficiencies.
        fitted: whether the exposed fraction was fitted to this run: then it is no prediction.
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
    """Return T_sync in seconds beyond what the baseline holds already."""
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
    """Return the predictions for all runs, ``latency`` in seconds a message."""
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
        "| run | published | predicted | error (points) | with 5 / 20 us | no overlap to perfect "
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
    notes = [f"{key}: {text}." for key, text in used.items()]
    fraction = f"Exposed fraction of T_sync, fitted to the 16-GPU runs: {exposed_fraction():.3f}."
    return "\n".join([head, *rows, "", fraction, *notes])
