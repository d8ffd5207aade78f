"""The figures of lesson 12: a loss across deaths, and the time lost to saving and to failures.

Points are losses measured on ranks, or times lost in a simulation; the line under them shows the
values that they should equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from course_lib.teaching.figures.curves import (
    AXIS_LABELS,
    LINE_COLOURS,
    MARKERS,
    draw,
    finish_axes,
)
from course_lib.teaching.figures.figure import Figure
from course_lib.teaching.figures.palette import INK, SOFT_INK

__all__ = ["loss_across_deaths", "saving_interval"]


def loss_across_deaths(
    losses: Sequence[float],
    serial: Sequence[float],
    deaths: Mapping[int, int],
    ranks: int,
    *,
    alt: str = "",
) -> Figure:
    """Plot the loss of each step before, between and after deaths, over that of a serial run.

    Args:
        losses: the loss of each step, beginning with step 0.
        serial: the losses of the serial run, which the others should equal.
        deaths: maps the step in which a rank died to that rank.
        ranks: the number of ranks at the beginning.
        alt: alternative text; leave measured numbers out of it.

    Raises:
        ValueError: if the two lists differ in length, or a death is outside their steps.
    """
    if len(losses) != len(serial):
        raise ValueError(f"{len(losses)} losses, but {len(serial)} of the serial run")
    outside = [step for step in deaths if not 0 <= step < len(losses)]
    if outside:
        raise ValueError(f"a death in step {outside[0]}, but the steps are 0 to {len(losses) - 1}")
    edges = [0, *sorted(deaths), len(losses)]

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.plot(range(len(serial)), serial, color=SOFT_INK, linewidth=1.5, label="one process")
        for part in range(len(edges) - 1):
            steps = range(edges[part], edges[part + 1])
            left = ranks - part
            axes.plot(
                steps,
                [losses[step] for step in steps],
                MARKERS[part],
                color=LINE_COLOURS[part],
                mec=INK,
                mew=0.6,
                ms=5,
                label=f"{left} rank" + ("s" if left > 1 else ""),
            )
        for step, rank in deaths.items():
            axes.axvline(step - 0.5, color=INK, linewidth=1.2, linestyle="--")
            axes.annotate(
                f"rank {rank} dies",
                (step - 0.5, 1),
                xycoords=("data", "axes fraction"),
                xytext=(4, -10),
                textcoords="offset points",
                fontsize=11,
            )
        axes.set(xlabel="step", ylabel=AXIS_LABELS["loss"])
        finish_axes(axes)
        axes.legend(loc="upper right", frameon=True)

    told = ", ".join(f"rank {rank} dies in step {step}" for step, rank in sorted(deaths.items()))
    return draw(plot, alt or f"Loss over {len(losses)} steps beside a serial run; {told}.", 3.2)


def saving_interval(
    simulated: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    expected: Mapping[str, Callable],
    best: Mapping[str, float],
    *,
    alt: str = "",
) -> Figure:
    """Plot the share of time lost against the seconds between saves, both logarithmic.

    Args:
        simulated: maps a label to intervals (seconds) and the shares lost there (0 to 1).
        expected: maps the same labels to the share lost as a function of the interval.
        best: maps the same labels to Young's interval, drawn as a dashed line.
        alt: alternative text.
    """

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for index, (label, (intervals, shares)) in enumerate(simulated.items()):
            colour = LINE_COLOURS[index]
            line = np.geomspace(min(intervals), max(intervals), 200)
            axes.plot(line, expected[label](line), color=colour, linewidth=2)
            axes.plot(
                intervals,
                shares,
                MARKERS[index],
                color=colour,
                mec=INK,
                mew=0.8,
                ms=6,
                label=f"{label}, simulated",
            )
            axes.axvline(best[label], color=colour, linewidth=1.4, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel="time from save to save (seconds)")
        axes.set_ylabel("share of time lost")
        axes.set_ylim(None, 1)
        axes.yaxis.set_major_locator(FixedLocator([0.05, 0.1, 0.2, 0.5, 1]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(FixedLocator([30, 100, 300, 1000, 3000, 10_000]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        finish_axes(axes)
        axes.plot([], [], color=INK, linewidth=2, label="exact mean")
        axes.plot([], [], "--", color=INK, linewidth=1.4, label="Young's interval")
        canvas.legend(loc="outside lower center", ncols=2, frameon=False)

    alt = alt or (
        f"Share of time lost over the time from save to save, logarithmic axes, for "
        f"{' and '.join(simulated)}: each curve has a valley, near the dashed line."
    )
    return draw(plot, alt, 3.7)
