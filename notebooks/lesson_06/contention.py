"""Where the simulated points leave the formula's line, links are shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Protocol

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullFormatter, NullLocator

from course_lib.teaching.figures.curves import LINE_COLOURS, MARKERS, _finish_axes, _ticks, draw
from course_lib.teaching.figures.figure import Figure
from course_lib.teaching.figures.palette import INK, PAPER, RULE


class Run(Protocol):
    """What is read of a :class:`notebooks.lesson_06.network_simulation.Simulated`."""

    ranks: int
    size_bytes: float
    seconds: float
    formula_seconds: float


_LABELS = {"ranks": "ranks", "size_bytes": "buffer on each rank (bytes)"}


def simulated_beside_formula(
    runs: Mapping[str, Sequence[Run]],
    *,
    along: str = "ranks",
    title: str = "",
    alt: str = "",
) -> Figure:
    """Plot simulated times as points and the formula's as dashed lines, both axes logarithmic.

    Args:
        runs: from a label, e.g. the algorithm, to simulated all-reduces.
        along: what goes along the horizontal axis, "ranks" or "size_bytes".

    Raises:
        ValueError: for another ``along``, or without runs.
    """
    if along not in _LABELS:
        raise ValueError(f"along is {along!r}: it must be one of {', '.join(_LABELS)}")
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
        axes.set(xscale="log", yscale="log", xlabel=_LABELS[along], ylabel="time (seconds)")
        if title:
            axes.set_title(title)
        _ticks(axes.xaxis, axes.get_xlabel())
        _ticks(axes.yaxis, axes.get_ylabel())
        axes.yaxis.set_minor_locator(NullLocator())
        if along == "ranks":
            places = sorted({run.ranks for line in runs.values() for run in line})
            axes.set_xticks(places, [f"{place:,}" for place in places])
            axes.xaxis.set_minor_formatter(NullFormatter())
        _finish_axes(axes)
        axes.plot([], [], "--", color=INK, linewidth=2, label="formula")
        axes.legend(loc="best", frameon=True, facecolor=PAPER, edgecolor=RULE)

    alt = alt or (
        f"{title or 'All-reduces simulated'}: time over {_LABELS[along]}, logarithmic axes; "
        f"points, simulated: {', '.join(runs)}; dashed lines: their formulas."
    )
    return draw(plot, alt, height=3.8)
