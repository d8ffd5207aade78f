"""Plots: measured points over predicted lines, and the curves of training runs.

Every plot of the course is made with :func:`draw` and :func:`finish_axes`, including those of a
lesson's own figures. They use matplotlib apart from pyplot's global state, so that a figure never
depends on what a learner has set or plotted before. The same data gives the same SVG, byte for
byte.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
)

from .figure import WIDTH, Figure
from .palette import INK, PAPER, RANK_COLOURS, RULE, SOFT_INK
from .traffic import spelled

# Yellow is left out: it is too pale for a thin line on white.
LINE_COLOURS = tuple(colour for colour in RANK_COLOURS if colour != "#F0E442")
_FEW = 6  # x of which each gets a tick
_MOST_IN_AXES = 3  # a legend of more would lie on the points
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
AXIS_LABELS = {
    "loss": "loss (cross-entropy, nats)",
    "accuracy": "accuracy (fraction right)",
    "samples_per_second": "throughput (samples/s)",
}
Series = Sequence[float] | np.ndarray


def measured_and_predicted(
    x: Series,
    measured: Series | Mapping[str, Series],
    predicted: Series | Callable | Mapping[str, Series | Callable] | None = None,
    *,
    xlabel: str = "message size (bytes)",
    ylabel: str = "time (seconds)",
    scale: str = "log",
    spread: Sequence[tuple[float, float]] | None = None,
    title: str = "",
    alt: str = "",
) -> Figure:
    """Plot measured points over predicted lines, by default with logarithmic axes.

    ``x``: positive numbers. ``measured``: one number per x, or a mapping from a label to
    such numbers. ``predicted``: the same, or a function of x, or a mapping with the same labels;
    a function is drawn as a smooth line. An axis whose label says bytes or seconds has ticks
    in KiB and MiB, or in us and ms. ``scale``: "log", or "linear": from 0, with ticks at the x
    and decimal bytes. ``spread``: for each x the two ends of the middle half of many rounds of
    measuring, drawn as a bar; for ``measured`` without labels. ``alt``: alternative text; leave
    measured numbers out of it so that it is the same in each run. The legend of more than three
    labels is below the plot.
    """
    if scale not in ("log", "linear"):
        raise ValueError(f"scale is {scale!r}: it must be 'log' or 'linear'")
    x = np.asarray(x, dtype=float)
    measured = measured if isinstance(measured, Mapping) else {"": measured}
    if not isinstance(predicted, Mapping):
        predicted = {} if predicted is None else dict.fromkeys(measured, predicted)
    unknown = set(predicted) - set(measured)
    if unknown:
        raise ValueError(f"predicted but not measured: {sorted(unknown)}")
    crowded = len(measured) > _MOST_IN_AXES
    for label, values in measured.items():
        if len(values) != len(x):
            raise ValueError(f"{len(values)} values of {label or 'measured'!r} for {len(x)} x")
    if spread is not None and (len(spread) != len(x) or set(measured) != {""}):
        raise ValueError("spread needs a pair for each x, and measurements without a label")

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for (label, values), colour, marker in zip(
            measured.items(), cycle(LINE_COLOURS), cycle(MARKERS)
        ):
            model = predicted.get(label)
            if model is not None:
                line_x = np.geomspace(x.min(), x.max(), 200) if callable(model) else x
                line_y = [model(v) for v in line_x] if callable(model) else model
                name = ", ".join(filter(None, [label, "predicted"]))
                axes.plot(line_x, line_y, color=colour, linewidth=2, label=name)
            name = ", ".join(filter(None, [label, "measured"]))
            axes.plot(x, values, marker, color=colour, mec=INK, mew=0.8, ms=7, label=name)
        if spread is not None:
            label = "the middle half of all rounds"
            axes.vlines(x, *zip(*spread, strict=True), color=INK, linewidth=1.6, label=label)
        axes.set(xscale=scale, yscale=scale, title=title)
        axes.set(xlabel=_unit_on_ticks(xlabel), ylabel=_unit_on_ticks(ylabel))
        if scale == "log":
            log_ticks(axes.xaxis, xlabel)
            if len(x) <= _FEW and "bytes" not in xlabel:
                axes.xaxis.set_major_locator(FixedLocator(x.tolist()))
            log_ticks(axes.yaxis, ylabel)
        else:
            axes.set(xlim=(0, None), ylim=(0, None), xticks=x)
            if "bytes" in ylabel or "second" in ylabel:
                axes.yaxis.set_major_formatter(EngFormatter(unit="B" if "bytes" in ylabel else "s"))
        finish_axes(axes)
        if crowded:
            _legend_below(canvas, measured, bool(predicted))
        else:
            axes.legend(loc="best", frameon=True, facecolor=PAPER, edgecolor=RULE)

    names = ", ".join(filter(None, measured)) or "measured"
    kind = "logarithmic axes" if scale == "log" else "linear axes"
    alt = alt or f"{title or 'Plot'}: {ylabel} over {xlabel}, {kind}; points: {names}" + (
        "; lines: predicted." if predicted else "."
    )
    return draw(plot, alt, height=4.6 if crowded else 3.4)


def _unit_on_ticks(label: str) -> str:
    """The label without "(seconds)", where each tick has its own unit, such as ms."""
    return label.replace(" (seconds)", "")


def _legend_below(canvas: Canvas, labels: Iterable[str], with_lines: bool) -> None:
    """One entry for the points and the line of each label, where they hide nothing."""
    handles = [
        Line2D([], [], color=colour, marker=marker, mec=INK, mew=0.8, ms=7, lw=2 * with_lines)
        for _, colour, marker in zip(labels, cycle(LINE_COLOURS), cycle(MARKERS))
    ]
    title = "points: measured, lines: predicted" if with_lines else "measured"
    canvas.legend(
        handles, list(labels), loc="outside lower center", ncols=3, frameon=False, title=title
    )


def curves(
    runs: Mapping[str, object],
    quantities: Sequence[str] = ("loss", "accuracy"),
    *,
    x: str | None = None,
    xlabel: str = "epoch",
    title: str = "",
    alt: str = "",
) -> Figure:
    """Plot how ``quantities`` went in several training ``runs``, one panel per quantity.

    ``runs``: from a run's label to its history: a mapping from a quantity's name to its numbers,
    or an object with an attribute of that name. ``x``: the name of what goes along the
    horizontal axis, in the same histories; without it, 1, 2, 3, ... Raises ValueError if a
    history lacks a quantity.
    """
    if not runs:
        raise ValueError("no runs: give at least one history")

    def plot(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(quantities), squeeze=False)[0]
        for axes, quantity in zip(panels, quantities, strict=True):
            for (label, run), colour, marker in zip(
                runs.items(), cycle(LINE_COLOURS), cycle(MARKERS)
            ):
                values = _values(run, quantity, label)
                along = range(1, len(values) + 1) if x is None else _values(run, x, label)
                few = marker if len(values) <= 30 else ""
                axes.plot(along, values, color=colour, marker=few, ms=5, linewidth=2, label=label)
            axes.set(xlabel=xlabel, ylabel=AXIS_LABELS.get(quantity, quantity))
            if x is None:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            finish_axes(axes)
        if title:
            canvas.suptitle(title, fontsize=13, fontweight="bold")
        handles, labels = panels[0].get_legend_handles_labels()
        columns = min(len(runs), 2)
        canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)

    alt = alt or f"{title or 'Curves'}: {' and '.join(quantities)} over {xlabel} for " + (
        "; ".join(runs) + "."
    )
    return draw(plot, alt, height=3.1 + 0.22 * ((len(runs) - 1) // 2) + (0.25 if title else 0))


def _values(run: object, quantity: str, label: str) -> np.ndarray:
    values = run.get(quantity) if isinstance(run, Mapping) else getattr(run, quantity, None)
    if values is None:
        raise ValueError(f"the history of {label!r} has no {quantity!r}")
    return np.asarray(values, dtype=float)


def draw(plot: Callable[[Canvas], None], alt: str, height: float) -> Figure:
    """Run ``plot`` on a fresh canvas, ``height`` in inches, and return the figure."""
    style: Any = {
        "svg.hashsalt": "rank by rank",
        "svg.fonttype": "path",  # letters as shapes: the same picture whatever fonts are there
        "font.size": 12,
        "axes.titlesize": 13,
        "axes.titleweight": "bold",
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "axes.facecolor": PAPER,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": SOFT_INK,
        "xtick.color": SOFT_INK,
        "ytick.color": SOFT_INK,
        "legend.fontsize": 11,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        padded = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)  # inches
        canvas = Canvas(figsize=(WIDTH / 72, height), layout=padded)
        canvas.set(edgecolor=RULE, linewidth=1)  # the thin frame that the diagrams have too
        FigureCanvasSVG(canvas)
        plot(canvas)
        text = io.StringIO()
        canvas.savefig(text, format="svg", edgecolor="auto", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]  # no XML declaration inside <img>
    return Figure(svg, alt)


def finish_axes(axes: Any, grid: str = "both") -> None:
    """Give axes the look of the course: a pale ``grid`` ("x", "y" or "both") behind the data."""
    axes.grid(True, which="major", axis=grid, color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_ticks(axis: Any, label: str) -> None:
    """Put few ticks on a logarithmic axis, in the unit that its ``label`` names."""
    low, high = axis.get_data_interval()
    narrow = high < 50 * low
    axis.set_minor_locator(NullLocator())
    if "bytes" in label:
        axis.set_major_locator(LogLocator(base=2 if narrow else 16))
        axis.set_major_formatter(FuncFormatter(lambda value, _: spelled(value)))
        return
    if high < 5 * low:
        axis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3))
    elif high < 100 * low:  # less than two decades have too few powers of ten
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    if "second" in label:
        axis.set_major_formatter(EngFormatter(unit="s"))
    elif low >= 0.01 and high <= 1e5:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
