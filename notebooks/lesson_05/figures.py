"""The figure of lesson 05: the results of each seed, beside published ones.

A mean alone does not show whether a difference exceeds that between two seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import mean

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullLocator, ScalarFormatter

from course_lib.teaching.figures.curves import LINE_COLOURS, draw, finish_axes
from course_lib.teaching.figures.figure import Figure
from course_lib.teaching.figures.palette import INK


def measured_beside_published(
    measured: Mapping[str, Sequence[float]],
    published: Mapping[str, float],
    *,
    xlabel: str,
    published_xlabel: str,
    title: str = "",
    alt: str = "",
) -> Figure:
    """Plot the runs of each group as points and their mean as a line, beside published numbers.

    ``measured``: from a group's label to positive numbers, one per run, drawn on a logarithmic
    axis. ``published``: from the same labels to one number. ``alt``: should contain no measured
    numbers, so that it is the same in every run. Raises ValueError if the labels differ, a group
    is empty or a number is not positive.
    """
    if set(measured) != set(published):
        raise ValueError(
            f"measured are {sorted(measured)}, published {sorted(published)}: the labels differ"
        )
    if empty := [label for label, values in measured.items() if not len(values)]:
        raise ValueError(f"no runs of {empty[0]!r}")
    if min(value for values in measured.values() for value in values) <= 0:
        raise ValueError("a logarithmic axis shows positive numbers only")
    labels = list(measured)

    def plot(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for row, (label, colour) in enumerate(zip(labels, cycle(LINE_COLOURS), strict=False)):
            values = list(measured[label])
            left.plot(values, [row] * len(values), "o", color=colour, mec=INK, mew=0.6, ms=7)
            centre = mean(values)
            left.plot([centre, centre], [row - 0.34, row + 0.34], color=INK, linewidth=2.5)
            number = published[label]
            right.barh(row, number, height=0.55, color=colour)
            right.text(number, row, f" {number:g}", va="center", fontsize=11)
        left.set_yticks(range(len(labels)), labels)
        left.invert_yaxis()
        left.set(xscale="log", xlabel=xlabel, title="measured here")
        left.xaxis.set_major_formatter(ScalarFormatter())
        left.set_xticks([t for t in (1, 2, 5, 10, 20, 50, 100) if _inside(t, measured)])
        left.xaxis.set_minor_locator(NullLocator())
        right.set(xlabel=published_xlabel, title="published")
        right.set_xlim(0, 1.4 * max(published.values()))
        for axes in (left, right):
            finish_axes(axes, grid="x")
        if title:
            canvas.suptitle(title, fontsize=13, fontweight="bold")

    numbers = ", ".join(f"{label} {published[label]:g}" for label in labels)
    alt = alt or (
        f"{title or 'Measured beside published'}: on the left {xlabel}, a point for each run and "
        f"a line at the mean; on the right {published_xlabel}: {numbers}."
    )
    return draw(plot, alt, height=1.5 + 0.38 * len(labels))


def _inside(tick: float, measured: Mapping[str, Sequence[float]]) -> bool:
    values = [value for group in measured.values() for value in group]
    return min(values) / 1.6 <= tick <= max(values) * 1.6
