"""The figures of lesson 06: predictions far beyond the measurements, and published results.

Drawn like :mod:`course_lib.teaching.figures.curves`, with logarithmic axes where numbers span
many orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import (
    FuncFormatter,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from course_lib.teaching.figures.curves import (
    LINE_COLOURS,
    MARKERS,
    Series,
    draw,
    finish_axes,
    log_ticks,
)
from course_lib.teaching.figures.figure import Figure
from course_lib.teaching.figures.palette import INK, PAPER, RULE, SOFT_INK

if TYPE_CHECKING:  # it would bring torch and simpy into every figure
    from .extrapolation import Far
    from .network_simulation import Simulated

__all__ = [
    "efficiencies",
    "predicted_lines",
    "simulated_beside_formula",
    "slowest_of_many",
    "what_breaks_first",
    "where_it_pays",
]

STYLES = ("-", "--", "-.", ":")
_ALONG = {"ranks": "ranks", "size_bytes": "buffer on each rank (bytes)"}


def predicted_lines(
    x: Series,
    predicted: Mapping[str, Series],
    *,
    xlabel: str,
    ylabel: str,
    xscale: str = "log",
    yscale: str = "log",
    marks: Mapping[str, tuple[float, float]] | None = None,
    levels: Mapping[str, float] | None = None,
    title: str = "",
    alt: str,
) -> Figure:
    """Plot predicted lines over ``x``, one for each label, each in its own colour and style.

    ``marks``: points ``(x, y)``, drawn as circles with their labels beside them. ``levels``:
    horizontal lines with their labels. A label of the vertical axis that says "fraction" has
    ticks in per cent.
    """

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for (label, values), colour, style in zip(
            predicted.items(), cycle(LINE_COLOURS), cycle(STYLES)
        ):
            axes.plot(x, values, style, color=colour, linewidth=2.2, label=label)
        axes.set(xscale=xscale, yscale=yscale, xlabel=xlabel, ylabel=ylabel, title=title)
        for axis, scale in ((axes.xaxis, xscale), (axes.yaxis, yscale)):
            if scale == "log":
                axis.set_minor_locator(NullLocator())
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        if "fraction" in ylabel:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        middle = np.sqrt(x[0] * x[-1]) if xscale == "log" else (x[0] + x[-1]) / 2
        for words, (at, value) in (marks or {}).items():
            axes.plot([at], [value], "o", color="white", mec=INK, mew=1.8, ms=9, zorder=5)
            right = at > middle
            axes.annotate(
                words,
                (at, value),
                xytext=(-10 if right else 10, -4),
                textcoords="offset points",
                ha="right" if right else "left",
                va="top",
                fontsize=11,
                bbox={"facecolor": "white", "edgecolor": RULE, "pad": 2, "alpha": 0.9},
            )
        for words, value in (levels or {}).items():
            axes.axhline(value, color=SOFT_INK, linewidth=1, linestyle=":")
            axes.annotate(
                words, (x[-1], value), xytext=(-2, 3), textcoords="offset points", ha="right"
            )
        finish_axes(axes)
        axes.legend(loc="best", frameon=True, edgecolor=RULE)

    return draw(plot, alt, height=3.7)


def where_it_pays(
    bandwidths: Series,
    speed_up: Mapping[int, Series],
    predicted: Callable[[int, float], float],
) -> Figure:
    """Plot measured speed-ups over predicted ones, and the line that they have to cross.

    ``bandwidths``: bytes/s. ``speed_up``: from a number of ranks to one number for each bandwidth.
    ``predicted``: a function of a number of ranks and a bandwidth.
    """
    xlabel, ylabel = "bandwidth of the emulated link (MB/s)", "speed-up over 1 rank"
    title = "It begins to pay where a line crosses that of one rank"
    along = np.geomspace(min(bandwidths), max(bandwidths), 200)

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for (ranks, values), colour, marker in zip(
            speed_up.items(), cycle(LINE_COLOURS), cycle(MARKERS)
        ):
            line = [predicted(ranks, bandwidth) for bandwidth in along]
            axes.plot(along / 1e6, line, color=colour, lw=2, label=f"{ranks} ranks, predicted")
            points = np.asarray(bandwidths) / 1e6, values
            axes.plot(
                *points,
                marker,
                color=colour,
                mec=INK,
                mew=0.8,
                ms=7,
                label=f"{ranks} ranks, measured",
            )
        axes.axhline(1, color=INK, linewidth=1.5, linestyle="--", label="1 rank")
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel, title=title)
        log_ticks(axes.xaxis, xlabel)
        log_ticks(axes.yaxis, ylabel)
        finish_axes(axes)
        canvas.legend(loc="outside lower center", ncols=3, frameon=False)

    labels = ", ".join(f"{ranks} ranks" for ranks in speed_up)
    alt = f"{title}: {ylabel} over {xlabel}, logarithmic axes; points: {labels}; lines: predicted, "
    return draw(plot, alt + "and a horizontal line at 1 for 1 rank.", height=4.1)


def slowest_of_many(ranks: Series, slowest: Mapping[str, Series]) -> Figure:
    """Plot how many times its mean a step takes if it waits for the slowest rank.

    ``slowest``: from a kind of delay to one number for each number of ranks.
    """
    ends = "; ".join(f"{kind}, {values[-1]:.2g}" for kind, values in slowest.items())
    return predicted_lines(
        ranks,
        {**slowest, "all equal": [1.0] * len(ranks)},
        xlabel="ranks R",
        ylabel="slowest / mean",
        yscale="linear",
        title="How much longer a step takes than its mean (predicted)",
        alt=f"Expected slowest of R ranks over the mean, a logarithmic axis for R: rising lines "
        f"that end at {ranks[-1]:,} ranks ({ends}), and a horizontal line at 1.",
    )


def what_breaks_first(far: Sequence[Far]) -> Figure:
    """Plot the efficiency that each limit by itself leaves, against the number of ranks."""
    lines = {
        "step, flat ring": [point.ring_efficiency for point in far],
        "step, two levels": [point.two_level_efficiency for point in far],
        "samples that count": [point.sample_efficiency for point in far],
        "time without failures": [point.availability for point in far],
    }
    ranks = [point.ranks for point in far]
    ends = "; ".join(f"{what}, {values[-1]:.2f}" for what, values in lines.items())
    halved = {
        what: next(r for r, left in zip(ranks, values, strict=True) if left < 0.5)
        for what, values in lines.items()
        if min(values) < 0.5
    }
    halves = "; ".join(f"{what}, from {r:,} ranks on" for what, r in halved.items())
    return predicted_lines(
        ranks,
        lines,
        xlabel="ranks R",
        ylabel="fraction that is left",
        yscale="linear",
        title="What breaks first (predicted)",
        alt=f"Four fractions over {ranks[0]:,} to {ranks[-1]:,} ranks, logarithmic axis. Below "
        f"one half: {halves}. What is left at {ranks[-1]:,} ranks: {ends}.",
    )


def efficiencies(
    rows: Sequence[tuple[str, float, float, float, float]], *, title: str = "", alt: str
) -> Figure:
    """Plot published efficiencies beside predicted ones, and the bounds of the prediction.

    ``rows``: ``(name, published, low, predicted, high)`` with fractions between 0 and 1, drawn
    from top to bottom.
    """

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for row, (_, published, low, predicted, high) in enumerate(rows):
            last = row == len(rows) - 1
            names = ("no overlap to perfect overlap", "predicted", "published")
            bar, point, diamond = names if last else (None, None, None)
            axes.plot(
                [low, high],
                [row] * 2,
                color=RULE,
                linewidth=9,
                solid_capstyle="butt",
                label=bar,
            )
            blue, red = LINE_COLOURS[0], LINE_COLOURS[1]
            axes.plot([predicted], [row], "o", color=blue, mec=INK, ms=8, label=point)
            axes.plot([published], [row], "D", color=red, mec=INK, ms=7, label=diamond)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(xlabel="efficiency (fraction of perfect scaling)", title=title)
        finish_axes(axes, grid="x")
        handles, labels = axes.get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)

    return draw(plot, alt, height=1.6 + 0.3 * len(rows))


def simulated_beside_formula(
    runs: Mapping[str, Sequence[Simulated]],
    *,
    along: str = "ranks",
    title: str = "",
    alt: str = "",
) -> Figure:
    """Plot simulated times as points and the formula's as dashed lines, both axes logarithmic.

    Args:
        runs: from a label, e.g. the algorithm, to simulated all-reduces.
        along: the quantity on the horizontal axis, "ranks" or "size_bytes".

    Raises:
        ValueError: for another ``along``, or without runs.
    """
    if along not in _ALONG:
        raise ValueError(f"along is {along!r}: it must be one of {', '.join(_ALONG)}")
    if not runs or not all(runs.values()):
        raise ValueError("give at least one run for each label")

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for (label, line), colour, marker in zip(
            runs.items(), cycle(LINE_COLOURS), cycle(MARKERS), strict=False
        ):
            x = [getattr(run, along) for run in line]
            axes.plot(x, [run.formula_seconds for run in line], "--", color=colour, linewidth=2)
            axes.plot(
                x,
                [run.seconds for run in line],
                marker,
                color=colour,
                mec=INK,
                mew=0.8,
                ms=7,
                label=label,
            )
        axes.set(xscale="log", yscale="log", xlabel=_ALONG[along], ylabel="time (seconds)")
        if title:
            axes.set_title(title)
        log_ticks(axes.xaxis, axes.get_xlabel())
        log_ticks(axes.yaxis, axes.get_ylabel())
        axes.yaxis.set_minor_locator(NullLocator())
        if along == "ranks":
            places = sorted({run.ranks for line in runs.values() for run in line})
            axes.set_xticks(places, [f"{place:,}" for place in places])
            axes.xaxis.set_minor_formatter(NullFormatter())
        finish_axes(axes)
        axes.plot([], [], "--", color=INK, linewidth=2, label="formula")
        axes.legend(loc="best", frameon=True, facecolor=PAPER, edgecolor=RULE)

    alt = alt or (
        f"{title or 'All-reduces simulated'}: time over {_ALONG[along]}, logarithmic axes; "
        f"points, simulated: {', '.join(runs)}; dashed lines: their formulas."
    )
    return draw(plot, alt, height=3.8)
