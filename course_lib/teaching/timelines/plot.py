"""The lanes of all ranks above each other, cut out of the whole where one looks."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from ..figures.curves import draw
from ..figures.figure import Figure
from ..figures.palette import INK, PAPER, RULE, SOFT_INK, rank_colour
from .lanes import COMPUTING, OVERLAPPING, SENDING, STATES, WAITING, Lane

__all__ = ["lane_figure", "pale"]

_PALE = 0.7  # how much paper is mixed into a rank's colour where it moves data
_MOST_ROWS = 3
_BAR, _THIN = 0.36, 0.12


def lane_figure(lanes: list[Lane], start: float, end: float, title: str, alt: str) -> Figure:
    """Draw ``lanes`` from ``start`` to ``end`` seconds."""

    def plot(canvas) -> None:
        axes = canvas.subplots()
        for place, lane in enumerate(lanes):
            _draw_lane(axes, place, lane, start, end)
        axes.set_xlim(start, end)
        axes.set_ylim(len(lanes) - 0.45, -0.62)
        axes.set_yticks(range(len(lanes)), [f"rank {lane.rank}" for lane in lanes])
        for label in axes.get_yticklabels():
            label.set(color=INK, fontweight="bold")
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(EngFormatter(unit="s"))
        axes.set(title=title, xlabel="time from the beginning")
        axes.grid(True, axis="x", color=RULE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        present = {span.state for lane in lanes for span in _within(lane.program, start, end)}
        keys = [
            Patch(**_style(state, SOFT_INK), label=state) for state in STATES if state in present
        ]
        if any(lane.operations for lane in lanes):
            keys.append(Line2D([], [], color=SOFT_INK, lw=3, label="messages and collectives"))
        canvas.legend(handles=keys, loc="outside lower center", ncols=2, frameon=False)

    return draw(plot, alt, height=1.75 + 0.62 * len(lanes))


def pale(colour: str, paper: float = _PALE) -> str:
    """Return ``colour`` with a share of paper in it."""
    at = (1, 3, 5)
    pairs = ((int(colour[i : i + 2], 16), int(PAPER[i : i + 2], 16)) for i in at)
    return "#" + "".join(f"{round((1 - paper) * own + paper * white):02X}" for own, white in pairs)


def _draw_lane(axes, place: int, lane: Lane, start: float, end: float) -> None:
    colour = rank_colour(lane.rank)
    for state in STATES:
        bars = [
            (span.start, span.end - span.start)
            for span in _within(lane.program, start, end)
            if span.state == state
        ]
        if bars:
            axes.broken_barh(bars, (place - _BAR / 2, _BAR), linewidth=0.4, **_style(state, colour))
    for row, events in enumerate(lane.rows()[:_MOST_ROWS]):
        bars = [(event.start, event.end - event.start) for event in _within(events, start, end)]
        top = place + _BAR / 2 + 0.02 + 0.8 * row * _THIN
        axes.broken_barh(
            bars, (top, 0.65 * _THIN), facecolor=SOFT_INK, edgecolor=PAPER, linewidth=0.3
        )
    for event in _within(lane.sections, start, end):
        left, right = max(event.start, start), min(event.end, end)
        y = place - _BAR / 2 - 0.06
        axes.plot([left, right], [y, y], color=INK, linewidth=1.2, solid_capstyle="butt")
        if (right - left) / (end - start) > 0.013 * len(event.shape):
            axes.text(
                (left + right) / 2, y - 0.03, event.shape, ha="center", va="bottom", size=9.5,
                color=INK, clip_on=True,
            )  # fmt: skip


def _style(state: str, colour: str) -> dict:
    if state == COMPUTING:
        return {"facecolor": colour, "edgecolor": colour}
    if state == OVERLAPPING:
        return {"facecolor": colour, "edgecolor": PAPER, "hatch": "--"}
    if state == SENDING:
        return {"facecolor": pale(colour), "edgecolor": colour}
    assert state == WAITING
    return {
        "facecolor": PAPER,
        "edgecolor": RULE if colour != SOFT_INK else SOFT_INK,
        "hatch": "////",
    }


def _within(spans: list, start: float, end: float) -> Iterator:
    return (span for span in spans if span.end >= start and span.start <= end)
