"""The figures of lesson 10b: layers, sequences and products in slices; bytes on each rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from course_lib.teaching.figures.curves import LINE_COLOURS, MARKERS, draw, finish_axes
from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure, round_step
from course_lib.teaching.figures.palette import (
    ALARM,
    INK,
    PAPER,
    RULE,
    SOFT_INK,
    blend,
    rank_colour,
    text_on,
)

__all__ = [
    "bytes_on_each_rank",
    "gpus_needed",
    "product_in_chunks",
    "sequence_in_slices",
    "sliced_mlp",
]

_KINDS = ("parameters", "gradients", "Adam's state")
_KIND_COLOURS = ("#0072B2", "#E69F00", "#009E73")
_HATCHES = ("", "//", "..")
_PALE = 0.72  # how much paper is mixed into the colour of messages, as in timelines


def sliced_mlp() -> Figure:
    """Draw an MLP on two ranks: columns, GELU, rows, with f before and g after."""
    drawing = Drawing(WIDTH, 214)
    _box(drawing, 14, 84, 50, "x", INK)
    _box(drawing, 78, 84, 44, "f", ALARM)
    for rank, y in enumerate((44, 124)):
        colour = rank_colour(rank)
        drawing.path(f"M 122 107 C 138 107 134 {y + 23} 150 {y + 23}", stroke=SOFT_INK, arrow=True)
        _box(drawing, 152, y, 96, f"columns {rank}", colour)
        drawing.line(248, y + 23, 268, y + 23, stroke=SOFT_INK, arrow=True)
        _box(drawing, 270, y, 64, "GELU", colour)
        drawing.line(334, y + 23, 354, y + 23, stroke=SOFT_INK, arrow=True)
        _box(drawing, 356, y, 84, f"rows {rank}", colour)
        drawing.path(f"M 440 {y + 23} C 456 {y + 23} 452 107 466 107", stroke=SOFT_INK, arrow=True)
        drawing.text(345, y - 14 if rank == 0 else y + 60, f"rank {rank}", bold=True)
    drawing.line(64, 107, 76, 107, stroke=SOFT_INK, arrow=True)
    _box(drawing, 468, 84, 44, "g", ALARM)
    drawing.line(512, 107, 522, 107, stroke=SOFT_INK, arrow=True)
    _box(drawing, 524, 84, 38, "y", INK)
    drawing.text(14, 186, "f: nothing in forward,", size=13, anchor="start")
    drawing.text(14, 203, "all-reduce in backward", size=13, anchor="start")
    drawing.text(562, 186, "g: all-reduce in forward,", size=13, anchor="end")
    drawing.text(562, 203, "nothing in backward", size=13, anchor="end")
    return drawing.finish(
        "An MLP in slices on two ranks: the input x passes through f to both; each applies its "
        "columns of the first layer, a GELU and its rows of the second; g sums both to y."
    )


def sequence_in_slices(ranks: int = 4) -> Figure:
    """Draw which part of the activations each rank holds through a block, by tokens or features."""
    drawing = Drawing(WIDTH, 268)
    stations = (
        ("norm", "tokens", 84),
        ("attention", "features", 224),
        ("norm", "tokens", 364),
        ("MLP", "features", 504),
    )
    for name, cut, x in stations:
        drawing.text(x, 24, name, bold=True)
        drawing.text(x, 44, f"cut by {cut}", size=13, fill=SOFT_INK)
        for rank in range(ranks):
            colour = rank_colour(rank)
            along = 96 / ranks
            if cut == "tokens":
                place = (x - 44, 66 + rank * along, 88, along - 2)
                middle = (x, 66 + (rank + 0.5) * along - 1)
            else:
                place = (x - 44 + rank * 88 / ranks, 66, 88 / ranks - 2, 94)
                middle = (x - 44 + (rank + 0.5) * 88 / ranks - 1, 113)
            drawing.rectangle(*place, fill=colour, radius=2)
            drawing.text(*middle, rank, size=13, fill=text_on(colour))
    for x, words in ((154, "all-gather"), (294, "reduce-scatter"), (434, "all-gather")):
        drawing.line(x - 20, 113, x + 20, 113, stroke=ALARM, width=2.5, arrow=True)
        drawing.text(x, 182, words, size=13)
    drawing.line(504, 166, 504, 200, stroke=ALARM, width=2.5, arrow=True)
    drawing.text(504, 212, "reduce-scatter,", size=13)
    drawing.text(504, 228, "into the next block", size=13)
    drawing.text(14, 214, "Each square: tokens downwards, features to the right.", anchor="start")
    drawing.text(14, 236, "The number is the rank that holds the part.", anchor="start")
    drawing.text(14, 254, "(forward; backward goes the other way)", size=13, anchor="start")
    return drawing.finish(
        f"Sequence parallelism on {ranks} ranks: norms are cut by tokens, attention and MLP by "
        "features; an all-gather leads from tokens to features, a reduce-scatter back."
    )


def product_in_chunks(ranks: int = 4, transfer: float = 1.0, product: float = 1.5) -> Figure:
    """Draw all-gather and product on rank 0, one after the other and chunk by chunk.

    Args:
        ranks: each has a chunk of the tokens; all but rank 0's own have to arrive.
        transfer: ms that one chunk takes to arrive.
        product: ms that the product of one chunk takes.

    Raises:
        ValueError: if there is no other rank, or a time is not above 0.
    """
    if ranks < 2 or min(transfer, product) <= 0:
        raise ValueError(f"{ranks} ranks, times {transfer:g} and {product:g}: 2 and above 0 needed")
    order = [-step % ranks for step in range(ranks)]  # of the chunks: the left neighbour's first
    gathered = (ranks - 1) * transfer
    serial, chunked = gathered + ranks * product, product + (ranks - 1) * max(transfer, product)
    drawing = Drawing(WIDTH, 322)
    left, scale = 104, 446 / serial

    def lane(y: float, name: str, starts: Sequence[float], each: float, pale: float) -> None:
        drawing.text(14, y + 15, name, anchor="start", size=13)
        for start, owner in zip(starts, order[-len(starts) :], strict=True):
            fill = blend(rank_colour(owner), PAPER, pale)
            place = left + start * scale, y, each * scale - 1.5, 30
            drawing.rectangle(*place, fill=fill, stroke=rank_colour(owner), radius=2)
            middle = left + (start + each / 2) * scale
            drawing.text(middle, y + 15, owner, size=13, fill=text_on(fill))

    def waits(y: float, start: float, end: float) -> None:
        if end - start > 1e-9:
            place = left + start * scale, y, (end - start) * scale - 1.5, 30
            drawing.rectangle(*place, fill=drawing.hatch(RULE), stroke=RULE, radius=2)

    pace = max(transfer, product)
    sent = [step * transfer for step in range(ranks - 1)]
    multiplied = [gathered + step * product for step in range(ranks)]
    drawing.text(14, 22, "all-gather, then the product", bold=True, anchor="start")
    waits(72, 0, gathered)
    lane(38, "link", sent, transfer, _PALE)
    lane(72, "processor", multiplied, product, 0.0)
    drawing.text(14, 130, "chunk by chunk", bold=True, anchor="start")
    for step in range(ranks - 1):
        waits(180, step * pace + product, (step + 1) * pace)
    lane(146, "link", [step * pace for step in range(ranks - 1)], transfer, _PALE)
    lane(180, "processor", [step * pace for step in range(ranks)], product, 0.0)
    _time_axis(drawing, left, 224, scale, serial)
    words = (
        "On rank 0. The number is the rank whose tokens they are.",
        "Pale: they arrive. Solid: they are multiplied. Hatched: rank 0 waits.",
    )
    for line, sentence in enumerate(words):
        drawing.text(14, 284 + 20 * line, sentence, anchor="start", size=13)
    return drawing.finish(
        f"All-gather and product of a column layer on one of {ranks} ranks: one after the other "
        f"they take {serial:g} ms; chunk by chunk, each multiplied while the next arrives, "
        f"{chunked:g} ms."
    )


def _time_axis(drawing: Drawing, left: float, y: float, scale: float, end: float) -> None:
    drawing.line(left, y, left + end * scale, y, stroke=SOFT_INK)
    step = round_step(end / 10)
    for tick in range(math.floor(end / step + 1e-9) + 1):
        x = left + tick * step * scale
        drawing.line(x, y, x, y + 5, stroke=SOFT_INK)
        drawing.text(x, y + 15, f"{tick * step:g}", size=13, fill=SOFT_INK)
    words = "time in ms (assumed)"
    drawing.text(left + end * scale / 2, y + 34, words, size=13, fill=SOFT_INK)


def bytes_on_each_rank(measured: Mapping[str, Sequence[float]], whole: float) -> Figure:
    """Draw parameters, gradients and state on a rank as stacked bars, one for each way.

    Args:
        measured: maps the name of a way to its bytes of the three kinds.
        whole: bytes of the parameters of the model in one piece, the unit of the axis.

    Raises:
        ValueError: if a way does not have three numbers.
    """
    for way, numbers in measured.items():
        if len(numbers) != len(_KINDS):
            raise ValueError(f"{way}: three numbers are needed ({', '.join(_KINDS)})")

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        left = [0.0] * len(measured)
        for kind, name in enumerate(_KINDS):
            wide = [numbers[kind] / whole for numbers in measured.values()]
            axes.barh(
                list(measured),
                wide,
                left=left,
                label=name,
                color=_KIND_COLOURS[kind],
                hatch=_HATCHES[kind],
                edgecolor=blend(_KIND_COLOURS[kind], "#FFFFFF", 0.6),
            )
            left = [a + b for a, b in zip(left, wide, strict=True)]
        axes.invert_yaxis()
        axes.set(xlabel="bytes on a rank / bytes of all parameters", xlim=(0, 4.2))
        finish_axes(axes, grid="x")
        canvas.legend(loc="outside upper center", ncols=3, frameon=False)

    return draw(
        plot,
        "Bars of the bytes on a rank: parameters, gradients and Adam's state, for "
        f"{', '.join(measured)}; each bar is shorter than the one above.",
        3.4,
    )


def gpus_needed(
    gpus: Sequence[int], lines: Mapping[str, Sequence[float]], memory: float = 80.0
) -> Figure:
    """Draw gigabytes on each GPU over the number of GPUs, and the memory that a GPU has.

    Raises:
        ValueError: if a line does not have one value for each number of GPUs.
    """
    for name, values in lines.items():
        if len(values) != len(gpus):
            raise ValueError(f"{name}: {len(values)} numbers for {len(gpus)} numbers of GPUs")

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for number, (name, values) in enumerate(lines.items()):
            axes.plot(gpus, values, color=LINE_COLOURS[number], marker=MARKERS[number], label=name)
        axes.axhline(memory, color=INK, linestyle="--", linewidth=1.5)
        axes.text(gpus[0], memory * 0.9, f"{memory:g} GB", va="top", color=INK)
        axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="GB on each GPU (predicted)")
        axes.xaxis.set_major_locator(FixedLocator(list(gpus)))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        finish_axes(axes)
        canvas.legend(loc="outside upper center", ncols=2, frameon=False)

    return draw(
        plot,
        f"Gigabytes on each GPU over the number of GPUs for {', '.join(lines)}, with a dashed "
        f"line at {memory:g} GB.",
        4.0,
    )


def _box(drawing: Drawing, x: float, y: float, width: float, words: str, colour: str) -> None:
    drawing.rectangle(x, y, width, 46, fill=blend(colour, "#FFFFFF", 0.8), stroke=colour)
    drawing.text(x + width / 2, y + 23, words, bold=colour in (ALARM, INK))
