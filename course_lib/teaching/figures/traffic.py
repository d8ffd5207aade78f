"""Draws how many messages and bytes went from each rank to each other, as a table.

Rows send, columns receive; a cell holds the bytes and the messages, and is the darker the more
bytes there are. Empty cells are pairs that never talk to each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .figure import WIDTH, Drawing, Figure
from .palette import INK, PAPER, RULE, SOFT_INK, blend, rank_colour, text_on

MARGIN, LABEL, HEAD, FOOT = 16, 84, 30, 34
CELL_HEIGHT, MOST_RANKS = 52, 16
DARK = "#0B4F8A"


def traffic(matrix: Any, *, title: str = "", alt: str = "") -> Figure:
    """Draw the messages of a block of code, from sender (row) to receiver (column).

    ``matrix``: the result of ``Traffic.matrix()``: ``messages`` and ``bytes``, each [R, R], and
    ``ranks``. ``alt``: alternative text; the default tells every number, which are exact and so
    the same in each run.

    Raises ValueError for more than 16 ranks, whose cells could not be read.
    """
    messages, size_bytes = np.asarray(matrix.messages), np.asarray(matrix.bytes)
    ranks = list(matrix.ranks)
    if len(ranks) > MOST_RANKS:
        raise ValueError(f"{len(ranks)} ranks: more than {MOST_RANKS} cannot be read in a figure")
    top = MARGIN + (28 if title else 0) + 22
    height = CELL_HEIGHT * len(ranks)
    drawing = Drawing(WIDTH, top + HEAD + height + FOOT)
    if title:
        drawing.text(MARGIN, 26, title, size=16, bold=True, anchor="start")
    left = MARGIN + LABEL
    width = (WIDTH - MARGIN - left) / len(ranks)
    drawing.text(left + width * len(ranks) / 2, top - 12, "to", size=13, fill=SOFT_INK)
    drawing.text(MARGIN + 30, top + 12, "from", size=13, fill=SOFT_INK)
    for column, rank in enumerate(ranks):
        _plate(drawing, rank, left + width * (column + 0.5), top + 11, min(60, width - 6))
    most = size_bytes.max(initial=0)
    for row, rank in enumerate(ranks):
        y = top + HEAD + CELL_HEIGHT * row
        _plate(drawing, rank, MARGIN + 30, y + CELL_HEIGHT / 2, 60)
        for column in range(len(ranks)):
            cell = (left + width * column, y, width)
            _cell(drawing, cell, int(messages[row, column]), int(size_bytes[row, column]), most)
    words = f"{_counted(messages.sum())}, {spelled(int(size_bytes.sum()))} in all"
    foot = top + HEAD + height + FOOT / 2
    drawing.text(WIDTH - MARGIN, foot, words, size=13, fill=SOFT_INK, anchor="end")
    return drawing.finish(alt or _in_words(ranks, messages, size_bytes, title))


def spelled(size_bytes: float) -> str:
    """Return e.g. "12 B", "1.5 KiB" or "64 MiB"; whole numbers exactly, others to 3 digits."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            number = size_bytes / size
            whole = number.is_integer() or number >= 100  # 1,010.5 to 3 digits would be 1.01e+03
            return f"{number:.0f} {unit}" if whole else f"{number:.3g} {unit}"
    return f"{size_bytes:g} B"


def _counted(messages: int) -> str:
    return f"{messages:,} message{'' if messages == 1 else 's'}"


def _plate(drawing: Drawing, rank: int, x: float, y: float, width: float) -> None:
    colour = rank_colour(rank)
    drawing.rectangle(x - width / 2, y - 11, width, 22, fill=colour, radius=11)
    words = f"rank {rank}" if width >= 50 else str(rank)
    drawing.text(x, y, words, size=13, fill=text_on(colour), bold=True)


def _cell(drawing: Drawing, place: tuple, messages: int, size_bytes: int, most: int) -> None:
    x, y, width = place
    share = size_bytes / most if most else 0.0
    fill = blend(PAPER, DARK, 0.08 + 0.92 * share) if messages else PAPER
    drawing.rectangle(x + 1, y + 1, width - 2, CELL_HEIGHT - 2, fill=fill, stroke=RULE, radius=2)
    if not messages:
        return
    ink = text_on(fill) if fill != PAPER else INK
    wide = width >= 64
    volume, count = spelled(size_bytes), f"\u00d7{messages:,}"
    if not wide:
        volume = volume.replace(" ", "").removesuffix("iB")
    elif width >= 100:
        count = _counted(messages)
    size = 13 if wide else 11
    drawing.text(x + width / 2, y + 18, volume, size=size, fill=ink, bold=True)
    drawing.text(x + width / 2, y + 36, count, size=size - 1, fill=ink)


def _in_words(ranks: list[int], messages: np.ndarray, size_bytes: np.ndarray, title: str) -> str:
    parts = [f"Who sent how much to whom{': ' + title if title else ''}."]
    for row, sender in enumerate(ranks):
        told = [
            f"{_counted(messages[row, column])} of {size_bytes[row, column]} bytes in all to "
            f"rank {receiver}"
            for column, receiver in enumerate(ranks)
            if messages[row, column]
        ]
        parts.append(f"Rank {sender}: {', '.join(told) or 'nothing'}.")
    return " ".join(parts)
