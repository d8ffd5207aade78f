"""Five figures of the benchmark for the README: one plot, and the same in words."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report import COLOURS, MIB, USUAL_BATCH
from benchmarks.throughput_report import speedup

OURS, OTHER, RAW, FLOOR = COLOURS["ours"], COLOURS["gloo"], COLOURS["raw"], "#8C8C8C"
PLOT = Path("docs/five_figures.svg")
RANKS, MODEL, IMAGES = 2, "MLP", 64
CELL = "an import and 1,000 numbers"


class Bar(NamedTuple):
    """One measured value, as it is labelled and coloured."""

    name: str
    value: float
    colour: str


class Panel(NamedTuple):
    """One of the five figures: bars that belong together, with their unit."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


def panels(result: dict) -> list[Panel]:
    """Return the five figures of a whole measurement, each beside what it is compared with."""
    programs = result["programs"]
    run = next(run for run in result["runs"] if run["ranks"] == RANKS)
    (reduced,) = [row["samples"] for row in run["all_reduce"] if row["bytes"] == MIB]
    (step,) = [
        row["samples"]
        for row in run["ddp_step"]
        if (row["model"], row["batch"]) == (MODEL, USUAL_BATCH)
    ]
    (trained,) = [each for each in programs["throughput"]["batches"] if each["batch"] == IMAGES]
    cell, failed = programs["engines"]["cells"][CELL], programs["failures"]

    def ms(samples: dict[str, list[float]], name: str) -> float:
        return 1e3 * median(samples[name])

    return [
        Panel(
            f"all_reduce of 1 MiB, {RANKS} ranks",
            "ms",
            (
                Bar("gloo", ms(reduced, "gloo"), OTHER),
                Bar("this backend", ms(reduced, "ours"), OURS),
                Bar("MPI itself", ms(reduced, "raw"), RAW),
            ),
        ),
        Panel(
            f"a DDP step of an {MODEL}, {RANKS} ranks",
            "ms",
            (
                Bar("gloo", ms(step, "gloo"), OTHER),
                Bar("this backend", ms(step, "ours"), OURS),
                Bar("nothing sent", ms(step, "silent"), FLOOR),
            ),
        ),
        Panel(
            "training LeNet on two cores",
            "times one process",
            (
                Bar("two ranks, DDP", speedup(trained, "ddp"), OURS),
                Bar("two ranks, lesson 05", speedup(trained, "sync"), OURS),
                Bar("two that never speak", speedup(trained, "apart"), FLOOR),
            ),
        ),
        Panel(
            f"a %%px cell on {programs['engines']['ranks']} ranks",
            "ms",
            (
                Bar("ipyparallel alone", ms(cell, "plain"), OTHER),
                Bar("with limits and reports", ms(cell, "ours"), OURS),
            ),
        ),
        Panel(
            "after a failure, 4 or 5 ranks",
            "s",
            (
                Bar("hang: limit to report", median(x["report"] for x in failed["limit"]), OURS),
                Bar("death: to the next all_reduce", median(failed["alone"]["seconds"]), OURS),
                Bar("fresh ranks: restart", median(failed["restart"]), OURS),
            ),
        ),
    ]


def in_words(result: dict) -> str:
    """Return what stands between the README's marks: the plot with its alternative text."""
    described = "; ".join(
        f"{panel.title}, in {panel.unit}: "
        + ", ".join(f"{bar.name} {number(bar.value)}" for bar in panel.bars)
        for panel in panels(result)
    )
    source = (
        f"Medians of `make bench` on {result['date']}: {result['machine']}, "
        f"{result['runs'][0]['library']}, torch {result['runs'][0]['torch']}."
    )
    return f"![Five figures. {described}.]({PLOT})\n\n{source}"


def number(value: float) -> str:
    """Return a value with about three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def plot(result: dict, path: Path) -> None:
    """Draw the five figures, a panel each; the last place says what was measured where."""
    figure = Figure(figsize=(9.6, 5.6), layout="constrained", facecolor="white")
    *places, last = figure.subplots(3, 2).flat
    for axes, panel in zip(places, panels(result), strict=True):
        values = [bar.value for bar in panel.bars]
        axes.barh([bar.name for bar in panel.bars], values, color=[b.colour for b in panel.bars])
        for place, value in enumerate(values):
            axes.annotate(
                number(value),
                (value, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=10,
            )
        axes.set_title(panel.title, fontsize=10, loc="left")
        axes.set_xlabel(panel.unit, fontsize=9)
        axes.set_xlim(0, 1.18 * max(values))
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.tick_params(labelsize=9.5)
        axes.spines[["top", "right"]].set_visible(False)
    last.axis("off")
    last.text(
        0,
        0.5,
        f"Medians, measured on {result['date']}:\n{result['machine']}, one thread per rank\n\n"
        "blue: this course\norange: what there is without it\n"
        "green: MPI called without PyTorch\ngrey: no communication at all",
        fontsize=10,
        va="center",
        transform=last.transAxes,
    )
    with mpl.rc_context({"svg.hashsalt": path.name}):  # the same samples give the same file
        figure.savefig(path, metadata={"Date": None})
