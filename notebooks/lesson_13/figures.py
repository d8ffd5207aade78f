"""The figures of lesson 13: which rank is where, and a gradient's way out of its host."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure
from course_lib.teaching.figures.palette import INK, PAPER, RULE, SOFT_INK, rank_colour, text_on

__all__ = ["gradient_paths", "placements"]

_BOX, _GAP, _SIDE = 54, 10, 150


def placements(ways: Mapping[str, Sequence[str]]) -> Figure:
    """Draw, for each way to place ranks, the hosts as boxes with their ranks in them.

    Args:
        ways: maps the label of a row to the host of each rank, in rank order.

    Raises:
        ValueError: if there is nothing to draw.
    """
    if not ways or not all(ways.values()):
        raise ValueError("placements() needs at least one way, and each at least one rank")
    names = sorted({host for hosts in ways.values() for host in hosts})
    height = 100
    drawing = Drawing(WIDTH, height * len(ways) + 8)
    told = []
    for row, (way, hosts) in enumerate(ways.items()):
        top = 8 + height * row
        drawing.text(12, top + 44, way, anchor="start", size=13, mono=True)
        width = (WIDTH - _SIDE - 12 - _GAP * (len(names) - 1)) / len(names)
        for column, name in enumerate(names):
            left = _SIDE + column * (width + _GAP)
            ranks = [rank for rank, host in enumerate(hosts) if host == name]
            _host(drawing, left, top, width, name, ranks)
            told.append(f"{way}, {name}: ranks {', '.join(map(str, ranks)) or 'none'}")
    return drawing.finish(
        "Hosts as boxes with their ranks, and local ranks below. " + "; ".join(told)
    )


def _host(
    drawing: Drawing, left: float, top: float, width: float, name: str, ranks: Sequence[int]
) -> None:
    drawing.rectangle(left, top, width, 88, fill=PAPER, stroke=SOFT_INK)
    drawing.text(left + 8, top + 12, name, anchor="start", size=13, fill=SOFT_INK)
    step = min(_BOX, (width - 8) / max(len(ranks), 1))
    for local, rank in enumerate(ranks):
        x = left + 6 + local * step
        colour = rank_colour(rank)
        drawing.rectangle(x, top + 24, step - 6, 32, fill=colour)
        drawing.text(x + (step - 6) / 2, top + 40, rank, fill=text_on(colour), bold=True)
        drawing.text(x + (step - 6) / 2, top + 70, f"local {local}", size=11)


_PATHS = (
    ("NCCL", ("GPU", "network card"), "straight, in chunks"),
    ("MPI, CUDA-aware", ("GPU", "network card"), "straight, if MPI and driver can"),
    ("MPI, staged", ("GPU", "host memory", "network card"), "a copy each way"),
    ("gloo", ("GPU", "host memory", "network card"), "a copy each way, TCP"),
)


def gradient_paths() -> Figure:
    """Draw a GPU gradient's way out of its host, with four backends."""
    columns = {"GPU": 200.0, "host memory": 325.0, "network card": 450.0}
    drawing = Drawing(WIDTH, 62 * len(_PATHS) + 12)
    for row, (backend, stops, note) in enumerate(_PATHS):
        y = 28 + 62 * row
        drawing.text(12, y, backend, anchor="start", bold=True, size=14)
        drawing.text(12, y + 19, note, anchor="start", size=12, fill=SOFT_INK)
        if row:
            drawing.line(8, y - 24, WIDTH - 8, y - 24, stroke=RULE, width=1)
        for stop in stops:
            drawing.rectangle(columns[stop], y - 15, 102, 30, fill=PAPER, stroke=INK)
            drawing.text(columns[stop] + 51, y, stop, size=13)
        at = [columns[stop] for stop in stops]
        for one, other in itertools.pairwise(at):
            drawing.line(one + 104, y, other - 5, y, stroke=INK, arrow=True)
    told = "; ".join(f"{backend}: {' to '.join(stops)}" for backend, stops, _ in _PATHS)
    return drawing.finish(f"The way of a gradient out of its host. {told}.")
