"""The batch is cut into shards, their gradients are summed, all take one step.

A rank's shard and gradient have that rank's colour; the sum is striped in all colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure
from course_lib.teaching.figures.palette import (
    INK,
    PAPER,
    RANK_COLOURS,
    SOFT_INK,
    rank_colour,
    text_on,
)

MARGIN, LABEL = 16, 100
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇"


def split_gradient(sizes: Sequence[int], *, title: str = "") -> Figure:
    """Draw a batch cut into shards of ``sizes`` samples, 1 to 8 of them, one per rank.

    Raises ValueError for more or fewer shards, or a size below 1.
    """
    sizes = [int(size) for size in sizes]
    if not 1 <= len(sizes) <= len(RANK_COLOURS):
        raise ValueError(f"{len(sizes)} shards: a figure has 1 to {len(RANK_COLOURS)}")
    if min(sizes) < 1:
        raise ValueError(f"the sizes are {sizes}: a shard has at least one sample")
    top = 44 if title else 16
    drawing = Drawing(WIDTH, top + 252)
    if title:
        drawing.text(MARGIN, 24, title, size=16, bold=True, anchor="start")
    left, width = MARGIN + LABEL, WIDTH - 2 * MARGIN - LABEL
    middles = [left + width * (2 * r + 1) / (2 * len(sizes)) for r in range(len(sizes))]
    ends = [left + width * sum(sizes[:r]) / sum(sizes) for r in range(len(sizes) + 1)]
    rows = {"samples": top + 16, "ranks": top + 84, "gradients": top + 124, "sum": top + 190}

    for words, y in rows.items():
        drawing.text(MARGIN, y, words, fill=SOFT_INK, anchor="start")
    for rank, (begin, end) in enumerate(pairwise(ends)):
        colour, middle = rank_colour(rank), middles[rank]
        drawing.rectangle(begin, rows["samples"] - 15, end - begin, 30, fill=colour, stroke=PAPER)
        words = str(sizes[rank])
        if 0.62 * 14 * len(words) < end - begin:
            drawing.text((begin + end) / 2, rows["samples"], words, fill=text_on(colour))
        x = (begin + end) / 2
        drawing.line(x, rows["samples"] + 17, middle, rows["ranks"] - 16, stroke=colour, arrow=True)
        drawing.circle(middle, rows["ranks"], 13, fill=colour)
        drawing.text(middle, rows["ranks"], rank, fill=text_on(colour), bold=True)
        drawing.rectangle(
            middle - 20, rows["gradients"] - 13, 40, 26, fill=PAPER, stroke=colour, radius=6
        )
        drawing.text(middle, rows["gradients"], f"g{_SUBSCRIPTS[rank]}", bold=True)
        y1, y2 = rows["gradients"] + 15, rows["sum"] - 17
        drawing.line(middle, y1, middle, y2, stroke=colour, arrow=True)
    _striped(drawing, left, rows["sum"] - 15, width, len(sizes))
    summed = " + ".join(f"g{_SUBSCRIPTS[r]}" for r in range(len(sizes)))
    drawing.rectangle(left + 12, rows["sum"] - 10, width - 24, 20, fill=PAPER)
    drawing.text(left + width / 2, rows["sum"], f"g = {summed}", bold=True)
    drawing.text(left + width / 2, rows["sum"] + 38, "every rank: θ ← θ − λ g", fill=INK)
    return drawing.finish(_in_words(sizes, title))


def _striped(drawing: Drawing, x: float, y: float, width: float, ranks: int) -> None:
    stripe = width / (3 * ranks)
    for index in range(3 * ranks):
        colour = rank_colour(index % ranks)
        drawing.rectangle(x + index * stripe, y, stripe, 30, fill=colour, radius=0)


def _in_words(sizes: list[int], title: str) -> str:
    shards = "; ".join(f"rank {rank}: {size}" for rank, size in enumerate(sizes))
    heading = f"{title}: a" if title else "A"
    return (
        f"{heading} batch of {sum(sizes)} samples is cut into {len(sizes)} shards ({shards}). Each "
        "rank works out the gradient of its own shard, the gradients are summed, and every rank "
        "takes the same step, theta minus lambda times the sum."
    )
