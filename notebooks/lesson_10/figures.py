"""The figures of lesson 10: when each rank computes which micro-batch, and how many it holds.

Forward is drawn solid, backward pale; if backward is split in two, the half for the weights has
only a frame. Idle time is hatched. The number in a box is that of its micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure, round_step
from course_lib.teaching.figures.palette import (
    INK,
    PAPER,
    RULE,
    SOFT_INK,
    blend,
    rank_colour,
    text_on,
)

from .pipeline_schedules import Placed, bubble, in_flight, seconds_of

__all__ = ["pipeline"]

Lanes = Sequence[Sequence[Placed]]

_MARGIN, _LABEL, _LANE, _BAR, _TITLE, _HEADER, _HOLDS = 16, 76, 34, 26, 34, 18, 56
_PALE = 0.72  # how much paper is mixed into the colour of a backward
_WHOLE = {"F": "forward", "B": "backward"}
_HALVES = {"F": "F: forward", "B": "B: backward, inputs", "W": "W: backward, weights"}


def pipeline(
    placed: Lanes,
    title: str,
    *,
    measured: bool = False,
    holds: bool = False,
    against: tuple[str, Lanes] | None = None,
    alt: str = "",
) -> Figure:
    """Draw when each rank does what, over time.

    Args:
        placed: the tasks of each rank, with their times.
        title: above the figure; the share of idle time is added to it.
        measured: whether the times are seconds of a clock, not units.
        holds: whether to write beside each rank how many micro-batches it holds at most.
        against: name and times of another schedule, whose end is marked as well.
        alt: alternative text; required if times are measured, because these vary.
    """
    kinds = {one.task.kind for rank in placed for one in rank}
    axis = _Axis(placed, seconds_of(against[1]) if against else 0.0, measured, holds)
    top = _TITLE + (_HEADER if holds or against else 0)
    bottom = top + _LANE * len(placed)
    drawing = Drawing(WIDTH, bottom + 66)
    idle = bubble(placed)
    words = f"{title}: {idle:.0%} idle" + (" (measured here)" if measured else "")
    drawing.text(_MARGIN, 20, words, size=15, bold=True, anchor="start")
    for rank, row in enumerate(placed):
        _lane(drawing, axis, rank, row, top + _LANE * (rank + 0.5))
        if holds:
            most = in_flight([task for task, _, _ in row])
            drawing.text(WIDTH - _MARGIN, top + _LANE * (rank + 0.5), most, bold=True, anchor="end")
    if holds:
        drawing.text(WIDTH - _MARGIN, top - 9, "holds", size=13, fill=SOFT_INK, anchor="end")
    if against:
        _end(drawing, axis, axis.length, f"{axis.length:g}", top, bottom)
        _end(drawing, axis, axis.until, f"{against[0]}: {axis.until:g}", top, bottom)
    axis.draw(drawing, bottom + 2)
    _legend(drawing, _HALVES if "W" in kinds else _WHOLE, bottom + 48)
    return drawing.finish(alt or _in_words(placed, title, holds, against))


class _Axis:
    """Where on the paper a time lies; times count from the first task."""

    def __init__(self, placed: Lanes, at_least: float, measured: bool, holds: bool):
        self.first = min(one.start for rank in placed for one in rank)
        self.length = seconds_of(placed)
        self.until = max(self.length, at_least)
        self.scale, self.unit = (1e3, "ms") if measured else (1, "units")
        self.left, self.right = _MARGIN + _LABEL, WIDTH - _MARGIN - (_HOLDS if holds else 0)

    def x(self, time: float) -> float:
        return self.left + (self.right - self.left) * (time - self.first) / self.until

    def draw(self, drawing: Drawing, y: float) -> None:
        drawing.line(self.left, y, self.right, y, stroke=SOFT_INK, width=1)
        step = round_step(self.scale * self.until / 8)
        for number in range(int(self.scale * self.until / step) + 1):
            x = self.x(self.first + number * step / self.scale)
            drawing.line(x, y, x, y + 4, stroke=SOFT_INK, width=1)
            drawing.text(x, y + 12, f"{number * step:g}", size=12, fill=SOFT_INK)
        words = f"time ({self.unit}) \u2192"
        drawing.text(WIDTH - _MARGIN, y + 27, words, size=12, fill=SOFT_INK, anchor="end")


def _lane(drawing: Drawing, axis: _Axis, rank: int, row: Sequence[Placed], y: float) -> None:
    drawing.rank_label(rank, _MARGIN, y)
    end = axis.x(axis.first + axis.length)
    style = {"fill": drawing.hatch(RULE), "stroke": RULE}
    drawing.rectangle(axis.left, y - _BAR / 2, end - axis.left, _BAR, radius=0, **style)
    for task, start, stop in row:
        fill = _fill(task.kind, rank, task.chunk)
        x, width = axis.x(start), max(axis.x(stop) - axis.x(start), 1.0)
        edge = PAPER if task.kind == "F" else rank_colour(rank)
        drawing.rectangle(x, y - _BAR / 2, width, _BAR, fill=fill, stroke=edge, radius=0)
        number = str(task.micro_batch)
        if width >= 9 * len(number) + 2:
            drawing.text(x + width / 2, y, number, size=12, fill=text_on(fill))


def _end(drawing: Drawing, axis: _Axis, time: float, words: str, top: float, bottom: float) -> None:
    x = axis.x(axis.first + time)
    drawing.line(x, top - 1, x, bottom, stroke=INK, dashed=True)
    drawing.text(x + 4, top - 9, words, size=12, anchor="end", bold=True)


def _fill(kind: str, rank: int, chunk: int) -> str:
    if kind == "W":
        return PAPER
    colour = blend(rank_colour(rank), INK, 0.35 * (chunk % 2))
    return colour if kind == "F" else blend(colour, PAPER, _PALE)


def _legend(drawing: Drawing, kinds: dict[str, str], y: float) -> None:
    x: float = _MARGIN
    for kind, words in kinds.items():
        fill = _fill(kind, 0, 0)
        drawing.rectangle(x, y - 7, 22, 14, fill=fill, stroke=rank_colour(0), radius=0)
        drawing.text(x + 28, y, words, size=13, fill=SOFT_INK, anchor="start")
        x += 46 + 7 * len(words)
    drawing.rectangle(x, y - 7, 22, 14, fill=drawing.hatch(RULE), stroke=RULE, radius=0)
    drawing.text(x + 28, y, "idle", size=13, fill=SOFT_INK, anchor="start")


def _in_words(placed: Lanes, title: str, holds: bool, against: tuple[str, Lanes] | None) -> str:
    order = " ".join(f"{task.kind}{task.micro_batch}" for task, _, _ in placed[0])
    words = (
        f"{title}: tasks of {len(placed)} ranks over {seconds_of(placed):g} units of time, of "
        f"which {bubble(placed):.0%} is idle. Rank 0 does, in this order: {order}."
    )
    if against:
        words += f" {against[0]} takes {seconds_of(against[1]):g} units."
    if holds:
        most = [str(in_flight([task for task, _, _ in row])) for row in placed]
        words += f" The ranks hold {', '.join(most)} micro-batches at most."
    return words
