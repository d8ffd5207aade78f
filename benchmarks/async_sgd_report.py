"""Time to accuracy of two modes, seed by seed, and why they differ."""

from __future__ import annotations

from statistics import mean, median, quantiles

from benchmarks.report import Section, Target, table

WANTED = 1.5


def times(measured: dict, mode: str) -> list[float]:
    """Return the seconds to the target for every seed, infinite where it was never reached."""
    runs = measured["runs"][mode]
    return [float("inf") if run["seconds"] is None else run["seconds"] for run in runs]


def sooner(measured: dict) -> float:
    """Return the median, over the seeds, of synchronous time over asynchronous time."""
    pairs = zip(times(measured, "synchronous"), times(measured, "asynchronous"), strict=True)
    # Where asynchronous training never arrives it is no sooner, whatever the other does.
    return median(0.0 if other == float("inf") else one / other for one, other in pairs)


def section(measured: dict) -> Section:
    """Return table and target of what ``benchmarks.async_sgd`` measured."""
    rows = []
    for mode, runs in measured["runs"].items():
        low, middle, high = quantiles(times(measured, mode), n=4)
        rows.append(
            [
                mode,
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
                *(
                    f"{mean(run[name] for run in runs):.{digits}f}"
                    for name, digits in (
                        ("updates_per_s", 0),
                        ("gradients_per_s", 0),
                        ("staleness", 1),
                    )
                ),
            ]
        )
    floor = 1e3 * measured["step_seconds"]
    workers = measured["ranks"] - 1
    seeds = len(measured["runs"]["synchronous"])
    lines = [
        "## Asynchronous against synchronous SGD with a straggler",
        "",
        f"MLP on the digits, one parameter server and {workers} workers, {measured['batch']} "
        f"images a gradient. Devices are simulated: a gradient takes {floor:.0f} ms at least, on "
        f"one worker {measured['slower'] * floor:.0f} ms, the rest of it slept, so ranks do not "
        f"compete for cores. Plain SGD at {measured['rate']}, a synchronous round's mean of "
        f"{workers} at {workers} times that. Seconds to {measured['target']:.0%} test accuracy, "
        f"median (quartiles) of {seeds} seeds, the modes in turns.",
        "",
        *table(["mode", "seconds", "updates/s", "gradients/s", "mean staleness"], rows),
    ]
    got = sooner(measured)
    best = min(times(measured, "synchronous")) / min(times(measured, "asynchronous"))
    rates = [
        mean(run["gradients_per_s"] for run in measured["runs"][mode])
        for mode in ("asynchronous", "synchronous")
    ]
    cause = f"the workers delivered {rates[0] / rates[1]:.1f} times as many gradients a second"
    target = Target(
        f"asynchronous sooner than synchronous at {measured['target']:.0%}, one straggler",
        f">= {WANTED}x",
        f"{got:.2f}x",
        f"{best:.2f}x",
        got >= WANTED,
        cause,
    )
    return Section(lines, [target])
