"""The figures of lesson 04: values and derivatives in a graph, and a batch cut into shards.

A computational graph is given by its output: any object with ``name``, ``rule`` (how it was
computed, empty for an input), ``value``, ``gradient`` (None: not known yet) and ``inputs``, a
sequence of pairs of such an object and the local derivative along that edge. The layout and the
term are those of reverse-mode differentiation (A. Griewank and A. Walther, "Evaluating
Derivatives", 2nd edition, SIAM 2008, chapters 2 and 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

__all__ = [
    "computational_graph",
    "split_gradient",
]

BOX_WIDTH, BOX_HEIGHT, COLUMN, ROW, MARGIN = 92, 48, 136, 66, 18  # of a graph
SIDE, LABEL = 16, 100  # of a batch in shards
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇"


# ---- computational graphs -----------------------------------------------------------------------


def computational_graph(
    output, *, ranks: Mapping[str, int] | None = None, title: str = ""
) -> Figure:
    """Draw the graph that ends in ``output``: values in white cells, derivatives in black ones.

    ``ranks``: from a node's name to the rank that holds it; its frame has that rank's colour.
    The number on an edge is the local derivative of its right end with respect to its left end.
    Raises ValueError if two nodes have one name, or a node has none.
    """
    nodes = _in_order(output)
    names = [node.name for node in nodes]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"every node needs a name of its own; the names are {names}")
    ranks = ranks or {}
    columns, rows = _columns(nodes), _rows(nodes)
    _separate(nodes, columns, rows)
    top = 44 if title else 16
    width = 2 * MARGIN + max(columns.values()) * COLUMN + BOX_WIDTH
    height = top + max(rows.values()) * ROW + BOX_HEIGHT + 40
    drawing = Drawing(max(width, 480), height)
    if title:
        drawing.text(MARGIN, 24, title, size=16, bold=True, anchor="start")

    def corner(node) -> tuple[float, float]:
        return MARGIN + columns[id(node)] * COLUMN, top + rows[id(node)] * ROW

    for node in nodes:
        for source, _ in node.inputs:
            (x1, y1), (x2, y2) = corner(source), corner(node)
            y1, y2 = y1 + BOX_HEIGHT / 2, y2 + BOX_HEIGHT / 2
            colour = _colour(ranks, node)
            drawing.line(x1 + BOX_WIDTH, y1, x2 - 2, y2, stroke=colour, width=1.8, arrow=True)
    for node in nodes:
        _draw_factors(drawing, node, corner)
        _draw_node(drawing, node, *corner(node), _colour(ranks, node))
    _draw_legend(drawing, height - 20, output.name, sorted(set(ranks.values())))
    return drawing.finish(_graph_in_words(nodes, output, ranks, title))


def _in_order(output) -> list:
    """Return all nodes, each after its inputs."""
    found: dict[int, object] = {}

    def visit(node) -> None:
        if id(node) not in found:
            for source, _ in node.inputs:
                visit(source)
            found[id(node)] = node

    visit(output)
    return list(found.values())


def _columns(nodes: list) -> dict[int, int]:
    """Return each node's column: behind its inputs, and inputs just before they are needed."""
    columns: dict[int, int] = {}
    for node in nodes:
        columns[id(node)] = 1 + max((columns[id(source)] for source, _ in node.inputs), default=-1)
    for node in nodes:
        if not node.inputs:
            users = [columns[id(user)] for user in nodes if _uses(user, node)]
            columns[id(node)] = min(users, default=1) - 1
    return columns


def _rows(nodes: list) -> dict[int, float]:
    """Return each node's row: private inputs in turn, everything else half-way between."""
    users = {id(node): sum(_uses(user, node) for user in nodes) for node in nodes}
    rows: dict[int, float] = {}
    free = 0
    for node in nodes:
        placed = [rows[id(source)] for source, _ in node.inputs if id(source) in rows]
        if placed:
            rows[id(node)] = sum(placed) / len(placed)
        elif node.inputs or users[id(node)] < 2:
            rows[id(node)] = free
            free += 1
    for node in nodes:
        if id(node) not in rows:  # an input of several nodes
            places = [rows[id(user)] for user in nodes if _uses(user, node)]
            rows[id(node)] = sum(places) / len(places)
    return rows


def _separate(nodes: list, columns: dict[int, int], rows: dict[int, float]) -> None:
    """Push boxes down that would cover one another."""
    for column in set(columns.values()):
        stacked = sorted((n for n in nodes if columns[id(n)] == column), key=lambda n: rows[id(n)])
        lowest = -1.0
        for node in stacked:
            rows[id(node)] = max(rows[id(node)], lowest + 1)
            lowest = rows[id(node)]


