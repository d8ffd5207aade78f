"""The figures of docs/how_it_works.md: the parts, a cell's path, a meeting of ranks, a hang.

Usage: ``.venv/bin/python docs/draw_how_it_works.py`` writes ``docs/how_it_works.svg`` and its
neighbours ``cell.svg``, ``meeting.svg`` and ``hang.svg``. Look at them before you commit them.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

from course_lib.teaching.figures import palette
from course_lib.teaching.figures.figure import Drawing, Figure

TARGET = Path(__file__).with_name("how_it_works.svg")
RANKS = 4
WIDTH = 720  # of the drawings, in CSS pixels
BLUE, GREY = "#E6F2FA", "#F0F0F0"


def box(axes, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    """Draw a labelled box with its lower left corner at (x, y)."""
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0.02,rounding_size=0.08",
        facecolor=colour,
        edgecolor=palette.INK,
        linewidth=1.1,
    )
    axes.add_patch(shape)
    axes.text(
        x + width / 2,
        y + height / 2,
        text,
        ha="center",
        va="center",
        fontsize=9,
        color=palette.INK,
    )


def arrow(axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a two-headed arrow."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "<->", "color": palette.INK, "lw": 1.1})


def draw_parts() -> None:
    """Draw the processes of a cluster."""
    plt.rcParams["svg.hashsalt"] = "rank-by-rank"
    figure, axes = plt.subplots(figsize=(8.4, 4.6))
    figure.patch.set_facecolor("white")
    axes.set(xlim=(0, 8.6), ylim=(-0.1, 4.75))
    axes.axis("off")
    box(axes, 0.2, 3.75, 2.9, 0.85, "notebook\n%%px runs a cell on all ranks", "#f0f0f0")
    box(axes, 4.9, 3.75, 3.4, 0.85, "keeper\nends everything if the notebook dies", "#f0f0f0")
    box(axes, 2.3, 2.35, 4.1, 0.75, "ipyparallel controller (loopback, with keys)", "#f0f0f0")
    arrow(axes, (3.15, 4.18), (4.87, 4.18))
    axes.text(4.0, 4.3, "liveness", fontsize=8.5, color=palette.INK, ha="center")
    arrow(axes, (1.65, 3.72), (3.2, 3.12))
    axes.text(1.25, 3.35, "cells, output", fontsize=8.5, color=palette.INK)
    arrow(axes, (6.6, 3.72), (5.5, 3.12))
    axes.text(6.35, 3.35, "starts, stops", fontsize=8.5, color=palette.INK)
    for rank in range(RANKS):
        x = 0.2 + rank * 2.1
        box(axes, x, 0.85, 1.8, 0.9, f"engine = rank {rank}\nyour code\ntorch.distributed", "white")
        axes.add_patch(
            FancyBboxPatch(
                (x, 1.74),
                1.8,
                0.05,
                boxstyle="square,pad=0.0",
                facecolor=palette.rank_colour(rank),
                edgecolor="none",
            )
        )
        arrow(axes, (x + 0.9, 1.83), (2.9 + rank * 0.95, 2.32))
        arrow(axes, (x + 0.9, 0.82), (x + 0.9, 0.55))
    box(
        axes,
        0.2,
        -0.02,
        8.1,
        0.53,
        "torch_mpi4py over MPI: every wait has a deadline, every collective is checked",
        "#e6f2fa",
    )
    figure.savefig(TARGET, metadata={"Date": None}, bbox_inches="tight")


# ---- from a cell to a rank and back ---------------------------------------------------------


def labelled(drawing: Drawing, x: float, y: float, width: float, height: float, *lines: str, fill):
    """Draw a box with lines of text in its middle, the first one bold."""
    drawing.rectangle(x, y, width, height, fill=fill, stroke=palette.INK)
    top = y + height / 2 - 9 * (len(lines) - 1)
    for number, line in enumerate(lines):
        drawing.text(x + width / 2, top + 18 * number, line, size=13, bold=number == 0)


def step(drawing: Drawing, x: float, y: float, number: int) -> None:
    """Draw the number of a step in a disc."""
    drawing.circle(x, y, 10, fill=palette.INK)
    drawing.text(x, y, number, size=13, fill=palette.PAPER, bold=True)


def cell() -> Figure:
    """Draw the path of a cell to the ranks and of its output back."""
    drawing = Drawing(WIDTH, 348)
    ink, ranks_at = palette.INK, [44 + 54 * rank for rank in range(RANKS)]
    labelled(drawing, 16, 24, 128, 220, "notebook", "kernel, %%px", fill=GREY)
    labelled(drawing, 216, 24, 112, 220, "controller", "ipyparallel", fill=GREY)
    labelled(drawing, 600, 24, 104, 220, "MPI", "through", "torch_mpi4py", fill=BLUE)
    for rank, y in enumerate(ranks_at):
        drawing.rectangle(400, y - 20, 148, 40, fill=palette.PAPER, stroke=ink)
        drawing.rank_label(rank, 408, y)
        drawing.text(476, y, "your cell", size=13, anchor="start")
        drawing.line(330, y - 7, 396, y - 7, stroke=ink, arrow=True)
        drawing.line(398, y + 7, 332, y + 7, stroke=ink, arrow=True)
        drawing.line(550, y - 7, 596, y - 7, stroke=ink, arrow=True)
        drawing.line(598, y + 7, 552, y + 7, stroke=ink, arrow=True)
    drawing.line(146, 100, 212, 100, stroke=ink, arrow=True)
    drawing.text(179, 84, "cell", size=13)
    drawing.line(214, 172, 148, 172, stroke=ink, arrow=True)
    drawing.text(180, 188, "output", size=13)
    labelled(drawing, 216, 284, 488, 44, "event boards", "a file for each rank", fill=BLUE)
    drawing.line(474, 228, 474, 280, stroke=ink, arrow=True)
    drawing.text(500, 256, "each operation", size=13, anchor="start")
    drawing.path("M 214 306 L 80 306 L 80 248", stroke=ink, arrow=True)
    drawing.text(206, 324, "what each rank does", size=13, anchor="end")
    for number, (x, y) in enumerate(((179, 62), (574, 22), (486, 256), (180, 210), (102, 288)), 1):
        step(drawing, x, y, number)
    return drawing.finish(
        "1: the notebook's kernel sends a cell through ipyparallel's controller to four ranks. "
        "2: the ranks communicate through torch_mpi4py and MPI. 3: each rank writes each operation "
        "on its event board, a file. 4: output returns through the controller. 5: the kernel reads "
        "the boards directly."
    )


# ---- ranks over time ------------------------------------------------------------------------

LEFT, LANE, BAR = 96, 42, 26


def lane(drawing: Drawing, rank: int, top: float) -> float:
    """Draw the plate of a rank's lane and return the height of its middle."""
    middle = top + LANE * rank
    drawing.rank_label(rank, 16, middle)
    return middle


