"""The course's cluster and a plain ipyparallel one, four engines each, side by side.

Two processes, each with an IPython of its own and the magics of its cluster: ``ours`` and
``plain``. They start one after the other, with torch imported on the engines, and then run cells
in turns, while the other waits; so no cell competes with another.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from benchmarks import report
from benchmarks.report import Section, Table, Target, by_turns, compared, few, key, within
from benchmarks.running import environment, in_turns, rounds

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
END_SECONDS = 90


class Child:
    """One of the two processes, which ends with this one."""

    def __init__(self, kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, its_own = context.Pipe()
        self._process = context.Process(target=serve, args=(kind, its_own))
        self._process.start()
        its_own.close()

    def ask(self, request: str) -> float:
        """Return how many seconds the request took; EOFError if the process has ended."""
        self._pipe.send(request)
        return self._pipe.recv()

    def close(self) -> None:
        """Let it stop its cluster and end."""
        self._pipe.close()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            raise TimeoutError(f"a cluster did not stop within {END_SECONDS} s")


def measure() -> dict:
    """Ask both processes in turns."""
    programs = str(Path(sys.executable).parent)
    os.environ.update(environment() | {"IPP_NONINTERACTIVE": "1"})
    os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    children = {kind: Child(kind) for kind in KINDS}
    starts: dict[str, list[float]] = {kind: [] for kind in children}
    cells: dict[str, dict] = {name: {kind: [] for kind in children} for name in CELLS}
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
        **report.each({"ours": "ipyranks", "plain": "ipyparallel"}, report.milliseconds),
        "ratio per turn": report.over("ours", "plain", of=by_turns),
    }
    kinds = {"ours": "ipyranks", "plain": "ipyparallel and a cell that imports torch"}
    parts = [
        f"Each cluster has {ranks} MPI engines, and the two clusters take turns. In ipyranks, "
        "limits, hang reports and ordered output are switched on. The time of a `%%px` cell runs "
        "from its call to the end of its output, in ms: median (quartiles).",
        Table(by_cell, cells),
        "Time to start a cluster with torch imported on all engines, in s: median (smallest to "
        "largest).",
        Table(report.each(kinds, few), [{"samples": starts}]),
    ]
    cause = f"plain ipyparallel and the import of torch take {median(starts['plain']):.1f} s here"
    what = f"start of {ranks} engines with torch imported"
    targets = [*map(over_plain, cells), within(what, 4.5, starts["ours"], cause, "{:.1f} s")]
    return Section("A cluster of engines compared with plain ipyparallel", parts, targets)


def over_plain(row: dict) -> Target:
    """Return how long a cell takes over one of plain ipyparallel."""
    what = f"%%px round trip compared with ipyparallel, {row['cell']}"
    cause = f"{report.extra(row, 'ours', 'plain') / 1e3:+.1f} ms a cell"
    return compared(what, "<= 1.1x", row, "ours", "plain", cause, by_turns)


# ---- the processes that are asked -------------------------------------------------------


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


def serve(kind: str, pipe: Connection) -> None:
    """Answer requests with seconds until the other end is closed; then stop."""
    from IPython.core.interactiveshell import InteractiveShell

    cluster, shell, running = KINDS[kind](), InteractiveShell.instance(), False

    def timed(call: Callable[..., Any], *arguments: Any) -> float:
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            call(*arguments)
        return time.perf_counter() - start

    try:
        while True:
            request = pipe.recv()
            if request in CELLS:
                cell = (shell.run_cell_magic, "px", "", CELLS[request])
                pipe.send(mean(timed(*cell) for _ in range(CELLS_A_SAMPLE)))
            else:
                running = request == "start"
                pipe.send(timed(cluster.start, shell) if running else timed(cluster.stop))
    except EOFError:
        pass  # the other end is closed: all has been asked
    finally:
        if running:
            cluster.stop()
