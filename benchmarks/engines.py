"""The course's cluster and a plain ipyparallel one, four engines each, side by side.

An ordinary program: ``python -m benchmarks.engines FILE``. It starts two programs, each with an
IPython of its own and the magics of its cluster: ``ours`` and ``plain``. They start one after the
other, with torch imported on the engines, and then run cells in turns, while the other waits; so
no cell competes with another.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import IO, TYPE_CHECKING

from torch_mpi4py import launch

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

ROOT = Path(__file__).resolve().parent.parent
RANKS = 4
STARTS = 2
ROUNDS = 15
CELLS_A_SAMPLE = 10
CELLS = {
    "nothing": "pass",
    "a line from each rank": "print('hello')",
    "an import and 1,000 numbers": "import numpy\nnumbers = numpy.arange(1000)",
}
IMPORT = "import torch, torch.distributed"
ANSWER_SECONDS = 90

Answer = dict[str, list[float]]


class Child:
    """One of the two programs, asked through its standard input."""

    def __init__(self, kind: str) -> None:
        environment = launch.environment() | {"IPP_NONINTERACTIVE": "1"}
        programs = str(Path(sys.executable).parent)
        environment["PATH"] = os.pathsep.join([programs, environment.get("PATH", os.defpath)])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engines", "--serve", kind],
            cwd=ROOT,
            env=environment,
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


def main() -> None:
    """Ask both programs in turns, and write what they measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", choices=("ours", "plain"))
    parser.add_argument("output", type=Path, nargs="?")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Ours() if arguments.serve == "ours" else Plain())
        return
    children = {kind: Child(kind) for kind in ("ours", "plain")}
    starts: Answer = {kind: [] for kind in children}
    cells: dict[str, Answer] = {name: {kind: [] for kind in children} for name in CELLS}
    try:
        for turn in range(STARTS):
            for kind, child in children.items():
                if turn:
                    child.ask("stop")
                starts[kind].append(child.ask("start"))
        for name in CELLS:
            for turn in range(ROUNDS):
                order = list(children) if turn % 2 else list(reversed(children))
                for kind in order:
                    cells[name][kind].append(children[kind].ask(name))
    finally:
        for child in children.values():
            child.close()
    result = {"ranks": RANKS, "starts": starts, "cells": cells}
    arguments.output.write_text(json.dumps(result))


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


def serve(kind: Ours | Plain) -> None:
    """Answer requests from standard input with seconds; at its end, stop."""
    from IPython.core.interactiveshell import InteractiveShell

    answers = sys.stdout
    shell = InteractiveShell.instance()
    running = False

    def timed(call: Callable[[], None]) -> float:
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            call()
        return time.perf_counter() - start

    def cell(name: str) -> float:
        code = CELLS[name]
        one = lambda: shell.run_cell_magic("px", "", code)  # noqa: E731
        return mean(timed(one) for _ in range(CELLS_A_SAMPLE))

    try:
        for line in sys.stdin:
            request = line.strip()
            if request == "start":
                answer = timed(lambda: kind.start(shell))
                running = True
            elif request == "stop":
                answer = timed(kind.stop)
                running = False
            else:
                answer = cell(request)
            _say(answers, answer)
    finally:
        if running:
            kind.stop()


def _say(answers: IO[str], value: float) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
