"""The figures of lesson 10c: ring attention, causal work, dispatch and combine, experts' loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Canvas

from course_lib.teaching.figures.curves import LINE_COLOURS, draw, finish_axes
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

__all__ = ["causal_work", "expert_loads", "ring_of_keys", "tokens_to_experts"]

_HATCHES = ("", "//", "..")


def ring_of_keys(ranks: int = 4) -> Figure:
    """Draw which keys and values each rank has in each step of a ring; its queries stay."""
    drawing = Drawing(WIDTH, 92 + 42 * ranks)
    drawing.text(84, 24, "queries", bold=True)
    drawing.text(84, 44, "stay", size=13, fill=SOFT_INK)
    drawing.text(366, 24, "keys and values", bold=True)
    wide = 380 / ranks
    for step in range(ranks):
        drawing.text(176 + (step + 0.5) * wide, 44, f"step {step}", size=13, fill=SOFT_INK)
    for rank in range(ranks):
        y = 62 + 42 * rank
        drawing.text(14, y + 16, f"rank {rank}", anchor="start", size=13)
        _tokens(drawing, 66, y, 36, rank)
        for step in range(ranks):
            _tokens(drawing, 176 + step * wide + 8, y, wide - 16, (rank - step) % ranks)
    y = 74 + 42 * ranks
    words = "Each number is the rank that the tokens belong to."
    drawing.text(14, y, words, anchor="start", size=13)
    return drawing.finish(
        f"Ring attention on {ranks} ranks in {ranks} steps: the queries stay, and between the "
        "steps keys and values move to the next rank, so every rank computes with all of them."
    )


def _tokens(drawing: Drawing, x: float, y: float, width: float, rank: int) -> None:
    colour = rank_colour(rank)
    drawing.rectangle(x, y, width, 32, fill=colour, radius=3)
    drawing.text(x + width / 2, y + 16, rank, size=13, fill=text_on(colour))


def causal_work(orders: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """Draw which rank computes which pairs of chunks under a causal mask, and how many each has.

    Args:
        orders: maps the name of an order to each rank's chunks, two of the chunks 0 to 2p - 1.

    Raises:
        ValueError: if there are not one or two orders, or an order lacks or repeats a chunk.
    """
    if not 1 <= len(orders) <= 2:
        raise ValueError(f"{len(orders)} orders: there is room for one or two")
    for name, order in orders.items():
        if sorted(chunk for chunks in order for chunk in chunks) != list(range(2 * len(order))):
            raise ValueError(f"{name}: each of the chunks 0 to {2 * len(order) - 1} once")
    ranks = len(next(iter(orders.values())))
    drawing = Drawing(WIDTH, 300 + 24 * ranks)
    told = []
    for number, (name, order) in enumerate(orders.items()):
        left = 40 + 284 * number
        work = [sum(chunk + 1 for chunk in chunks) for chunks in order]
        told.append(f"{name}: {', '.join(map(str, work))}")
        drawing.text(left + 112, 20, name, bold=True)
        _pairs(drawing, left, order)
        _work(drawing, left, work)
    return drawing.finish(
        f"Pairs of chunks under a causal mask, coloured by the rank that computes them; pairs of "
        f"ranks 0 to {ranks - 1}, {'; '.join(told)}."
    )


def _pairs(drawing: Drawing, left: float, order: Sequence[Sequence[int]]) -> None:
    chunks = 2 * len(order)
    side = 224 / chunks
    owner = {chunk: rank for rank, mine in enumerate(order) for chunk in mine}
    for query in range(chunks):
        for key in range(chunks):
            x, y = left + key * side, 36 + query * side
            seen = key <= query
            fill = rank_colour(owner[query]) if seen else PAPER
            drawing.rectangle(x, y, side - 2, side - 2, fill=fill, stroke=RULE, radius=2)
            if seen:
                words = owner[query]
                drawing.text(x + side / 2 - 1, y + side / 2, words, size=13, fill=text_on(fill))
    drawing.text(left + 112, 274, "chunks of keys", size=13, fill=SOFT_INK)
    drawing.text(left - 6, 50, "0", size=13, anchor="end", fill=SOFT_INK)
    drawing.text(left - 6, 36 + 224 - side / 2, chunks - 1, size=13, anchor="end", fill=SOFT_INK)


def _work(drawing: Drawing, left: float, work: Sequence[int]) -> None:
    for rank, pairs in enumerate(work):
        y = 290 + 24 * rank
        drawing.text(left - 6, y + 9, rank, size=13, anchor="end")
        drawing.rectangle(left, y, 12 * pairs, 18, fill=rank_colour(rank), radius=2)
        drawing.text(left + 12 * pairs + 6, y + 9, pairs, size=13, anchor="start")


def tokens_to_experts() -> Figure:
    """Draw how two ranks send copies of their tokens to experts and get the outputs back."""
    drawing = Drawing(WIDTH, 262)
    for x, words in ((62, "tokens"), (288, "experts"), (514, "outputs")):
        drawing.text(x, 22, words, bold=True)
    for x, words in ((174, "dispatch"), (402, "combine")):
        drawing.text(x, 22, words, fill=SOFT_INK)
    tokens = ((0, 40, (0, 2)), (0, 84, (0, 1)), (1, 136, (0, 3)), (1, 180, (2, 3)))
    places = [44 + 46 * expert + 6 * (expert > 1) for expert in range(4)]
    for expert, y in enumerate(places):
        colour = rank_colour(expert // 2)
        drawing.rectangle(238, y, 100, 34, fill=blend(colour, PAPER, 0.75), stroke=colour)
        drawing.text(288, y + 17, f"expert {expert}", size=13)
    for rank, y, experts in tokens:
        colour = rank_colour(rank)
        for x in (46, 498):
            drawing.rectangle(x, y, 32, 32, fill=colour, radius=3)
            drawing.text(x + 16, y + 16, rank, size=13, fill=text_on(colour))
        for expert in experts:
            at = places[expert] + 17
            drawing.line(82, y + 16, 234, at, stroke=colour, width=1.6, arrow=True)
            drawing.line(342, at, 494, y + 16, stroke=colour, width=1.6, arrow=True)
    words = "Rank 0 has experts 0 and 1, rank 1 has experts 2 and 3; each token takes two."
    drawing.text(14, 246, words, anchor="start", size=13)
    return drawing.finish(
        "Two ranks with two tokens and two experts each: at dispatch each token goes to two of the "
        "four experts, at combine the outputs return to the token's rank."
    )


def expert_loads(loads: Mapping[str, Sequence[float]]) -> Figure:
    """Draw each expert's load divided by the mean load, sorted, as bars for each remedy.

    Raises:
        ValueError: if a remedy has no copies at all.
    """
    for name, load in loads.items():
        if sum(load) <= 0:
            raise ValueError(f"{name}: no copies were sent")
    experts = len(next(iter(loads.values())))

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        wide = 0.8 / len(loads)
        for number, (name, load) in enumerate(loads.items()):
            mean = sum(load) / len(load)
            heights = sorted((one / mean for one in load), reverse=True)
            places = [expert + (number - (len(loads) - 1) / 2) * wide for expert in range(experts)]
            colour = LINE_COLOURS[number]
            axes.bar(
                places,
                heights,
                wide,
                label=name,
                color=colour,
                hatch=_HATCHES[number % len(_HATCHES)],
                edgecolor=blend(colour, PAPER, 0.6),
            )
        axes.axhline(1, color=INK, linestyle="--", linewidth=1.5)
        axes.set(xlabel="experts, the busiest first", ylabel="copies / mean", xticks=range(experts))
        axes.set_xticklabels([str(place + 1) for place in range(experts)])
        finish_axes(axes, grid="y")
        canvas.legend(loc="outside upper center", ncols=3, frameon=False)

    return draw(
        plot,
        f"Bars of the copies that each of {experts} experts gets, over the mean, the busiest "
        f"first, for {', '.join(loads)}; a dashed line at 1.",
        3.4,
    )
