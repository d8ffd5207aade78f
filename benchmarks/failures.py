"""What a hang and a death cost the person in front of the notebook.

An ordinary program: ``python -m benchmarks.failures FILE`` starts a cluster of four and times

- ``limit``: a cell with a limit hangs; from the limit to its error with the report, and on to
  the end of a cell with an all-reduce of all ranks,
- ``deadline``: the same where the deadline of the process group passes,
- ``death``: a rank is killed, ``cluster.shrink()``, and such a cell of the survivors,
- ``restart``: ``cluster.restart()`` after that, to fresh ranks with torch imported.

``alone`` is what the survivors need without a notebook (:mod:`benchmarks.deaths`).
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.run import command_of

RANKS = 4
HANGS = 4
DEATHS = 3
LIMIT_SECONDS = 1.0
ALONE_RANKS = 5
ALONE_SECONDS = 120
HANGING = (
    "if rank == 0:\n    dist.recv(torch.zeros(1), src=1{group})\nelse:\n    dist.barrier({all})"
)
ALL_REDUCE = (
    "total = torch.ones(1)\ndist.all_reduce(total)\nassert total.item() == dist.get_world_size()"
)
GROUP = (
    "from datetime import timedelta\n"
    f"quick = dist.new_group(timeout=timedelta(seconds={LIMIT_SECONDS}))"
)


class Notebook:
    """A shell with the course's magics, and a cluster with a process group, here or on hosts."""

    def __init__(self, hosts: str | None = None) -> None:
        from ipyranks import start_cluster
        from IPython.core.interactiveshell import InteractiveShell

        self.shell = InteractiveShell.instance()
        with quiet():
            self.cluster = start_cluster(RANKS, hosts=hosts, init_process_group=True)

    def cell(self, code: str, line: str = "") -> None:
        """Run a ``%%px`` cell."""
        with quiet():
            self.shell.run_cell_magic("px", line, code)

    def hangs(self, code: str, line: str = "") -> dict[str, float]:
        """Return the seconds from the limit to the error, and to the next all-reduce's end."""
        from ipyranks import HangError

        start = time.perf_counter()
        try:
            self.cell(code, line)
        except HangError:
            error = time.perf_counter()
        else:
            raise RuntimeError("a cell that had to hang came to its end")
        self.cell(ALL_REDUCE)
        done = time.perf_counter()
        return {"report": error - start - LIMIT_SECONDS, "next": done - start - LIMIT_SECONDS}

    def dies(self) -> float:
        """Return the seconds from a rank's death to the survivors' next all-reduce."""
        start = time.perf_counter()
        with quiet():
            self.cluster.kill(self.cluster.n - 1)
            self.cluster.shrink()
        self.cell(ALL_REDUCE)
        return time.perf_counter() - start

    def restarts(self) -> float:
        """Return the seconds to fresh ranks that have torch."""
        start = time.perf_counter()
        with quiet():
            self.cluster.restart()
        self.cell("torch.zeros(1)")
        seconds = time.perf_counter() - start
        with quiet():
            self.cluster.init_process_group()
        return seconds


def quiet() -> contextlib.redirect_stdout:
    """Keep what is printed from the benchmark's own output."""
    return contextlib.redirect_stdout(io.StringIO())


def alone() -> dict:
    """Return what ``benchmarks.deaths`` measured; mpiexec's status tells of the deaths only."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "deaths.json"
        ended = command_of("deaths", ALONE_RANKS, output, ALONE_SECONDS)
        if not output.exists():
            raise RuntimeError(f"benchmarks.deaths failed:\n{ended.stdout}{ended.stderr}")
        return json.loads(output.read_text())


def main() -> None:
    """Measure everything."""
    result: dict = {"ranks": RANKS, "limit": [], "deadline": [], "death": [], "restart": []}
    result["alone"] = alone()
    notebook = Notebook()
    try:
        for _ in range(HANGS):
            limited = HANGING.format(group="", all="")
            result["limit"].append(notebook.hangs(limited, f"--limit {LIMIT_SECONDS}"))
        for _ in range(HANGS):
            notebook.cell(GROUP)
            quick = HANGING.format(group=", group=quick", all="quick")
            result["deadline"].append(notebook.hangs(quick))
        for _ in range(DEATHS):
            result["death"].append(notebook.dies())
            result["restart"].append(notebook.restarts())
    finally:
        notebook.cluster.stop()
    Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
