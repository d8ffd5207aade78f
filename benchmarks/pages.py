"""A measurement's parts on other pages: five figures for the README, the targets, the plots."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.backend import USUAL_BATCH
from benchmarks.report import MIB, Target, markdown_table, ratio, size
from benchmarks.throughput import speedup

PAGE = Path("docs/benchmark.md")  # some sizes, and the missed targets
FRONT = Path("README.md")  # five figures
BEGIN = "<!-- written by make bench, from here -->"
END = "<!-- to here -->"
SIZES = (4, 1024, 64 * 1024, MIB, 16 * MIB, 64 * MIB)
OURS, OTHER, RAW, FLOOR = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"  # Okabe-Ito, and a grey
PLOT = Path("docs/five_figures.svg")
RANKS, MODEL, IMAGES = 2, "MLP", 64
CELL = "an import and 1,000 numbers"


def renew(path: Path, text: str) -> bool:
    """Put ``text`` between the marks of the file; return whether it has them."""
    before = path.read_text(encoding="utf-8")
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        return False
    path.write_text(f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}", encoding="utf-8")
    return True


def software(result: dict) -> str:
    """Return the programs' versions and the machine."""
    of_ranks = result["programs"].get("backend", [])
    names = [f"{run['library']}, torch {run['torch']}" for run in of_ranks[:1]]
    return ", ".join([result["machine"], *names])


def table_of(result: dict, targets: list[Target]) -> str:
    """Return the text between the marks of ``PAGE``."""
    about = (
        f"Measured with `make bench` on {result['date']}: {software(result)}, one thread per rank, "
        f"and a load average of {result['load']} at the start. All values are medians."
    )
    runs = result["programs"]["backend"]
    header = ["all_reduce, float32"]
    for run in runs:
        header += [f"{run['ranks']} ranks: ours (us)", "gloo (us)", "gloo / ours"]
    rows = []
    for together in zip(*(run["all_reduce"] for run in runs), strict=True):
        row = [size(together[0])]
        for found in together:
            row += [f"{1e6 * median(found['samples'][name]):,.0f}" for name in ("ours", "gloo")]
            row += [f"{ratio(found, 'gloo', 'ours'):.1f}x"]
        if together[0]["bytes"] in SIZES:
            rows.append(row)
    return "\n".join([about, "", *markdown_table(header, rows), *summary(targets)])


def summary(targets: list[Target]) -> list[str]:
    """Return how many targets are met, and those missed as a table."""
    missed = [row for row in targets if not row.met]
    met = f"{len(targets) - len(missed)} of {len(targets)} targets are met."
    if not missed:
        return [met]
    rows = [[row.what, row.wanted, row.measured, row.cause or "not known"] for row in missed]
    return [met, "", *markdown_table(("missed", "target", "measured", "cause"), rows)]


# ---- five figures -----------------------------------------------------------------------


class Bar(NamedTuple):
    """One measured value, as it is labelled and coloured."""

    name: str
    value: float
    colour: str = OURS


class Panel(NamedTuple):
    """One of the five figures: bars that belong together, with their unit."""

    title: str
    unit: str
    bars: list[Bar]


def panels(result: dict) -> list[Panel]:
    """Return the five figures of a whole measurement, each with its comparison."""
    programs = result["programs"]
    run = next(run for run in programs["backend"] if run["ranks"] == RANKS)
    (reduced,) = (row for row in run["all_reduce"] if row["bytes"] == MIB)
    steps = (row for row in run["ddp_step"] if row["batch"] == USUAL_BATCH)
    (step,) = (row for row in steps if row["model"] == MODEL)
    throughput, engines, failed = (
        programs[key][0] for key in ("throughput", "engines", "failures")
    )
    (trained,) = (row for row in throughput["batches"] if row["batch"] == IMAGES)
    cell, hangs = {"samples": engines["cells"][CELL]}, [one["report"] for one in failed["limit"]]

    def ms(row: dict, variant: str, name: str, colour: str = OURS) -> Bar:
        return Bar(name, 1e3 * median(row["samples"][variant]), colour)

    reductions = [ms(reduced, "gloo", "gloo", OTHER), ms(reduced, "ours", "this backend")]
    reductions += [ms(reduced, "raw", "MPI itself", RAW)]
    in_step = [ms(step, "gloo", "gloo", OTHER), ms(step, "ours", "this backend")]
    in_step += [ms(step, "silent", "nothing sent", FLOOR)]
    training = [
        Bar("two ranks, DDP", speedup(trained, "ddp")),
        Bar("two ranks, lesson 05", speedup(trained, "sync")),
        Bar("two independent processes", speedup(trained, "apart"), FLOOR),
    ]
    cells = [ms(cell, "plain", "ipyparallel alone", OTHER)]
    cells += [ms(cell, "ours", "with limits and reports")]
    failure = [
        Bar("hang: limit to report", median(hangs)),
        Bar("death: to the next all_reduce", median(failed["alone"]["seconds"])),
        Bar("fresh ranks: restart", median(failed["restart"])),
    ]
    return [
        Panel(f"all_reduce of 1 MiB, {RANKS} ranks", "ms", reductions),
        Panel(f"a DDP step of an {MODEL}, {RANKS} ranks", "ms", in_step),
        Panel("training LeNet on two cores", "speed, one process = 1", training),
        Panel(f"a %%px cell on {engines['ranks']} ranks", "ms", cells),
        Panel("after a failure, 4 or 5 ranks", "s", failure),
    ]


def in_words(result: dict) -> str:
    """Return the text between the README's marks: the plot with its alternative text."""
    described = "; ".join(
        f"{panel.title} ({panel.unit}): "
        + ", ".join(f"{bar.name} {number(bar.value)}" for bar in panel.bars)
        for panel in panels(result)
    )
    source = f"Medians, measured with `make bench` on {result['date']}: {software(result)}."
    return f"![Five figures. {described}.]({PLOT})\n\n{source}"


def number(value: float) -> str:
    """Return a value with about three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def plot_five(result: dict, path: Path) -> None:
    """Draw the five figures, a panel each; the last place names the machine and the measurement."""
    figure = Figure(figsize=(9.6, 5.6), layout="constrained", facecolor="white")
    *places, last = figure.subplots(3, 2).flat
    for axes, panel in zip(places, panels(result), strict=True):
        draw(axes, panel)
    about = (
        f"Medians, measured on {result['date']}:\n{result['machine']}, one thread per rank\n\n"
        "blue: this course\norange: without it\n"
        "green: MPI called without PyTorch\ngrey: no communication at all"
    )
    last.axis("off")
    last.text(0, 0.5, about, fontsize=10, va="center", transform=last.transAxes)
    with mpl.rc_context({"svg.hashsalt": path.name}):  # the same samples give the same file
        figure.savefig(path, metadata={"Date": None})


def draw(axes: Axes, panel: Panel) -> None:
    """Draw the bars of a panel, each with its value."""
    names, values, colours = zip(*panel.bars, strict=True)
    bars = axes.barh(names, values, color=colours)
    axes.bar_label(bars, [number(value) for value in values], padding=4, fontsize=10)
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_xlabel(panel.unit, fontsize=9)
    axes.set_xlim(0, 1.18 * max(values))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.tick_params(labelsize=9.5)
    axes.spines[["top", "right"]].set_visible(False)
