"""Four ranks on two virtual hosts beside four on one, and what several hosts cost a notebook."""

from __future__ import annotations

from statistics import median

from benchmarks.report import (
    MIB,
    Section,
    Target,
    microseconds,
    milliseconds,
    ratio,
    seconds,
    size_name,
    table,
)

START_SECONDS = 8
REPORT_SECONDS = 2
IDLE_SHARE = 0.005
OVER_RAW = 1.15
_NAMES = {"ours": "torch_mpi4py", "gloo": "gloo", "least": "the least", "raw": "raw MPI"}


def section(measured: dict) -> Section:
    """Return tables and targets of what ``benchmarks.hosts`` measured."""
    lines = ["## Several hosts", ""]
    if why := measured.get("missing"):
        return Section([*lines, f"Not measured here: {why}.", ""], [])
    lines += [
        "Two virtual hosts with two ranks each, beside one with four; all on this machine's "
        "cores, what crosses the network is copied by its kernel. all_reduce of float32, "
        "microseconds: median (quartiles), in turns in the same ranks. The least that a checked "
        "call can take is torch's own `dist.all_reduce` around nothing but two raw MPI calls: 16 "
        "bytes, for the check, and the data.",
        "",
    ]
    for where, run in measured["runs"].items():
        lines += table(
            [f"on {where}", *_NAMES.values(), "gloo / ours", "ours / least", "ours / raw"],
            [
                [
                    size_name(row["bytes"]),
                    *(microseconds(row["samples"][name]) for name in _NAMES),
                    f"{ratio(row, 'gloo', 'ours'):.1f}",
                    f"{ratio(row, 'ours', 'least'):.2f}",
                    f"{ratio(row, 'ours', 'raw'):.2f}",
                ]
                for row in run["all_reduce"]
            ],
        )
    lines += ["A DDP step, ms:", ""]
    lines += table(
        ["where", "model", "torch_mpi4py", "gloo", "sends nothing", "gloo / ours"],
        [
            [
                where,
                row["model"],
                *(milliseconds(row["samples"][name]) for name in ("ours", "gloo", "silent")),
                f"{ratio(row, 'gloo', 'ours'):.2f}",
            ]
            for where, run in measured["runs"].items()
            for row in run["ddp_step"]
        ],
    )
    lines += ["A notebook's cluster, s: median (smallest to largest):", ""]
    lines += table(
        ["what", "s"],
        [
            [f"four engines with torch on {where}", seconds(values)]
            for where, values in measured["starts"].items()
        ]
        + [["from a cell's limit to the report, two hosts", seconds(measured["reports"])]],
    )
    return Section(lines, _targets(measured))


def _targets(measured: dict) -> list[Target]:
    run = measured["runs"]["two hosts"]
    gloo = [(ratio(row, "gloo", "ours"), row) for row in run["all_reduce"]]
    steps = [(ratio(row, "gloo", "ours"), row) for row in run["ddp_step"]]
    least, smallest = min(gloo, key=lambda pair: pair[0])
    slowest, step = min(steps, key=lambda pair: pair[0])
    rows = [
        Target(
            "two hosts: all_reduce against gloo, every size",
            "> 1x",
            f"{least:.2f}x ({size_name(smallest['bytes'])})",
            f"{ratio(smallest, 'gloo', 'ours', min):.2f}x",
            least > 1,
        ),
        Target(
            "two hosts: DDP step against gloo",
            "> 1x",
            f"{slowest:.2f}x ({step['model']})",
            f"{ratio(step, 'gloo', 'ours', min):.2f}x",
            slowest > 1,
        ),
    ]
    for row in run["all_reduce"]:
        if row["bytes"] >= MIB:
            over = ratio(row, "ours", "raw")
            rows.append(
                Target(
                    f"two hosts: all_reduce over raw MPI, {size_name(row['bytes'])}",
                    f"<= {OVER_RAW}x",
                    f"{over:.2f}x",
                    f"{ratio(row, 'ours', 'raw', min):.2f}x",
                    over <= OVER_RAW,
                    "torch's own function around the raw call and a check took "
                    f"{ratio(row, 'least', 'raw'):.2f}x in the same turns: all four ranks are in "
                    "Python at the same time, on this machine's cores",
                )
            )
    here, there = (measured["starts"][name] for name in ("one host", "two hosts"))
    cause = f"on one host it takes {median(here):.1f} s here, and most of that is torch's import"
    rows.append(_at_most("start of four engines on two hosts", there, START_SECONDS, cause))
    rows.append(
        _at_most("two hosts: from the limit to the report", measured["reports"], REPORT_SECONDS)
    )
    share = measured["idle"]
    rows.append(
        Target(
            "agent of a host, idle, of a core",
            f"<= {IDLE_SHARE:.1%}",
            f"{share:.2%}",
            "-",
            share <= IDLE_SHARE,
        )
    )
    return rows


def _at_most(what: str, values: list[float], wanted: float, cause: str = "") -> Target:
    got = median(values)
    return Target(
        what, f"<= {wanted} s", f"{got:.2f} s", f"{min(values):.2f} s", got <= wanted, cause
    )
