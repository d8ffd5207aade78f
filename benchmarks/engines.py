"""The course's cluster and a plain ipyparallel one, four engines each, side by side.

Two programs, each with an IPython of its own and the magics of its cluster: ``ours`` and ``plain``.
They start one after the other, with torch imported on the engines, and then run cells in turns,
while the other waits; so no cell competes with another.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from benchmarks.report import (
    Section,
    Table,
    Target,
    by_turns,
    each,
    few,
    key,
    milliseconds,
    ratio,
    target,
)
from benchmarks.running import ROOT, environment, in_turns, rounds

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

RANKS = 4
STARTS = 2
TURNS = 15
CELLS_A_SAMPLE = 10
CELLS = {
    "nothing": "pass",
    "a line from each rank": "print('hello')",
    "an import and 1,000 numbers": "import numpy\nnumbers = numpy.arange(1000)",
}
IMPORT = "import torch, torch.distributed"
ANSWER_SECONDS = 90


class Child:
    """One of the two programs, asked through its standard input."""

    def __init__(self, kind: str) -> None:
        variables = environment() | {"IPP_NONINTERACTIVE": "1"}
        programs = str(Path(sys.executable).parent)
        variables["PATH"] = os.pathsep.join([programs, variables.get("PATH", os.defpath)])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engines", kind],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        self.requests, self.answers = self.process.stdin, self.process.stdout

    def ask(self, request: str) -> float:
        """Return the seconds that the answer names."""
        self.requests.write(request + "\n")
        self.requests.flush()
        line = self.answers.readline()
        if not line:
            raise RuntimeError(f"the program ended at the request {request!r}")
        return json.loads(line)

    def close(self) -> None:
        """Let it stop its cluster and end."""
        self.requests.close()
        try:
            self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def measure() -> dict:
    """Ask both programs in turns."""
    children = {kind: Child(kind) for kind in KINDS}
    starts: dict[str, list[float]] = {kind: [] for kind in children}
    cells: dict[str, dict[str, list[float]]] = {
        name: {kind: [] for kind in children} for name in CELLS
    }
    try:
        for turn in range(STARTS):
            for kind, child in children.items():
                if turn:
                    child.ask("stop")
                starts[kind].append(child.ask("start"))
        for name in CELLS:
            for kind in in_turns(list(children), rounds(TURNS)):
                cells[name][kind].append(children[kind].ask(name))
    finally:
        for child in children.values():
            child.close()
    return {"ranks": RANKS, "starts": starts, "cells": cells}


def section(measured: dict) -> Section:
    """Return tables and targets of :func:`measure`."""
    starts, ranks = measured["starts"], measured["ranks"]
    cells = [{"cell": name, "samples": samples} for name, samples in measured["cells"].items()]
    by_cell = {
        "cell": key("cell"),
        **each({"ours": "ipyranks", "plain": "ipyparallel"}, milliseconds),
        "turn by turn": lambda row: f"{by_turns(row, 'ours', 'plain'):.2f}x",
    }
    kinds = {"ours": "ipyranks", "plain": "ipyparallel and a cell that imports torch"}
    parts = [
        f"{ranks} MPI engines each, in turns. A `%%px` cell from its call to the end of its "
        "output, ms: median (quartiles). Ours with everything on: limits, hang reports, ordered "
        "output.",
        Table(by_cell, cells),
        "Start with torch imported on all engines, s: median (smallest to largest).",
        Table(each(kinds, few), [{"samples": starts}]),
    ]
    plain = median(starts["plain"])
    started = target(
        f"start of {ranks} engines, torch imported",
        "<= 4.5 s",
        median(starts["ours"]),
        min(starts["ours"]),
        "{:.1f} s",
        f"plain ipyparallel and its import take {plain:.1f} s here",
    )
    targets = [*map(cell_target, cells), started]
    return Section("A cluster of engines, against plain ipyparallel", parts, targets)


def cell_target(row: dict) -> Target:
    """Return how long a cell takes over one of plain ipyparallel."""
    ours, plain = (median(row["samples"][kind]) for kind in ("ours", "plain"))
    return target(
        f"%%px round trip against ipyparallel, {row['cell']}",
        "<= 1.1x",
        by_turns(row, "ours", "plain"),
        ratio(row, "ours", "plain", min),
        cause=f"{1e3 * (ours - plain):+.1f} ms a cell",
    )


# ---- the programs that are asked -------------------------------------------------------


class Ours:
    """The course's cluster; its engines have torch imported when it is ready."""

    def start(self, shell: InteractiveShell) -> None:
        from ipyranks import start_cluster

        self.cluster = start_cluster(RANKS)
        shell.run_cell_magic("px", "", IMPORT)

    def stop(self) -> None:
        self.cluster.stop()


class Plain:
    """ipyparallel's own cluster of MPI engines, and torch imported on them by a cell."""

    def start(self, shell: InteractiveShell) -> None:
        import ipyparallel

        self.cluster = ipyparallel.Cluster(engines="mpi", n=RANKS, log_level=40)
        self.client = self.cluster.start_and_connect_sync(activate=True)
        shell.run_cell_magic("px", "", IMPORT)

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()


KINDS: dict[str, type[Ours | Plain]] = {"ours": Ours, "plain": Plain}


def serve(kind: Ours | Plain) -> None:
    """Answer requests from standard input with seconds; at its end, stop."""
    from IPython.core.interactiveshell import InteractiveShell

    answers = sys.stdout
    shell = InteractiveShell.instance()
    running = False

    def timed(call: Callable[..., Any], *arguments: Any) -> float:
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            call(*arguments)
        return time.perf_counter() - start

    try:
        for line in sys.stdin:
            request = line.strip()
            if request in CELLS:
                cell = (shell.run_cell_magic, "px", "", CELLS[request])
                answer = mean(timed(*cell) for _ in range(CELLS_A_SAMPLE))
            else:
                running = request == "start"
                answer = timed(kind.start, shell) if running else timed(kind.stop)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        if running:
            kind.stop()


if __name__ == "__main__":
    serve(KINDS[sys.argv[1]]())
