"""Samples/s of two ranks over those of one, and what the machine would allow."""

from __future__ import annotations

from statistics import median, quantiles

from benchmarks.report import Section, Target, table

WANTED = 0.95  # of what two processes reach that never speak
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

    Args:
        measured: one batch size's ``samples``.

    Both of a turn were measured within two seconds, so slow drifts of the machine cancel.
    """
    samples = measured["samples"]
    return median(a / b for a, b in zip(samples[variant], samples["one"], strict=True))


def section(measured: dict) -> Section:
    """Return table and targets of what ``benchmarks.throughput`` measured.

    The target is held against every batch: the smaller ones speak more often for the same work.
    """
    batches = measured["batches"]
    lines = [
        "## Two ranks against one process",
        "",
        f"LeNet on {measured['data']} (28 x 28), as many images a step on every rank, so twice as "
        "many on two; one thread each; the whole loop: choose a batch, forward, backward, "
        "synchronise, update. Variants take turns. Samples/s over all ranks.",
        "",
        *table(
            ["images a step", "variant", "samples/s: median (quartiles)", "over one, turn by turn"],
            [
                [
                    str(each["batch"]),
                    name,
                    rate(each["samples"][variant]),
                    f"{speedup(each, variant):.2f}x",
                ]
                for each in batches
                for variant, name in _NAMES.items()
            ],
        ),
    ]
    return Section(lines, [_target(each, way) for each in batches for way in ("sync", "ddp")])


def step_milliseconds(measured: dict, variant: str) -> float:
    """Return the median time of a step of two ranks, which together take two batches."""
    return 1e3 * 2 * measured["batch"] / median(measured["samples"][variant])


def _target(measured: dict, variant: str) -> Target:
    name = {"sync": "sync_gradients", "ddp": "DDP"}[variant]
    ceiling, reached = speedup(measured, "apart"), speedup(measured, variant)
    got = reached / ceiling
    fastest = max(measured["samples"][variant]) / max(measured["samples"]["apart"])
    silent, step = step_milliseconds(measured, "apart"), step_milliseconds(measured, variant)
    cause = (
        f"two ranks reach {reached:.2f}x of one process here, two that never speak {ceiling:.2f}x: "
        f"to synchronise, and to wait for the later rank, takes {step - silent:.1f} ms of a step "
        f"of {step:.1f} ms"
    )
    return Target(
        f"LeNet, {measured['batch']} images a step, two ranks against two silent ones, {name}",
        f">= {WANTED}x",
        f"{got:.2f}x",
        f"{fastest:.2f}x",
        got >= WANTED,
        cause,
    )
