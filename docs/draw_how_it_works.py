"""The figure of how the course works, drawn from one list of boxes.

Usage: ``.venv/bin/python docs/draw_how_it_works.py`` writes ``docs/how_it_works.svg``.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

from course_lib.teaching.figures import palette

TARGET = Path(__file__).with_name("how_it_works.svg")
RANKS = 4


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


def main() -> None:
    """Draw and write the figure."""
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


if __name__ == "__main__":
    main()
