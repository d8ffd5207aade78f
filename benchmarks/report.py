"""Samples become medians, ratios against the targets, one table and one plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from matplotlib.figure import Figure

COLOURS = {"ours": "#0072B2", "gloo": "#D55E00", "raw": "#009E73"}  # Okabe-Ito
LABELS = {"ours": "torch_mpi4py", "gloo": "gloo", "raw": "raw MPI.Allreduce"}
MIB = 2**20
DDP_ADDED = 0.25  # what communication adds to a step, over what it adds with gloo, at most
SMALL_EXTRA = 15  # microseconds over raw MPI
USUAL_BATCH = 32
SMALL = 64 * 1024
CHECK_SMALL, CHECK_LARGE = 1.3, 1.03  # times an unchecked all_reduce, at most


def milliseconds(samples: list[float]) -> str:
    """Return median and quartiles in ms."""
    low, _, high = quantiles(samples, n=4)
    return f"{1e3 * median(samples):.3g} ({1e3 * low:.3g} to {1e3 * high:.3g})"


def microseconds(samples: list[float]) -> str:
    """Return median and quartiles in us."""
    low, _, high = quantiles(samples, n=4)

    def shown(value: float) -> str:
        return f"{1e6 * value:,.0f}" if value >= 1e-4 else f"{1e6 * value:.3g}"

    return f"{shown(median(samples))} ({shown(low)} to {shown(high)})"


def seconds(samples: list[float]) -> str:
    """Return the median in s, and the smallest and the largest: of these there are few."""
    return f"{median(samples):.2f} ({min(samples):.2f} to {max(samples):.2f})"


def size_name(count: int) -> str:
    """Return e.g. ``64 KiB``."""
    for unit, factor in (("MiB", MIB), ("KiB", 1024)):
        if count >= factor:
            return f"{count // factor} {unit}"
    return f"{count} B"


def ratio(row: dict, above: str, below: str, of: Callable[[list[float]], float] = median) -> float:
    """Return one variant's time over another's: medians, or what ``of`` makes of the samples."""
    return of(row["samples"][above]) / of(row["samples"][below])


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


class Target(NamedTuple):
    """One comparison: what was wanted and got, by medians, and by the fastest samples."""

    what: str
    wanted: str
    measured: str
    fastest: str
    met: bool
    cause: str = ""


class Section(NamedTuple):
    """A further part of the report: Markdown lines with a table, and its targets."""

    lines: list[str]
    targets: list[Target]


def targets(runs: list[dict]) -> list[Target]:
    """Return every target with what was measured."""
    rows = []
    for run in runs:
        rows += gloo_targets(run["ranks"], run["all_reduce"])
        if run["ranks"] == 2:
            rows += raw_targets(run["all_reduce"])
        rows += check_targets(run["ranks"], run["all_reduce"])
        rows += [step_target(run["ranks"], row) for row in run["ddp_step"]]
    return rows


def gloo_targets(ranks: int, sweep: list[dict]) -> list[Target]:
    """Return the rows that compare all_reduce with gloo."""
    speedups = [ratio(row, "gloo", "ours") for row in sweep]
    fastest = [ratio(row, "gloo", "ours", min) for row in sweep]
    wanted = 12 if ranks == 2 else 8
    what = f"all_reduce against gloo, {ranks} ranks"

    def worst(values: list[float]) -> str:
        return f"{min(values):.2f}x ({size_name(sweep[values.index(min(values))]['bytes'])})"

    mean, mean_of_fastest = geometric_mean(speedups), geometric_mean(fastest)
    large = "memory, not the library, limits the largest sizes; there the two are close"
    return [
        Target(
            f"{what}, every size", "> 1x", worst(speedups), worst(fastest), min(speedups) > 1, large
        ),
        Target(
            f"{what}, geometric mean",
            f">= {wanted}x",
            f"{mean:.1f}x",
            f"{mean_of_fastest:.1f}x",
            mean >= wanted,
        ),
    ]


def raw_targets(sweep: list[dict]) -> list[Target]:
    """Return the rows that compare with raw MPI."""

    def extra(row: dict, of: Callable[[list[float]], float]) -> float:
        return 1e6 * (of(row["samples"]["ours"]) - of(row["samples"]["raw"]))

    small = extra(sweep[0], median)
    rows = [
        Target(
            "all_reduce over raw MPI, 4 B",
            f"<= +{SMALL_EXTRA} us",
            f"+{small:.1f} us",
            f"+{extra(sweep[0], min):.1f} us",
            small <= SMALL_EXTRA,
        )
    ]
    for row in sweep:
        if row["bytes"] >= MIB:
            over = ratio(row, "ours", "raw")
            transfer = 1e6 * median(row["samples"]["raw"])
            cause = (
                f"raw MPI takes {transfer:.0f} us here, of which 15% is {0.15 * transfer:.0f} us; "
                f"ours takes {extra(row, median):.0f} us more, of which {small:.0f} us is what "
                "any call costs (at 4 B)"
            )
            what = f"all_reduce over raw MPI, {size_name(row['bytes'])}"
            fastest = f"{ratio(row, 'ours', 'raw', min):.2f}x"
            rows.append(Target(what, "<= 1.15x", f"{over:.2f}x", fastest, over <= 1.15, cause))
    return rows


def checked_over_unchecked(row: dict, of: Callable[[list[float]], float] = median) -> float:
    """Return what the comparison of calls costs: the median of the turns' ratios."""
    samples = row["samples"]
    return of([a / b for a, b in zip(samples["checked"], samples["unchecked"], strict=True)])


