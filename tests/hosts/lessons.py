"""Runs whole lessons on two virtual hosts, and says what fails or is shown wrongly there.

``.venv/bin/python tools/within.py -m tests.hosts.lessons`` (as root) makes the hosts and runs all
lessons there, one after another; with ``08 11`` behind it those two, with ``--mbit 100`` over a
network of so many Mbit/s. Cells that take long are named as soon as they end, so a run that is cut
off tells a lesson that is slow from one that hangs. What is executed is the sources, so a changed
lesson can be tried before its notebook is built. The course's notebooks stay as they are: those
with the outputs of two hosts go to ``test-results/hosts``.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

import nbformat
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from course_lib.teaching import lessons
from course_lib.teaching.execution import client_of
from tests.hosts.testbed import CONTROL, ROOT, Bed
from tools.build_notebooks import problems, sanitise

KEPT = ROOT / "test-results" / "hosts"
CELL_SECONDS = 180
SLOW_SECONDS = 5
RANKS = {"13": 2}
"""Ranks of a lesson, where they are not four; half of them go to each host."""
# A row of the table of ranks ends with the host's name.
_TABLE = re.compile(r"^\d+ ranks ready.*\n.*\n((?:.*\bh\d$\n?)+)", re.MULTILINE)
_NAMELESS = re.compile(r"^.*The hostname of the client socket cannot be retrieved.*\n?", re.M)


@dataclass(frozen=True)
class Run:
    """What came of a lesson.

    Attributes:
        notebook: as executed, all cells, also those after one that failed.
        seconds: that it took.
        problems: cells that failed, or did not although they should have, and whatever else an
            executed lesson may not show.
    """

    notebook: Any
    seconds: float
    problems: list[str]


def run(lesson: str) -> Run:
    """Execute a lesson where ``COURSE_CLUSTER`` puts its ranks on two hosts; must be on h1.

    Args:
        lesson: its number, such as 07 or 10b.

    Raises:
        nbclient.exceptions.CellTimeoutError: if a cell takes longer than ``CELL_SECONDS``.
        nbclient.exceptions.DeadKernelError: if the kernel dies.
    """
    (source,) = (path for path in lessons.sources() if lessons.number(path) == lesson)
    half = RANKS.get(lesson, 4) // 2
    notebook = lessons.read_source(source)
    client = client_of(notebook, lessons.NOTEBOOKS, CELL_SECONDS)
    client.allow_errors = True
    _name_slow_cells(client, lesson)
    began = time.monotonic()
    client.execute(env=os.environ | {"COURSE_CLUSTER": f"hosts:h1:{half},h2:{half}"})
    seconds = time.monotonic() - began
    anonymous = copy.deepcopy(notebook)
    sanitise(anonymous)
    _forget_nameless_hosts(anonymous)
    found = problems(anonymous)
    tables = tables_of_ranks(notebook)
    if set(tables) != {("h1",) * half + ("h2",) * half}:
        found.append(f"the ranks were on {tables or 'no hosts'}")
    return Run(notebook, seconds, found)


def _name_slow_cells(client: Any, lesson: str) -> None:
    """Have each cell that took long named when it has ended."""
    began = [0.0]

    def start(cell: Any, cell_index: int) -> None:
        began[0] = time.monotonic()

    def end(cell: Any, cell_index: int, execute_reply: Any) -> None:
        seconds = time.monotonic() - began[0]
        if seconds > SLOW_SECONDS:
            last = cell.source.splitlines()[-1]
            print(f"  lesson {lesson}, cell {cell_index + 1}: {seconds:.1f} s: {last}", flush=True)

    client.on_cell_execute, client.on_cell_executed = start, end


def _forget_nameless_hosts(notebook: Any) -> None:
    """Take out torch's warning that an address has no name, which these hosts' have not."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stderr":
                output.text = _NAMELESS.sub("", output.text)
        if "outputs" in cell:
            cell.outputs = [one for one in cell.outputs if one.get("text") != ""]


def tables_of_ranks(notebook: Any) -> list[tuple[str, ...]]:
    """Return the hosts in each table of ranks that the notebook shows, in the order of ranks."""
    texts = (out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", ()))
    tables = (match[1] for text in texts for match in _TABLE.finditer(text))
    return [tuple(line.split()[-1] for line in table.splitlines()) for table in tables]


def main() -> int:
    """Run lessons on two hosts; return 1 if one has a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.lessons", description=__doc__)
    every = [lessons.number(source) for source in lessons.sources()]
    parser.add_argument("lessons", nargs="*", metavar="NN", help="their numbers; all by default")
    parser.add_argument("--mbit", type=float, metavar="N", help="limit both hosts to N Mbit/s")
    given = parser.parse_args()
    chosen = given.lessons or every
    if unknown := [lesson for lesson in chosen if lesson not in every]:
        parser.error(f"there is no lesson {', '.join(unknown)}")
    if CONTROL not in os.environ:
        with Bed() as bed:
            for host in ("h1", "h2"):
                bed.limit(host, given.mbit)
            running = bed.popen("h1", [sys.executable, "-m", "tests.hosts.lessons", *chosen])
            try:
                return running.wait()
            finally:
                running.kill()
    KEPT.mkdir(parents=True, exist_ok=True)
    failed = False
    for lesson in chosen:
        try:
            done = run(lesson)
        except (CellTimeoutError, DeadKernelError) as error:
            print(f"lesson {lesson}: not to its end\n  {error}", flush=True)
            failed = True
            continue
        nbformat.write(done.notebook, KEPT / f"{lesson}.ipynb")
        print(f"lesson {lesson}: {done.seconds:.0f} s, {len(done.problems)} problems", flush=True)
        for problem in done.problems:
            print(f"  {problem}", flush=True)
        failed |= bool(done.problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
