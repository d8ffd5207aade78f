"""The figures of lesson 10: who computes which micro-batch when, and how many weights are kept.

Forward is drawn solid, backward pale, the weights' half of backward framed only; idle time is
hatched. The number in a box is that of its micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.parallel.pipeline_schedules import Placed, bubble
from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure
from course_lib.teaching.figures.palette import (
    INK,
    PAPER,
    RULE,
    SOFT_INK,
    blend,
    rank_colour,
    text_on,
)

__all__ = ["pipeline"]

_MARGIN, _LABEL, _LANE, _BAR, _TITLE = 16, 76, 34, 26, 34
_PALE = 0.72  # how much paper is mixed into the colour of a backward
_KINDS = {"F": "forward", "B": "backward", "W": "weights' half"}


def pipeline(
    placed: Sequence[Sequence[Placed]], title: str, *, measured: bool = False, alt: str = ""
) -> Figure:
    """Draw when each rank does what.

    Args:
        placed: for each rank its tasks with their times.
        title: above the figure, to which the share of idle time is added.
        measured: whether the times are seconds of a clock, not units.
        alt: alternative text; needed where times are measured, so that it is always the same.
    """
    tasks = [one for rank in placed for one in rank]
    first, last = min(one.start for one in tasks), max(one.end for one in tasks)
    left, right = _MARGIN + _LABEL, WIDTH - _MARGIN
    drawing = Drawing(WIDTH, _TITLE + _LANE * len(placed) + 34)
    idle = bubble(placed)
    words = f"{title}: {idle:.0%} idle" + (" (measured here)" if measured else "")
    drawing.text(_MARGIN, 20, words, size=15, bold=True, anchor="start")

    def x(time: float) -> float:
        return left + (right - left) * (time - first) / (last - first)

    for rank, row in enumerate(placed):
        y = _TITLE + _LANE * rank + _LANE / 2
        drawing.rank_label(rank, _MARGIN, y)
        hatch = drawing.hatch(RULE)
        drawing.rectangle(left, y - _BAR / 2, right - left, _BAR, fill=hatch, stroke=RULE, radius=0)
        for task, start, end in row:
            fill = _fill(task.kind, rank, task.chunk)
            width = max(x(end) - x(start), 1.0)
            edge = PAPER if task.kind == "F" else rank_colour(rank)
            drawing.rectangle(x(start), y - _BAR / 2, width, _BAR, fill=fill, stroke=edge, radius=0)
            number = str(task.micro_batch)
            if width >= 9 * len(number) + 2:
                drawing.text(x(start) + width / 2, y, number, size=12, fill=text_on(fill))
    _legend(drawing, {task.kind for task, _, _ in tasks}, _TITLE + _LANE * len(placed) + 16)
    return drawing.finish(alt or _in_words(placed, title, idle))


def _fill(kind: str, rank: int, chunk: int) -> str:
    if kind == "W":
        return PAPER
    colour = blend(rank_colour(rank), INK, 0.35 * (chunk % 2))
    return colour if kind == "F" else blend(colour, PAPER, _PALE)


def _legend(drawing: Drawing, kinds: set[str], y: float) -> None:
    x: float = _MARGIN
    for kind, words in _KINDS.items():
        if kind not in kinds:
            continue
        fill = _fill(kind, 0, 0)
        drawing.rectangle(x, y - 7, 22, 14, fill=fill, stroke=rank_colour(0), radius=0)
        drawing.text(x + 28, y, words, size=13, fill=SOFT_INK, anchor="start")
        x += 46 + 8.1 * len(words)
    drawing.rectangle(x, y - 7, 22, 14, fill=drawing.hatch(RULE), stroke=RULE, radius=0)
    drawing.text(x + 28, y, "idle", size=13, fill=SOFT_INK, anchor="start")
    drawing.text(WIDTH - _MARGIN, y, "time \u2192", size=13, fill=SOFT_INK, anchor="end")


def _in_words(placed: Sequence[Sequence[Placed]], title: str, idle: float) -> str:
    order = " ".join(f"{task.kind}{task.micro_batch}" for task, _, _ in placed[0])
    return (
        f"{title}: tasks of {len(placed)} ranks over time, of which {idle:.0%} is idle. Rank 0 "
        f"does, in this order: {order}."
    )
