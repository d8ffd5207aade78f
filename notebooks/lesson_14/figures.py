"""The figures of lesson 14, each as a function that draws into axes: for notebook and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rank_by_rank.lesson_14.tasks import Measured

from course_lib.teaching.figures.curves import draw, finish_axes
from course_lib.teaching.figures.figure import Figure
from course_lib.teaching.figures.palette import INK, PAPER, RULE, SOFT_INK, blend, rank_colour
from course_lib.teaching.timelines.lanes import COMPUTING, OVERLAPPING, Lane

__all__ = ["accuracy_over_time", "draw_accuracy", "draw_timeline", "draw_traffic", "two_parts"]

ALONE, TOGETHER = SOFT_INK, "#D55E00"


def draw_accuracy(axes: Any, alone: Measured, together: Measured) -> None:
    """Draw one run's test accuracy over the seconds of training, and where it met the target."""
    for run, name, colour, marker in (
        (alone, "one rank", ALONE, "s"),
        (together, f"{together.ranks} ranks, {together.plan.strategy}", TOGETHER, "o"),
    ):
        seconds = [look.seconds for look in run.looks]
        accuracies = [look.accuracy for look in run.looks]
        axes.plot(seconds, accuracies, color=colour, marker=marker, ms=4, lw=1.8, label=name)
        if run.reached is not None:
            axes.axvline(run.reached.seconds, color=colour, lw=1, ls=":")
    axes.axhline(together.target, color=INK, lw=1, ls="--", label="target")
    axes.set(xlabel="training time (s)", ylabel="accuracy (fraction)", xlim=(0, None), ylim=(0, 1))
    finish_axes(axes)
    axes.legend(loc="lower right", frameon=True, facecolor=PAPER, edgecolor=RULE, fontsize=9)


def draw_timeline(axes: Any, lanes: Sequence[Lane]) -> None:
    """Draw what each rank did in a few steps: at work, at work while data move, or waiting."""
    for lane in lanes:
        colour = rank_colour(lane.rank)
        for span in lane.program:
            place = [(1e3 * span.start, 1e3 * (span.end - span.start))], (lane.rank - 0.35, 0.7)
            if span.state == COMPUTING:
                axes.broken_barh(*place, facecolor=colour, edgecolor="none")
            elif span.state == OVERLAPPING:
                axes.broken_barh(*place, facecolor=blend(colour, PAPER, 0.45), edgecolor="none")
            else:
                axes.broken_barh(*place, facecolor=PAPER, edgecolor=RULE, hatch="////", lw=0.4)
    ranks = [lane.rank for lane in lanes]
    axes.set(
        xlabel="time (ms); solid: at work, pale: at work while data move, hatched: waits or sends",
        yticks=ranks,
        yticklabels=[f"rank {rank}" for rank in ranks],
        xlim=(0, 1e3 * min((lane.end for lane in lanes), default=1e-3)),
    )
    axes.invert_yaxis()
    finish_axes(axes, grid="x")


def draw_traffic(axes: Any, runs: Sequence[Measured]) -> None:
    """Draw the bytes that each rank handed over to collectives or sent itself, to the target."""
    ranks = range(len(runs))
    collective = [run.handed_over / 2**20 for run in runs]
    own = [run.sent / 2**20 for run in runs]
    colours = [rank_colour(rank) for rank in ranks]
    axes.bar(ranks, collective, color=colours, edgecolor=INK, lw=0.6)
    axes.bar(ranks, own, bottom=collective, color=colours, edgecolor=INK, lw=0.6, hatch="//")
    kinds = "to collectives" if any(collective) else "in messages"
    if any(collective) and any(own):
        kinds = "sent (hatched: messages)"
    axes.set(xlabel="rank", ylabel=f"MiB {kinds}", xticks=list(ranks))
    highest = max((a + b for a, b in zip(collective, own, strict=True)), default=0.0)
    axes.set_ylim(0, 1.15 * highest or 1.0)
    finish_axes(axes, grid="y")


def accuracy_over_time(alone: Measured, together: Measured) -> Figure:
    """Return the accuracy of one and of several ranks over time."""
    alt = (
        f"Test accuracy over training time of one rank and of {together.ranks} ranks with "
        f"{together.plan.strategy}; a dashed line at the target, dotted ones where it is reached."
    )
    return _figure(lambda axes: draw_accuracy(axes, alone, together), alt, 3.2)


def _figure(plot: Callable[[Any], None], alt: str, height: float) -> Figure:
    return draw(lambda canvas: plot(canvas.subplots()), alt, height)


def two_parts() -> Figure:
    """Return the two parts of a speed-up: fewer steps, and longer ones."""

    def plot(axes: Any) -> None:
        rows = (
            ("one rank", 12, 1.0, 0.0),
            ("4 ranks: hoped for", 3, 1.0, 0.0),
            ("4 ranks: what comes", 4, 1.0, 0.7),
        )
        for row, (_, steps, compute, sync) in enumerate(rows):
            for step in range(steps):
                begin = step * (compute + sync)
                place = row - 0.3, 0.6
                axes.broken_barh(
                    [(begin, compute)], place, facecolor=rank_colour(0), edgecolor=PAPER
                )
                if sync:
                    pale = {"facecolor": PAPER, "edgecolor": INK, "hatch": "////", "lw": 0.6}
                    axes.broken_barh([(begin + compute, sync)], place, **pale)
        axes.set(
            yticks=range(len(rows)),
            yticklabels=[name for name, *_ in rows],
            xlabel="time to the target (steps of one rank); hatched: communication",
            xlim=(0, 12),
        )
        axes.invert_yaxis()
        finish_axes(axes, grid="x")

    alt = (
        "One rank takes twelve steps to the target. Four ranks were expected to take three steps "
        "of the same length; they take four, each longer by a hatched part for communication."
    )
    return _figure(plot, alt, 2.3)