def span(drawing: Drawing, start: float, end: float, y: float, fill: str, words: str = "") -> None:
    """Draw a stretch of time in a lane."""
    drawing.rectangle(start, y - BAR / 2, end - start, BAR, fill=fill, radius=2)
    if words:
        drawing.text((start + end) / 2, y, words, size=13, fill=palette.text_on(fill))


def moment(drawing: Drawing, x: float, bottom: float, words: str) -> None:
    """Draw a line through all lanes, with words above it."""
    drawing.line(x, 34, x, bottom, stroke=palette.INK, dashed=True)
    drawing.text(x, 20, words, size=13)


def meeting() -> Figure:
    """Draw four ranks that meet before an all-reduce, and the words in shared memory."""
    drawing = Drawing(WIDTH, 318)
    top, last, done = 62, 500, 620
    for rank, arrival in enumerate((210, 350, 280, last)):
        y, colour = lane(drawing, rank, top), palette.rank_colour(rank)
        span(drawing, LEFT, arrival, y, colour, "computes")
        if arrival < last:
            span(drawing, arrival, last, y, drawing.hatch(colour))
            drawing.plate((arrival + last) / 2, y, "sleeps")
        span(drawing, last, done, y, palette.blend(colour, palette.PAPER, 0.72), "all_reduce")
    moment(drawing, last, top + LANE * 3 + 22, "rank 3 arrives: all words agree, all wake")
    drawing.text(16, 246, "shared memory", anchor="start", bold=True, size=13)
    drawing.text(16, 264, "at this moment", anchor="start", size=13)
    for rank in range(RANKS):
        x = 150 + 138 * rank
        drawing.rectangle(x, 232, 128, 62, fill=BLUE, stroke=palette.INK)
        drawing.text(x + 64, 247, f"rank {rank}", size=13, bold=True)
        drawing.text(x + 64, 264, "call 7, all_reduce", size=13)
        drawing.text(x + 64, 281, "sum, float32 (10,)", size=13)
    return drawing.finish(
        "Ranks 0, 2 and 1 reach an all_reduce one after the other and sleep. When rank 3 arrives, "
        "the words of all four in shared memory agree: call 7, all_reduce, sum, float32, 10 "
        "elements. All wake and do the all_reduce."
    )


