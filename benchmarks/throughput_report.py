"""The one idea: samples/s of two ranks over those of one, and what the machine would allow."""

from __future__ import annotations

from statistics import median, quantiles

from benchmarks.report import Section, Target, table

WANTED = 1.75
_NAMES = {
    "one": "one process, the other core idle",
    "apart": "two processes without a word to each other",
    "sync": "two ranks, sync_gradients",
    "ddp": "two ranks, DDP",
}


def rate(samples: list[float]) -> str:
    """Return median and quartiles in samples/s."""
    low, middle, high = quantiles(samples, n=4)
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def speedup(measured: dict, variant: str) -> float:
    """Return the median, over the turns, of a variant's throughput over that of one process.

    Both of a turn were measured within two seconds, so slow drifts of the machine cancel.
    """
    samples = measured["samples"]
    return median(a / b for a, b in zip(samples[variant], samples["one"], strict=True))


def section(measured: dict) -> Section:
    """Return table and targets of what ``benchmarks.throughput`` measured."""
    samples = measured["samples"]
    lines = [
        "## Two ranks against one process",
        "",
        f"LeNet on {measured['data']} (28 x 28), {measured['batch']} images a step on every rank, "
        "so twice as many a step on two; one thread each; the whole loop: choose a batch, forward, "
        "backward, synchronise, update. Variants take turns. Samples/s over all ranks.",
        "",
        *table(
            ["variant", "samples/s: median (quartiles)", "over one process, turn by turn"],
            [
                [name, rate(samples[variant]), f"{speedup(measured, variant):.2f}x"]
                for variant, name in _NAMES.items()
            ],
        ),
    ]
    ceiling = speedup(measured, "apart")
    targets = []
    for variant, name in (("sync", "sync_gradients"), ("ddp", "DDP")):
        got = speedup(measured, variant)
        fastest = max(samples[variant]) / max(samples["one"])
        cause = (
            f"two processes that never speak reach {ceiling:.2f}x here, and {name} gets "
            f"{got / ceiling:.0%} of that"
        )
        targets.append(
            Target(
                f"LeNet, two ranks against one process, {name}",
                f">= {WANTED}x",
                f"{got:.2f}x",
                f"{fastest:.2f}x",
                got >= WANTED,
                cause,
            )
        )
    return Section(lines, targets)
