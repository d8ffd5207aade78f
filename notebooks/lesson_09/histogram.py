"""How often each whole number came, as bars, and the mean over them as a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from course_lib.teaching.figures.curves import LINE_COLOURS, _finish_axes, draw
from course_lib.teaching.figures.figure import Figure
from course_lib.teaching.figures.palette import INK

__all__ = ["histogram"]

_HATCHES = ("", "///", "...", "xx")


def histogram(
    runs: Mapping[str, Iterable[int]],
    *,
    predicted: Mapping[str, float] | float | None = None,
    xlabel: str = "staleness (updates)",
    ylabel: str = "gradients",
    title: str = "",
    alt: str = "",
) -> Figure:
    """Draw one panel per run: a bar per whole number, a solid line at the mean.

    Args:
        runs: from a label to whole numbers.
        predicted: a number, or one per label, drawn as a dashed line.
        xlabel: below the panels.
        ylabel: beside the first panel.
        title: above all.
        alt: alternative text; leave measured numbers out of it.

    Raises:
        ValueError: if there is no run, or one without numbers.
    """
    counts = {label: Counter(sorted(map(int, values))) for label, values in runs.items()}
    empty = [label for label, counted in counts.items() if not counted]
    if not counts or empty:
        raise ValueError(f"no numbers to count{f' in {empty[0]!r}' if empty else ''}")
    if not isinstance(predicted, Mapping):
        predicted = {} if predicted is None else dict.fromkeys(counts, predicted)
    most = max(max(counted) for counted in counts.values())

    def plot(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(counts), squeeze=False, sharex=True, sharey=True)[0]
        styles = zip(panels, counts.items(), LINE_COLOURS, _HATCHES * 2, strict=False)
        for axes, (label, counted), colour, hatch in styles:
            axes.bar(
                counted.keys(), counted.values(), width=0.8, color=colour, edgecolor=INK,
                linewidth=0.6, hatch=hatch,
            )  # fmt: skip
            mean = sum(value * times for value, times in counted.items()) / counted.total()
            axes.axvline(mean, color=INK, linewidth=2, label=f"mean {mean:.2f}, measured")
            if label in predicted:
                axes.axvline(
                    predicted[label], color=INK, linewidth=2, linestyle=(0, (1, 1.5)),
                    label=f"{predicted[label]:g}, predicted",
                )  # fmt: skip
            axes.set(title=label, xlabel=xlabel, xlim=(-0.7, max(most, 1) + 0.7))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
            _finish_axes(axes)
            axes.legend(loc="upper right", frameon=False, fontsize=10)
        panels[0].set_ylabel(ylabel)
        if title:
            canvas.suptitle(title, fontsize=13, fontweight="bold")

    alt = alt or f"{title or 'Histogram'}: {ylabel} over {xlabel} for {'; '.join(counts)}." + (
        " Solid line: the mean; dotted line: predicted." if predicted else " Line: the mean."
    )
    return draw(plot, alt, height=3.0)
