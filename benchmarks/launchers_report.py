"""One script, two launchers, one result; how fast is each?"""

from __future__ import annotations

from statistics import median

from benchmarks.report import Section, seconds, table

_NAMES = {"mpiexec": "mpiexec, torch_mpi4py", "torchrun": "torchrun, gloo"}


def section(measured: dict) -> Section:
    """Return the table of what ``benchmarks.launchers`` measured; it has no target."""
    runs = measured["runs"]
    equal = len({run["checksum"] for each in runs.values() for run in each}) == 1
    rates = {name: [run["samples_per_s"] for run in each] for name, each in runs.items()}
    lines = [
        "## One script under mpiexec and under torchrun",
        "",
        f"`scripts/ddp.py`, {measured['ranks']} ranks, {measured['steps']} steps of 32 images a "
        f"rank, runs in turns: median (smallest to largest). Their final weights are "
        f"{'equal to the bit' if equal else '**not equal**'}. mpiexec trains "
        f"{median(rates['mpiexec']) / median(rates['torchrun']):.2f} times as many samples/s.",
        "",
        *table(
            ["launcher, backend", "samples/s", "from start to end (s)"],
            [
                [
                    _NAMES[name],
                    f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})",
                    seconds([run["whole_seconds"] for run in runs[name]]),
                ]
                for name, values in rates.items()
            ],
        ),
    ]
    return Section(lines, [])
