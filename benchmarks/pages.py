"""What pages outside of the results show of them is what was measured, with date and machine."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.report import MIB, Target, size_name, table, target_table

PAGE = Path("docs/benchmark.md")  # all rows
FRONT = Path("README.md")  # five figures
BEGIN = "<!-- written by make bench, from here -->"
END = "<!-- to here -->"
SIZES = (4, 1024, 64 * 1024, MIB, 16 * MIB, 64 * MIB)


def table_of(result: dict, targets: list[Target]) -> str:
    """Return what stands between the marks of ``PAGE``."""
    run = result["runs"][0]
    about = (
        f"Measured on {result['date']} with `make bench`: {result['machine']}, {run['library']}, "
        f"torch {run['torch']}, one thread per rank, load average {result['load']} at the start. "
        "Medians; spread, plots and all samples are in [benchmarks/results]"
        "(../benchmarks/results/results.md)."
    )
    return "\n".join([about, "", *_all_reduces(result["runs"]), *target_table(targets)])


def _all_reduces(runs: list[dict]) -> list[str]:
    """Return some sizes of the all_reduce sweep as a table, all numbers of ranks side by side."""
    header = ["all_reduce, float32"]
    for run in runs:
        header += [f"{run['ranks']} ranks: ours (us)", "gloo (us)", "gloo / ours"]
    rows = []
    for together in zip(*(run["all_reduce"] for run in runs), strict=True):
        if together[0]["bytes"] not in SIZES:
            continue
        row = [size_name(together[0]["bytes"])]
        for each in together:
            ours, gloo = (1e6 * median(each["samples"][name]) for name in ("ours", "gloo"))
            row += [f"{ours:,.0f}", f"{gloo:,.0f}", f"{gloo / ours:.1f}x"]
        rows.append(row)
    return table(header, rows)


def renew(path: Path, text: str) -> bool:
    """Put ``text`` between the marks of the file; return whether it has them."""
    before = path.read_text(encoding="utf-8")
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        return False
    path.write_text(f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}", encoding="utf-8")
    return True
