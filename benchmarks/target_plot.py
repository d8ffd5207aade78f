"""One picture shows how far every measured number is from its target."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.report import Target

MET, MISSED = "#0072B2", "#D55E00"  # Okabe-Ito
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def share(target: Target) -> float | None:
    """Return measured over wanted, or its inverse where more is better: met up to 1.

    None where there is no target or nothing was measured.
    """
    wanted, got = _NUMBER.search(target.wanted), _NUMBER.search(target.measured)
    if wanted is None or got is None or float(got[0]) == 0:
        return None
    ratio = float(got[0]) / float(wanted[0])
    return 1 / ratio if target.wanted.startswith(">") else ratio


def plot(targets: list[Target], path: Path) -> None:
    """Draw a bar for each target on a logarithmic axis; left of the line it is met."""
    rows = [(row, value) for row in targets if (value := share(row)) is not None]
    figure = Figure(figsize=(9.4, 0.8 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (row, value) in enumerate(rows):
        colour = MET if row.met else MISSED
        axes.plot([1, value], [place, place], color=colour, linewidth=5, solid_capstyle="butt")
        axes.plot([value], [place], "o" if row.met else "X", color=colour)
        note = f"{row.measured} ({row.wanted})"
        axes.annotate(note, (1.01, place), xycoords=("axes fraction", "data"), va="center", size=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.what for row, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlabel("measured over target (left of the line: met; X: missed)")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
