"""The figure of lesson 08: how far weights are from the minimum, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Canvas

from course_lib.teaching.figures.curves import LINE_COLOURS, draw, finish_axes
from course_lib.teaching.figures.figure import Figure

__all__ = ["distances_to_minimum"]
STYLES = ("-", "--", "-.")


def distances_to_minimum(distances: Mapping[str, Sequence[float]], *, alt: str = "") -> Figure:
    """Plot the distance to the minimum over the steps, one line per run, on a logarithmic axis.

    Args:
        distances: maps the label of a run to its distance after each step, as a fraction of the
            norm of the weights at the minimum.
        alt: alternative text; leave measured numbers out of it.

    Raises:
        ValueError: if there are no runs, or more than three.
    """
    if not 0 < len(distances) <= len(STYLES):
        raise ValueError(f"{len(distances)} runs, but there are line styles for 1 to {len(STYLES)}")

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for (label, run), colour, style in zip(
            distances.items(), LINE_COLOURS, STYLES, strict=False
        ):
            steps = range(1, len(run) + 1)
            axes.plot(steps, run, style, color=colour, linewidth=2, label=label)
        axes.set(xlabel="step", yscale="log")
        axes.set_ylabel("distance to the minimum\n(part of its length)")
        finish_axes(axes)
        canvas.legend(loc="outside lower center", ncols=2, frameon=False)

    alt = alt or (
        f"Distance to the minimum over the steps, logarithmic, for {'; '.join(distances)}."
    )
    return draw(plot, alt, 3.7)