def check_targets(ranks: int, sweep: list[dict]) -> list[Target]:
    """Return the rows on what it costs to compare the ranks' calls before each collective."""
    rows = []
    for sizes, wanted, chosen in (
        ("up to 64 KiB", CHECK_SMALL, [row for row in sweep if row["bytes"] <= SMALL]),
        ("from 1 MiB", CHECK_LARGE, [row for row in sweep if row["bytes"] >= MIB]),
    ):
        got = geometric_mean([checked_over_unchecked(row) for row in chosen])
        fastest = geometric_mean([ratio(row, "checked", "unchecked", min) for row in chosen])
        extra = [
            1e6 * (median(row["samples"]["checked"]) - median(row["samples"]["unchecked"]))
            for row in chosen
        ]
        rows.append(
            Target(
                f"mismatch check, {ranks} ranks, {sizes}, geometric mean",
                f"<= {wanted}x",
                f"{got:.2f}x",
                f"{fastest:.2f}x",
                got <= wanted,
                f"the check is one more all-reduce, of 16 bytes: {min(extra):.0f} to "
                f"{max(extra):.0f} us here",
            )
        )
    return rows


def added(row: dict, of: Callable[[list[float]], float] = median) -> float:
    """Return what communication adds to a training step, over what it adds with gloo."""
    ours, gloo, silent = (of(row["samples"][name]) for name in ("ours", "gloo", "silent"))
    return (ours - silent) / (gloo - silent)


def step_target(ranks: int, row: dict) -> Target:
    """Return the row of a training step."""
    got = added(row)
    share, floor = ratio(row, "ours", "gloo"), ratio(row, "silent", "gloo")
    milliseconds_added = 1e3 * (median(row["samples"]["ours"]) - median(row["samples"]["silent"]))
    cause = (
        f"the whole step takes {share:.2f}x of gloo's, DDP that sends nothing {floor:.2f}x; "
        f"communication adds {milliseconds_added:.2f} ms"
    )
    return Target(
        f"what communication adds to a DDP step, against gloo, {row['model']}, batch "
        f"{row['batch']}, {ranks} ranks",
        f"<= {DDP_ADDED}x",
        f"{got:.2f}x",
        f"{added(row, min):.2f}x",
        got <= DDP_ADDED,
        cause,
    )


