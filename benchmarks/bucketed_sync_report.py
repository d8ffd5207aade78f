"""The lesson's sync over DDP, turn by turn, for each model."""

from __future__ import annotations

from statistics import median

from benchmarks.report import Section, Target, milliseconds, table

WANTED = 1.05


def over_ddp(row: dict) -> float:
    """Return the median, over the turns, of the lesson's step over DDP's of the same turn."""
    samples = row["samples"]
    return median(a / b for a, b in zip(samples["sync"], samples["ddp"], strict=True))


def section(measured: dict) -> Section:
    """Return table and targets of what ``benchmarks.bucketed_sync`` measured."""
    lines = [
        "## The lesson's bucketed, overlapped sync against DDP",
        "",
        f"Both on this backend, {measured['ranks']} ranks, {measured['batch']} images a rank and "
        "step; a step is zero_grad, forward, backward with communication, update. ms: median "
        "(quartiles).",
        "",
        *table(
            ["model (parameters, tensors, buckets)", "BucketedGradientSync", "DDP", "turn by turn"],
            [
                [
                    f"{row['model']} ({row['parameters']:,}, {row['tensors']}, {row['buckets']})",
                    milliseconds(row["samples"]["sync"]),
                    milliseconds(row["samples"]["ddp"]),
                    f"{over_ddp(row):.2f}x",
                ]
                for row in measured["models"]
            ],
        ),
    ]
    targets = []
    for row in measured["models"]:
        got = over_ddp(row)
        fastest = min(row["samples"]["sync"]) / min(row["samples"]["ddp"])
        extra = 1e6 * (median(row["samples"]["sync"]) - median(row["samples"]["ddp"]))
        cause = f"{extra:.0f} us a step for {row['tensors']} hooks in Python, which DDP has in C++"
        targets.append(
            Target(
                f"lesson's bucketed sync against DDP, {row['model']}, {measured['ranks']} ranks",
                f"<= {WANTED}x",
                f"{got:.2f}x",
                f"{fastest:.2f}x",
                got <= WANTED,
                cause,
            )
        )
    return Section(lines, targets)
