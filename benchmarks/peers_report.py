"""One table of all peers; it has no target of its own."""

from __future__ import annotations

from statistics import median

from benchmarks.report import Section, microseconds, size_name, table

_NAMES = {
    "ours": "torch_mpi4py",
    "gloo": "gloo",
    "raw": "raw mpi4py",
    "C": "C, called from Python by ctypes",
}


def section(measured: dict) -> Section:
    """Return the table of what ``benchmarks.peers`` measured."""
    names = [name for name in _NAMES if name in measured["all_reduce"][0]["samples"]]
    missing = f" The C all-reduce is missing: {measured['no_c']}." if measured["no_c"] else ""
    lines = [
        "## Peers",
        "",
        f"all_reduce of float32, {measured['ranks']} ranks, all in the same processes in turns. "
        f"Microseconds: median (quartiles). ctypes adds about a microsecond a call.{missing}",
        "",
        *table(
            ["size", *(_NAMES[name] for name in names), "ours over the fastest peer"],
            [
                [
                    size_name(row["bytes"]),
                    *(microseconds(row["samples"][name]) for name in names),
                    f"{median(row['samples']['ours']) / _fastest(row['samples']):.2f}x",
                ]
                for row in measured["all_reduce"]
            ],
        ),
    ]
    return Section(lines, [])


def _fastest(samples: dict[str, list[float]]) -> float:
    return min(median(values) for name, values in samples.items() if name != "ours")
