"""Seconds from a hang or a death to ranks that compute together again."""

from __future__ import annotations

from statistics import median

from benchmarks.report import Section, Target, seconds, table

HANG_SECONDS = 1
DEATH_SECONDS = 0.2
RESTART_SECONDS = 4


def section(measured: dict) -> Section:
    """Return table and targets of what ``benchmarks.failures`` measured."""
    ways = {
        "a cell's limit passes": ("limit", "to the report"),
        "a group's deadline passes": ("deadline", "to the report"),
    }
    rows = []
    for what, (key, until) in ways.items():
        rows.append([what, until, seconds([one["report"] for one in measured[key]])])
        ahead = seconds([one["next"] for one in measured[key]])
        rows.append([what, "to the end of the next cell's all-reduce", ahead])
    alone = measured["alone"]
    rows += [
        [
            f"a rank of {alone['ranks']} and fewer is killed, no notebook",
            "to the survivors' next completed all-reduce",
            seconds(alone["seconds"]),
        ],
        [
            f"`cluster.kill` of one of {measured['ranks']}, `cluster.shrink()`",
            "to the end of the next cell's all-reduce",
            seconds(measured["death"]),
        ],
        [
            "`cluster.restart()`",
            "to a cell on fresh ranks with torch",
            seconds(measured["restart"]),
        ],
    ]
    lines = [
        "## Hangs and deaths",
        "",
        f"{measured['ranks']} engines. Seconds: median (smallest to largest) of a few.",
        "",
        *table(["what happens", "from then", "s"], rows),
    ]
    targets = []
    for what, key in (("limit", "limit"), ("deadline", "deadline")):
        for until, name in (("report", "report"), ("next", "free ranks' next all-reduce")):
            values = [one[until] for one in measured[key]]
            targets.append(_target(f"hang: from the {what} to the {name}", values, HANG_SECONDS))
    name = "killed rank: to the survivors' next all-reduce"
    targets.append(_target(name, alone["seconds"], DEATH_SECONDS))
    targets.append(_target(f"{name}, by cells", measured["death"], DEATH_SECONDS))
    targets.append(_target("restart of the engines", measured["restart"], RESTART_SECONDS))
    return Section(lines, targets)


def _target(what: str, values: list[float], wanted: float) -> Target:
    got = median(values)
    cause = f"the {len(values)} took {', '.join(f'{value:.2f}' for value in values)} s"
    return Target(
        what, f"<= {wanted} s", f"{got:.2f} s", f"{min(values):.2f} s", got <= wanted, cause
    )
