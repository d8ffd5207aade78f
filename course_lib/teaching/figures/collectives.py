"""Draws who holds what before and after a collective.

Each picture is two grids, a row per rank and a column per block of its buffer. A block has the
colour and the letter of the rank whose data it is (rank 0 holds A, rank 1 holds B, ...); a block
striped in all colours is a sum over all ranks. The meaning of each operation is that of the MPI
standard (MPI Forum, "MPI: A Message-Passing Interface Standard, Version 5.0", 2025, chapter 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .figure import WIDTH, Drawing, Figure
from .palette import INK, PAPER, RANK_COLOURS, RULE, SOFT_INK, rank_colour, text_on

MARGIN, LABEL, GAP = 16, 66, 4
ROW, HEADER, FOOTER = 36, 68, 36
ARROW = 52
LETTERS = "ABCDEFGH"  # of the ranks


@dataclass(frozen=True)
class Block:
    """Data in a rank's buffer: that of rank ``owner``, or the sum over all ranks for ``None``."""

    owner: int | None
    part: int | None = None  # which part of the buffer; None: the whole of it


Row = list[Block | None]  # one entry per column; None: holds nothing
Rows = list[Row]  # one per rank
_SENTENCES = {
    "broadcast": "Rank {root}, the root, gives everyone a copy of its data.",
    "scatter": "Rank {root}, the root, deals out its data: part r goes to rank r.",
    "gather": "Rank {root}, the root, collects everyone's data in rank order.",
    "reduce": "Rank {root}, the root, ends up with the sum of everyone's data.",
    "all_gather": "Everyone ends up with everyone's data, in rank order.",
    "reduce_scatter": "The sum, dealt out: rank r ends up with part r of it.",
    "all_to_all": "Part r of everyone's data goes to rank r.",
    "all_reduce": "Everyone ends up with the sum of everyone's data.",
}


def collective(name: str, world_size: int = 4, root: int = 0) -> Figure:
    """Draw who holds what before and after the collective ``name``.

    ``name``: broadcast, scatter, gather, reduce, all_gather, reduce_scatter, all_to_all,
    all_reduce or barrier. ``world_size``: 2 to 8 ranks. ``root``: the root's rank, where there
    is one. Raises ValueError for anything else.
    """
    if name != "barrier" and name not in _SENTENCES:
        allowed = ", ".join([*_SENTENCES, "barrier"])
        raise ValueError(f"no collective is called {name!r}; the figures know {allowed}")
    if not 2 <= world_size <= len(RANK_COLOURS):
        raise ValueError(f"world_size is {world_size}: a figure has 2 to {len(RANK_COLOURS)} ranks")
    if not 0 <= root < world_size:
        raise ValueError(
            f"root is {root}: with {world_size} ranks it must be 0 to {world_size - 1}"
        )
    if name == "barrier":
        return _barrier(world_size)
    before, after = _before_and_after_all(world_size, root)[name]
    return _before_and_after(name, _SENTENCES[name].format(root=root), before, after)


def _at(root: int, row: Row, p: int) -> Rows:
    return [row if rank == root else [None] * len(row) for rank in range(p)]


def _in_first_column(blocks: Row) -> Rows:
    return [[block] + [None] * (len(blocks) - 1) for block in blocks]


def _before_and_after_all(p: int, root: int) -> dict[str, tuple[Rows, Rows]]:
    """Who holds what before and after each collective."""
    blocks: Row = [Block(rank) for rank in range(p)]
    parts: Rows = [[Block(rank, part) for part in range(p)] for rank in range(p)]
    sums: Row = [Block(None, part) for part in range(p)]
    own: Rows = [[block] for block in blocks]
    return {
        "broadcast": (_at(root, own[root], p), [own[root]] * p),
        "scatter": (_at(root, parts[root], p), _in_first_column(parts[root])),
        "gather": (_in_first_column(blocks), _at(root, blocks, p)),
        "reduce": (own, _at(root, [Block(None)], p)),
        "all_gather": (_in_first_column(blocks), [blocks] * p),
        "reduce_scatter": (parts, _in_first_column(sums)),
        "all_to_all": (parts, [list(column) for column in zip(*parts, strict=True)]),
        "all_reduce": (own, [[Block(None)]] * p),
    }