def _uses(user, node) -> bool:
    return any(source is node for source, _ in user.inputs)


def _colour(ranks: Mapping[str, int], node) -> str:
    return rank_colour(ranks[node.name]) if node.name in ranks else SOFT_INK


def _draw_node(drawing: Drawing, node, x: float, y: float, colour: str) -> None:
    half = BOX_WIDTH / 2
    drawing.rectangle(x, y, BOX_WIDTH, BOX_HEIGHT, fill=PAPER, stroke=colour)
    drawing.rectangle(x, y, BOX_WIDTH, 5, fill=colour, radius=2)
    words = f"{node.name} = {node.rule}" if node.rule else node.name
    drawing.text(x + half, y + 15, words, size=13, bold=not node.rule)
    drawing.text(x + half / 2, y + 36, _number(node.value), size=14, mono=True)
    if node.gradient is not None:
        drawing.rectangle(x + half, y + 25, half - 1, BOX_HEIGHT - 26, fill=INK, radius=3)
        drawing.text(x + 1.5 * half, y + 36, _number(node.gradient), size=14, fill=PAPER, mono=True)


def _draw_factors(drawing: Drawing, node, corner) -> None:
    x2, y2 = corner(node)
    sources = {id(source): source for source, _ in node.inputs}
    for key, source in sources.items():
        factors = [factor for other, factor in node.inputs if id(other) == key]
        x1, y1 = corner(source)
        # Near the left end, where edges into one node are still apart.
        x = x1 + BOX_WIDTH + 0.46 * (x2 - x1 - BOX_WIDTH)
        y = y1 + 0.46 * (y2 - y1) + BOX_HEIGHT / 2
        drawing.plate(x, y, _number(sum(factors)))


def _draw_legend(drawing: Drawing, y: float, name: str, ranks: list[int]) -> None:
    x = MARGIN
    drawing.rectangle(x, y - 9, 22, 18, fill=PAPER, stroke=SOFT_INK, radius=3)
    drawing.text(x + 28, y, "value", size=13, anchor="start")
    drawing.rectangle(x + 74, y - 9, 22, 18, fill=INK, radius=3)
    drawing.text(x + 102, y, f"derivative of {name}", size=13, anchor="start")
    for index, rank in enumerate(ranks):
        drawing.rank_label(rank, x + 246 + 68 * index, y, height=20)


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "\u2212")


def _graph_in_words(nodes, output, ranks, title: str) -> str:
    parts = []
    for node in nodes:
        said = f"{node.name} = {node.rule} = " if node.rule else f"{node.name} = "
        said += _number(node.value)
        if node.name in ranks:
            said += f" on rank {ranks[node.name]}"
        if node.gradient is not None:
            said += f", derivative {_number(node.gradient)}"
        parts.append(said)
    heading = f"{title}: computational graph" if title else "Computational graph"
    return f"{heading} that ends in {output.name}. {'; '.join(parts)}."


# ---- shards -------------------------------------------------------------------------------------


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
        drawing.text(SIDE, 24, title, size=16, bold=True, anchor="start")
    left, width = SIDE + LABEL, WIDTH - 2 * SIDE - LABEL
    middles = [left + width * (2 * r + 1) / (2 * len(sizes)) for r in range(len(sizes))]
    ends = [left + width * sum(sizes[:r]) / sum(sizes) for r in range(len(sizes) + 1)]
    rows = {"samples": top + 16, "ranks": top + 84, "gradients": top + 124, "sum": top + 190}

    for words, y in rows.items():
        drawing.text(SIDE, y, words, fill=SOFT_INK, anchor="start")
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
    return drawing.finish(_shards_in_words(sizes, title))


def _striped(drawing: Drawing, x: float, y: float, width: float, ranks: int) -> None:
    stripe = width / (3 * ranks)
    for index in range(3 * ranks):
        colour = rank_colour(index % ranks)
        drawing.rectangle(x + index * stripe, y, stripe, 30, fill=colour, radius=0)


def _shards_in_words(sizes: list[int], title: str) -> str:
    shards = "; ".join(f"rank {rank}: {size}" for rank, size in enumerate(sizes))
    heading = f"{title}: a" if title else "A"
    return (
        f"{heading} batch of {sum(sizes)} samples is cut into {len(sizes)} shards ({shards}). Each "
        "rank works out the gradient of its own shard, the gradients are summed, and every rank "
        "takes the same step, theta minus lambda times the sum."
    )
