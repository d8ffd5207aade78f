"""A table with the device's name, or a line that there is none."""

from __future__ import annotations

from statistics import median

from benchmarks.report import Section, microseconds, size_name, table


def section(measured: dict) -> Section:
    """Return the tables of what ``benchmarks.gpu`` measured; they have no targets."""
    lines = ["## GPU", ""]
    if measured["device"] is None:
        return Section(
            [*lines, "There is no GPU on this machine, so nothing was measured.", ""], []
        )
    lines += [
        f"{measured['device']}; all_reduce of float32 on it, all ranks on this one GPU. "
        "Microseconds: median (quartiles).",
        "",
    ]
    for run in measured["runs"]:
        names = {"ours": f"torch_mpi4py, {run['ranks']} ranks", "nccl": "NCCL, one rank"}
        shown = [name for name in names if name in run["all_reduce"][0]["samples"]]
        lines += table(
            [
                "size",
                *(names[name] for name in shown),
                "copy to pinned host memory and back",
                "of ours",
            ],
            [
                [
                    size_name(row["bytes"]),
                    *(microseconds(row["samples"][name]) for name in shown),
                    microseconds(row["samples"]["copy"]),
                    f"{median(row['samples']['copy']) / median(row['samples']['ours']):.0%}",
                ]
                for row in run["all_reduce"]
            ],
        )
    return Section(lines, [])
