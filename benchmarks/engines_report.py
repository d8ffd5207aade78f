"""A cell's round trip and a cluster's start, over plain ipyparallel's."""

from __future__ import annotations

from statistics import median

from benchmarks.report import Section, Target, milliseconds, seconds, table

ROUND_TRIP = 1.1
START_SECONDS = 4.5


def over_plain(samples: dict[str, list[float]]) -> float:
    """Return the median, over the turns, of our time over plain ipyparallel's."""
    return median(a / b for a, b in zip(samples["ours"], samples["plain"], strict=True))


def section(measured: dict) -> Section:
    """Return tables and targets of what ``benchmarks.engines`` measured."""
    starts, cells = measured["starts"], measured["cells"]
    lines = [
        "## A cluster of engines, against plain ipyparallel",
        "",
        f"{measured['ranks']} MPI engines each, in turns. A `%%px` cell from its call to the end "
        "of its output, ms: median (quartiles). Ours with everything on: limits, hang reports, "
        "ordered output.",
        "",
        *table(
            ["cell", "ipyranks", "ipyparallel", "turn by turn"],
            [
                [
                    name,
                    milliseconds(samples["ours"]),
                    milliseconds(samples["plain"]),
                    f"{over_plain(samples):.2f}x",
                ]
                for name, samples in cells.items()
            ],
        ),
        "Start with torch imported on all engines, s: median (smallest to largest).",
        "",
        *table(
            ["ipyranks", "ipyparallel and a cell that imports torch"],
            [[seconds(starts["ours"]), seconds(starts["plain"])]],
        ),
    ]
    targets = []
    for name, samples in cells.items():
        got = over_plain(samples)
        extra = 1e3 * (median(samples["ours"]) - median(samples["plain"]))
        targets.append(
            Target(
                f"%%px round trip against ipyparallel, {name}",
                f"<= {ROUND_TRIP}x",
                f"{got:.2f}x",
                f"{min(samples['ours']) / min(samples['plain']):.2f}x",
                got <= ROUND_TRIP,
                f"{extra:+.1f} ms a cell",
            )
        )
    start = median(starts["ours"])
    targets.append(
        Target(
            f"start of {measured['ranks']} engines, torch imported",
            f"<= {START_SECONDS} s",
            f"{start:.1f} s",
            f"{min(starts['ours']):.1f} s",
            start <= START_SECONDS,
            f"plain ipyparallel and its import take {median(starts['plain']):.1f} s here",
        )
    )
    return Section(lines, targets)