def _before_and_after(name: str, sentence: str, before: Rows, after: Rows) -> Figure:
    p = len(before)
    drawing = Drawing(WIDTH, HEADER + p * ROW + FOOTER)
    grid_width = (WIDTH - 2 * MARGIN - ARROW) / 2 - LABEL
    left, right = MARGIN, MARGIN + LABEL + grid_width + ARROW
    drawing.text(MARGIN, 24, name, size=17, bold=True, mono=True, anchor="start")
    for x, heading in ((left, "before"), (right, "after")):
        drawing.text(x + LABEL + grid_width / 2, 52, heading, fill=SOFT_INK)
    for rows, x in ((before, left), (after, right)):
        for rank, blocks in enumerate(rows):
            y = HEADER + rank * ROW + ROW / 2
            drawing.rank_label(rank, x, y)
            _row(drawing, blocks, x + LABEL, y, grid_width, p)
    middle = HEADER + p * ROW / 2
    start = left + LABEL + grid_width + 9
    drawing.line(start, middle, start + ARROW - 20, middle, stroke=INK, width=2.5, arrow=True)
    drawing.text(MARGIN, HEADER + p * ROW + 17, sentence, anchor="start")
    alt = f"{name} on {p} ranks. {sentence} {_in_words(before, after, p)}"
    return drawing.finish(alt)


def _row(drawing: Drawing, blocks: Row, x: float, y: float, width: float, p: int) -> None:
    step = width / len(blocks)
    for column, block in enumerate(blocks):
        place = (x + column * step, y - ROW / 2 + GAP, step - GAP, ROW - 2 * GAP)
        if block is None:
            drawing.rectangle(*place, fill=PAPER, stroke=RULE, dashed=True)
        elif block.owner is None:
            _sum_block(drawing, block, place, p)
        else:
            colour = rank_colour(block.owner)
            drawing.rectangle(*place, fill=colour)
            centre = place[0] + place[2] / 2
            size = _text_size(p)
            drawing.text(centre, y, _label(block, p), size=size, fill=text_on(colour), bold=True)


def _sum_block(drawing: Drawing, block: Block, place: tuple, p: int) -> None:
    x, y, width, height = place
    for rank in range(p):
        stripe = width / p
        drawing.rectangle(x + rank * stripe, y, stripe, height, fill=rank_colour(rank), radius=0)
    label = _label(block, p)
    plate = min(width - 12, 9.5 * len(label) + 12)
    drawing.rectangle(x + (width - plate) / 2, y + 5, plate, height - 10, fill=PAPER)
    drawing.text(x + width / 2, y + height / 2, label, size=_text_size(p), bold=True)


def _text_size(p: int) -> int:
    return 14 if p <= 6 else 11  # blocks get narrower with more ranks


def _label(block: Block, p: int) -> str:
    part = "" if block.part is None else str(block.part)
    if block.owner is not None:
        return LETTERS[block.owner] + part
    if block.part is not None:
        return f"\u03a3{part}"
    return "+".join(LETTERS[rank] for rank in range(p))


def _in_words(before: Rows, after: Rows, p: int) -> str:
    def held(blocks: Row) -> str:
        return " ".join(_label(block, p) for block in blocks if block is not None) or "nothing"

    changes = enumerate(zip(before, after, strict=True))
    return "; ".join(f"rank {r}: {held(b)} becomes {held(a)}" for r, (b, a) in changes) + "."


def _barrier(p: int) -> Figure:
    sentence = "No rank leaves before all have arrived. No data moves."
    drawing = Drawing(WIDTH, HEADER + p * ROW + FOOTER)
    drawing.text(MARGIN, 24, "barrier", size=17, bold=True, mono=True, anchor="start")
    start, end = MARGIN + LABEL + 8, WIDTH - MARGIN
    release = start + 0.72 * (end - start)
    # Any unequal arrival times will do. A step that shares no factor with p gives each its own.
    step = next(k for k in (3, 2, 1) if math.gcd(k, p) == 1)
    arrivals = [0.25 + 0.75 * ((step * rank + 1) % p) / (p - 1) for rank in range(p)]
    for rank, arrival in enumerate(arrivals):
        y = HEADER + rank * ROW + ROW / 2
        colour = rank_colour(rank)
        arrives = start + (release - start) * arrival
        drawing.rank_label(rank, MARGIN, y)
        drawing.rectangle(start, y - 9, arrives - start, 18, fill=colour, radius=0)
        if arrives < release:
            waiting = drawing.hatch(colour)
            drawing.rectangle(arrives, y - 9, release - arrives, 18, fill=waiting, radius=0)
        drawing.rectangle(release, y - 9, end - release, 18, fill=colour, radius=0)
    drawing.line(release, HEADER - 4, release, HEADER + p * ROW, stroke=INK, width=2.5)
    drawing.text(release, 52, "all have arrived", fill=SOFT_INK)
    drawing.text(start, 52, "solid: at work; hatched: waiting", fill=SOFT_INK, anchor="start")
    drawing.text(MARGIN, HEADER + p * ROW + 17, sentence, anchor="start")
    drawing.text(end, HEADER + p * ROW + 17, "time \u2192", fill=SOFT_INK, anchor="end")
    order = sorted(range(p), key=arrivals.__getitem__)
    words = ", ".join(str(rank) for rank in order)
    return drawing.finish(
        f"barrier on {p} ranks. {sentence} The ranks arrive in the order {words}; "
        f"all leave together, when rank {order[-1]} has arrived."
    )