def step_scope() -> list[str]:
    """Return what the target of a training step compares."""
    return [
        f"Target: communication adds at most {DDP_ADDED}x of what it adds with gloo. "
        '"Silent" is DDP with a hook that sends nothing. "Silent / gloo" is the floor, no backend '
        "can be below it; the last column is what communication adds to the step: ours less "
        "silent, over gloo less silent.",
        "",
    ]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def markdown(result: dict, sections: Sequence[Section] = ()) -> str:
    """Return the whole report on what ``python -m benchmarks`` collected."""
    lines = [
        "# Benchmarks",
        "",
        f"{result['date']}. {result['machine']}; {result['runs'][0]['library']},"
        f" torch {result['runs'][0]['torch']}, Python {result['python']}, one thread per rank."
        " Milliseconds: median (quartiles) of samples taken in turns in the same ranks."
        f" Load average at the start: {result['load']}."
        " Made by `make bench`.",
        "",
        "![How far each number is from its target](targets.svg)",
        "",
        "![Time of an all_reduce over its size](all_reduce.svg)",
        "",
    ]
    for run in result["runs"]:
        lines += [f"## {run['ranks']} ranks", "", "all_reduce of float32:", ""]
        lines += table(
            [
                *("size", "torch_mpi4py", "gloo", "raw MPI"),
                *("gloo / ours", "ours / raw", "checked / unchecked"),
            ],
            [
                [
                    size_name(row["bytes"]),
                    *(milliseconds(row["samples"][name]) for name in ("ours", "gloo", "raw")),
                    f"{ratio(row, 'gloo', 'ours'):.1f}",
                    f"{ratio(row, 'ours', 'raw'):.2f}",
                    f"{checked_over_unchecked(row):.2f}",
                ]
                for row in run["all_reduce"]
            ],
        )
        lines += ["What small messages cost, in ms:", ""]
        lines += table(
            ["size", "on the caller's thread", "asynchronous, then waited for", "unchecked"],
            [
                [
                    size_name(row["bytes"]),
                    *(milliseconds(row["samples"][name]) for name in ("ours", "asynchronous")),
                    milliseconds(row["samples"]["unchecked"]),
                ]
                for row in run["all_reduce"]
                if "asynchronous" in row["samples"]
            ],
        )
        lines += ["Training step under DDP:", ""]
        lines += table(
            [
                "model (parameters)",
                "images a rank",
                "torch_mpi4py",
                "gloo",
                "silent",
                "ours / gloo",
                "silent / gloo",
                "added / added by gloo",
            ],
            [
                [
                    f"{row['model']} ({row['parameters']:,})",
                    f"{row['batch']}",
                    *(milliseconds(row["samples"][name]) for name in ("ours", "gloo", "silent")),
                    f"{ratio(row, 'ours', 'gloo'):.2f}",
                    f"{ratio(row, 'silent', 'gloo'):.2f}",
                    f"{added(row):.2f}",
                ]
                for row in run["ddp_step"]
            ],
        )
        lines += step_scope()
    rows = targets(result["runs"])
    for section in sections:
        lines += section.lines
        rows += section.targets
    lines += [
        "## Targets",
        "",
        "Targets are about medians. Other load on the machine slows gloo more than MPI, so the "
        "ratio of the fastest samples stands beside: where it tells another story, trust neither.",
        "",
    ]
    return "\n".join(lines + target_table(rows))


def target_table(rows: list[Target]) -> list[str]:
    """Return all targets as a Markdown table, and below it those missed, each with its cause."""
    lines = table(
        ["what", "target", "by medians", "by fastest samples", "met"],
        [[*row[:4], _met(row)] for row in rows],
    )
    missed = [row for row in rows if not row.met]
    if missed:
        lines += ["Missed:", ""]
        lines += [
            f"- {row.what}: {row.measured}, target {row.wanted}: {row.cause or 'cause not known'}."
            for row in missed
        ]
        lines.append("")
    return lines


def _met(row: Target) -> str:
    if row.wanted == "(none)":
        return "-"
    return "yes" if row.met else "**no**"


def plot(result: dict, path: Path) -> None:
    """Draw time over size, one panel per number of ranks, with quartiles as bands."""
    runs = result["runs"]
    figure = Figure(figsize=(4.6 * len(runs), 3.8), layout="constrained")
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for panel, run in zip(panels, runs, strict=True):
        sizes = [row["bytes"] for row in run["all_reduce"]]
        for name, colour in COLOURS.items():
            cuts = [quantiles(row["samples"][name], n=4) for row in run["all_reduce"]]
            low, middle, high = ([1e3 * value for value in cut] for cut in zip(*cuts, strict=True))
            panel.plot(sizes, middle, color=colour, marker="o", markersize=3, label=LABELS[name])
            panel.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        ticks = [4, 1024, 64 * 1024, MIB, 64 * MIB]
        panel.set_xticks(ticks, [size_name(tick) for tick in ticks], fontsize=8)
        panel.set_xlabel("size of the tensor")
        panel.set_title(f"all_reduce, {run['ranks']} ranks", fontsize=10)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time per call (ms)")
    panels[0].legend(frameon=False, fontsize=9)
    figure.savefig(path)
