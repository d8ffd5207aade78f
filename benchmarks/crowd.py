"""Measures how a room of waiting notebooks slows down another one on the same machine.

A cluster of four runs cells alone, then beside ``NOTEBOOKS`` other clusters of four, each in a cell
in which one rank misses a call and the other three wait. ``nothing`` is an empty cell, ``training``
one with some steps of DDP on two of the ranks.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from benchmarks.failures import RANKS, Notebook
from benchmarks.report import Section, Table, compared, each, key, milliseconds, over
from benchmarks.running import ROOT, environment, rounds

NOTEBOOKS = 10
CELLS = 15
CELL_SECONDS = 900  # longer than the measurement
READY = "waits"
PREPARE = """
from torch.nn.parallel import DistributedDataParallel as DDP
two = dist.new_group([0, 1])
if rank in (0, 1):
    torch.set_num_threads(1)
    model = DDP(torch.nn.Linear(256, 256), process_group=two)
"""
CODE = {
    "nothing": "pass",
    "training": """
if rank in (0, 1):
    for _ in range(40):
        model(torch.ones(64, 256)).square().sum().backward()
""",
}
GROUP = (
    "from datetime import timedelta\n"
    f"patient = dist.new_group(timeout=timedelta(seconds={CELL_SECONDS}))"
)
MISSES = "if rank:\n    dist.all_reduce(torch.ones(1), group=patient)"


def measure() -> dict:
    """Measure cells alone, and beside the waiting notebooks."""
    notebook = Notebook()
    try:
        notebook.cell(PREPARE)
        alone = cells(notebook)
        with waiting_notebooks():
            beside = cells(notebook)
    finally:
        notebook.cluster.stop()
    rows = [
        {"cell": name, "samples": {"alone": alone[name], "beside": beside[name]}} for name in CODE
    ]
    return {"ranks": RANKS, "notebooks": NOTEBOOKS, "cells": rows}


def cells(notebook: Notebook) -> dict[str, list[float]]:
    """Return the seconds that cells of each kind take, in turns."""
    found: dict[str, list[float]] = {name: [] for name in CODE}
    for turn in range(rounds(CELLS) + 1):
        for name, code in CODE.items():
            start = time.perf_counter()
            notebook.cell(code)
            if turn:
                found[name].append(time.perf_counter() - start)
    return found


@contextlib.contextmanager
def waiting_notebooks() -> Iterator[None]:
    """Have other notebooks, each with a cluster whose ranks wait until the block ends."""
    command = [sys.executable, "-m", "benchmarks.crowd"]
    with contextlib.ExitStack() as stack:
        for _ in range(NOTEBOOKS):
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert process.stdout is not None
            # One after the other: a start takes both cores.
            line = process.stdout.readline().strip()
            if line != READY:
                raise RuntimeError(f"a waiting notebook did not start: {line!r}")
        yield


def main() -> None:
    """Be a notebook whose cell waits, until standard input ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" ignores it
    notebook = Notebook()
    try:
        notebook.cell(GROUP)
        print(READY, flush=True)
        threading.Thread(target=interrupt_at_the_end_of_input, daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            notebook.cell(MISSES, f"--limit {CELL_SECONDS}")
    finally:
        notebook.cluster.stop()


def interrupt_at_the_end_of_input() -> None:
    """Interrupt the kernel as Jupyter's stop button does."""
    sys.stdin.read()
    _thread.interrupt_main()


def section(measured: dict) -> Section:
    """Return table and targets of :func:`measure`."""
    ranks, others, rows = measured["ranks"], measured["notebooks"], measured["cells"]
    variants = {"alone": "alone, ms", "beside": f"beside {others} waiting clusters, ms"}
    columns = {
        "cell": key("cell"),
        **each(variants, milliseconds),
        "beside / alone": over("beside", "alone"),
    }
    about = (
        f"A cell on {ranks} ranks, alone and beside {others} notebooks with {ranks} ranks each. "
        "The cells of those notebooks hang: one rank has missed a call, and the others wait in it. "
        "Median (quartiles)."
    )
    waiting = others * (ranks - 1)
    cause = f"{waiting} ranks wait, and each uses up to a hundredth of a core"
    targets = [
        compared(
            f"a cell beside {others} hanging notebooks, {row['cell']}",
            "<= 1.3x",
            row,
            "beside",
            "alone",
            cause,
        )
        for row in rows
    ]
    return Section("A room of waiting notebooks", [about, Table(columns, rows)], targets)


if __name__ == "__main__":
    main()
