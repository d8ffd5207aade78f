"""What an all_reduce costs over raw MPI where no call is warm."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarks.report import MIB, Section, Target, microseconds, ratio, size_name, table

TURN_MICROSECONDS = 15
STEP_MICROSECONDS = 100
LARGE_RATIO = 1.15


def section(measured: dict) -> Section:
    """Return table and targets of what ``benchmarks.cold_calls`` measured."""
    rows = [("taking turns", row) for row in measured["turns"]]
    rows += [(f"after a LeNet step, {measured['images']} images", row) for row in measured["step"]]
    lines = [
        "## Single calls",
        "",
        f"{measured['ranks']} ranks. all_reduce and raw MPI.Allreduce on the same buffer, one call "
        "of each in turn, none of them repeated. Microseconds: median (quartiles).",
        "",
        *table(
            ["when", "size", "torch_mpi4py", "raw MPI", "difference of medians"],
            [
                [
                    when,
                    size_name(row["bytes"]),
                    microseconds(row["samples"]["ours"]),
                    microseconds(row["samples"]["raw"]),
                    f"{extra(row, median):.0f}",
                ]
                for when, row in rows
            ],
        ),
    ]
    return Section(
        lines,
        [_target(row, False) for row in measured["turns"]]
        + [_target(row, True) for row in measured["step"]],
    )


def extra(row: dict, of: Callable[[list[float]], float]) -> float:
    """Return the microseconds that ours takes more than raw MPI."""
    return 1e6 * (of(row["samples"]["ours"]) - of(row["samples"]["raw"]))


def _target(row: dict, in_step: bool) -> Target:
    where = "in the middle of a training step" if in_step else "taking turns, no warm calls"
    what = f"all_reduce over raw MPI, {size_name(row['bytes'])}, {where}"
    cause = "Python's own code and objects have left the caches"
    if row["bytes"] >= MIB:
        got, fastest = ratio(row, "ours", "raw"), ratio(row, "ours", "raw", min)
        met = got <= LARGE_RATIO
        return Target(what, f"<= {LARGE_RATIO}x", f"{got:.2f}x", f"{fastest:.2f}x", met, cause)
    wanted = STEP_MICROSECONDS if in_step else TURN_MICROSECONDS
    got, fastest = extra(row, median), extra(row, min)
    met = got <= wanted
    return Target(what, f"<= +{wanted} us", f"+{got:.1f} us", f"+{fastest:.1f} us", met, cause)
