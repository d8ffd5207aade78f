"""Executes lessons as if a learner ran all cells, and says how long each took.

So it shows whether this machine can run the whole course, and makes notebooks with this machine's
measurements. It executes the lessons with their worked solutions, each in its own kernel, with its
own four ranks.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from course_lib.teaching import lessons
from course_lib.teaching.execution import CELL_SECONDS, execute

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def main(arguments: list[str] | None = None) -> int:
    """Execute lessons; return 1 if a cell of any fails."""
    parser = argparse.ArgumentParser(prog="rank-by-rank run", description=__doc__)
    parser.add_argument("lessons", nargs="+", metavar="LESSON", help='such as 03 or 10b, or "all"')
    parser.add_argument("--out", type=Path, help="folder for the executed notebooks")
    given = parser.parse_args(arguments)
    paths = {lessons.number(path): path for path in lessons.notebooks()}
    asked = list(paths) if given.lessons == ["all"] else given.lessons
    if unknown := [number for number in asked if number not in paths]:
        parser.error(f"there is no lesson {', '.join(unknown)}; the lessons are {', '.join(paths)}")
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    failed = [number for number in asked if not _runs(paths[number], given.out)]
    return int(bool(failed))


def _runs(path: Path, out: Path | None) -> bool:
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    began = time.monotonic()
    failure = ""
    try:
        execute(notebook, out or Path.cwd(), CELL_SECONDS)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        failure = _ANSI.sub("", str(error)).strip()
    took = time.monotonic() - began
    if out:
        lessons.write_atomically(out / path.name, nbformat.writes(notebook) + "\n")
    if failure:
        print(f"{path.stem}: failed after {took:.0f} s\n{failure}", file=sys.stderr, flush=True)
        return False
    print(f"{path.stem}: executed in {took:.0f} s", flush=True)
    return True
