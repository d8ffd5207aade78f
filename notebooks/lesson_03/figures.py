"""The figure of lesson 03: whose numbers each rank holds after each step of an all-reduce.

There is a grid for each step, with a row for each rank and a column for each chunk of its buffer.
A chunk has a slot for each rank, filled in that rank's colour once its numbers have been added. A
chunk with all slots filled is a sum, marked with a sigma. A thick frame marks what has just
arrived. The steps are those of :mod:`course_lib.parallel.all_reduces`, carried out on sets of
ranks instead of numbers.
"""

from __future__ import annotations

from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure
from course_lib.teaching.figures.palette import INK, PAPER, RULE, SOFT_INK, rank_colour

MARGIN, LABEL, HEADER, ROW, GAP = 16, 66, 34, 30, 14
TITLE, FOOTER = 40, 34

Holding = list[list[frozenset[int]]]  # by rank, by chunk: whose numbers have been added
News = set[tuple[int, int]]  # (rank, chunk)


def all_reduce_steps(algorithm: str, world_size: int = 4) -> Figure:
    """Draw who holds what after each step of an all-reduce.

    ``algorithm``: naive, tree, recursive doubling, ring or rabenseifner. ``world_size``: 2 to 4
    ranks, so that a grid stays readable. Raises ValueError for anything else.
    """
    from course_lib.parallel.all_reduces import ALGORITHMS  # imports torch: not for every figure

    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, not {algorithm!r}")
    if not 2 <= world_size <= 4:
        raise ValueError(f"world_size is {world_size}: this figure has 2 to 4 ranks")
    schedule = ALGORITHMS[algorithm].schedule
    # With as many elements as ranks, an element stands for a chunk.
    steps = [schedule(rank, world_size, world_size) for rank in range(world_size)]
    together = list(zip(*steps, strict=True))
    states = _follow(together, world_size)
    combining = [any(step.combine for step in each) for each in together]
    first_copy = combining.index(False) if False in combining else len(combining)
    rows = [range(first_copy + 1)]
    if first_copy < len(together):
        rows.append(range(first_copy, len(together) + 1))
    return _draw(algorithm, states, rows, _in_words(algorithm, together, world_size))


def _follow(together, p: int) -> list[tuple[Holding, News]]:
    holding: Holding = [[frozenset([rank])] * p for rank in range(p)]
    states: list[tuple[Holding, News]] = [(holding, set())]
    for each in together:
        after, news = [list(row) for row in holding], set()
        for rank, step in enumerate(each):
            if step.receive is None:
                continue
            for chunk in range(step.receive.start, step.receive.stop):
                arrived = holding[step.receive.peer][chunk]
                after[rank][chunk] = after[rank][chunk] | arrived if step.combine else arrived
                news.add((rank, chunk))
        states.append((after, news))
        holding = after
    return states


def _draw(algorithm: str, states, rows, alt: str) -> Figure:
    p = len(states[0][0])
    panels = max(len(row) for row in rows)
    block = HEADER + p * ROW
    drawing = Drawing(WIDTH, TITLE + len(rows) * block + FOOTER)
    drawing.text(MARGIN, 24, algorithm, size=17, bold=True, mono=True, anchor="start")
    width = min((WIDTH - 2 * MARGIN - LABEL - (panels - 1) * GAP) / panels, 34 * p)
    for line, row in enumerate(rows):
        top = TITLE + line * block
        for rank in range(p):
            drawing.rank_label(rank, MARGIN, top + HEADER + rank * ROW + ROW / 2)
        for place, index in enumerate(row):
            x = MARGIN + LABEL + place * (width + GAP)
            repeated = line > 0 and place == 0
            heading = "before" if index == 0 else f"after step {index}"
            drawing.text(x + width / 2, top + 16, heading, fill=SOFT_INK)
            holding, news = states[index]
            _grid(drawing, x, top + HEADER, width / p, holding, set() if repeated else news)
    sentence = "Coloured slot: numbers of that rank. Thick frame: arrived in this step. Σ: the sum"
    drawing.text(MARGIN, TITLE + len(rows) * block + 16, sentence, size=13, anchor="start")
    return drawing.finish(alt)


def _grid(drawing: Drawing, x: float, y: float, size: float, holding: Holding, news: News) -> None:
    p = len(holding)
    width, height = size - 3, ROW - 6
    for rank, chunks in enumerate(holding):
        for chunk, held in enumerate(chunks):
            left, top = x + chunk * size, y + rank * ROW + 3
            drawing.rectangle(left, top, width, height, fill=PAPER, stroke=RULE, radius=0)
            for owner in held:
                slot = width / p
                colour = rank_colour(owner)
                drawing.rectangle(left + owner * slot, top, slot, height, fill=colour, radius=0)
            if len(held) == p:
                middle = left + width / 2, top + height / 2
                drawing.rectangle(middle[0] - 6, middle[1] - 8, 12, 16, fill=PAPER, radius=2)
                drawing.text(*middle, "Σ", size=13, bold=True)
            if (rank, chunk) in news:
                frame = f"M {left} {top} h {width:.1f} v {height} h {-width:.1f} Z"
                drawing.path(frame, stroke=INK, width=2.5)


def _in_words(algorithm: str, together, p: int) -> str:
    sentences = [f"{algorithm} all-reduce on {p} ranks, with the buffer cut into {p} chunks."]
    for number, each in enumerate(together, 1):
        moves = []
        for rank, step in enumerate(each):
            if step.receive is None:
                continue
            chunks = range(step.receive.start, step.receive.stop)
            what = "chunk " if len(chunks) == 1 else "chunks "
            what = "all chunks" if len(chunks) == p else what + " and ".join(map(str, chunks))
            does = "adds" if step.combine else "copies"
            moves.append(f"rank {rank} {does} {what} of rank {step.receive.peer}")
        sentences.append(f"Step {number}: {', '.join(moves)}.")
    return " ".join([*sentences, "In the end all ranks hold the sum of every chunk."])