def hang() -> Figure:
    """Draw lesson 00's hang, from the call that rank 3 skips to free ranks."""
    drawing = Drawing(WIDTH, 394)
    top, limit, free = 62, 430, 590
    for rank in range(RANKS):
        y, colour = lane(drawing, rank, top), palette.rank_colour(rank)
        if rank < 3:
            span(drawing, LEFT, 150, y, colour)
            span(drawing, 150, free, y, drawing.hatch(colour))
            drawing.plate(290, y, "waits in allreduce")
        else:
            span(drawing, LEFT, 190, y, colour)
            drawing.text(200, y, "finished without it", size=13, anchor="start")
        span(drawing, free, 704, y, palette.blend(colour, palette.PAPER, 0.72), "free")
    bottom = top + LANE * 3 + 24
    moment(drawing, limit, bottom, "the limit passes")
    moment(drawing, free, bottom, "all ranks are free")
    steps = (
        ("the kernel reads all boards", "and finds the likely bug"),
        ("each waiting rank gets a", "signal and leaves its call"),
    )
    for number, (x, lines) in enumerate(zip((262, 484), steps, strict=True), 1):
        step(drawing, x, 240, number)
        for place, line in enumerate(lines):
            drawing.text(x + 18, 232 + 17 * place, line, size=13, anchor="start")
    report = (
        "0     waiting   allreduce, pickle  cell 21, line 4  2.0 s",
        "1     waiting   allreduce, pickle  cell 21, line 4  2.0 s",
        "2     waiting   allreduce, pickle  cell 21, line 4  2.1 s",
        "3     finished",
    )
    drawing.rectangle(96, 272, 608, 110, fill=GREY, stroke=palette.RULE)
    drawing.text(16, 290, "report", anchor="start", bold=True, size=13)
    for number, line in enumerate(report):
        drawing.text(
            108, 286 + 20 * number, line.replace(" ", "\u00a0"), size=13, anchor="start", mono=True
        )
    bug = "Rank 3 finished without the allreduce in which ranks 0, 1 and 2 wait [cell 21, line 4]."
    drawing.text(108, 368, bug, size=13, anchor="start")
    return drawing.finish(
        "Ranks 0, 1 and 2 wait in an allreduce; rank 3 finished without it. When the limit passes, "
        "the kernel reads all event boards and finds the likely bug; then each waiting rank gets a "
        "signal and leaves its call. All ranks are free. The report says what each was doing, on "
        "which line, for how long, and that rank 3 finished without the allreduce."
    )


def main() -> None:
    """Draw and write all figures."""
    draw_parts()
    for figure in (cell, meeting, hang):
        figure().save(TARGET.with_name(f"{figure.__name__}.svg"))


if __name__ == "__main__":
    main()
