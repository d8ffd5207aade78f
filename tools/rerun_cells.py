"""Run each cell of a lesson once more when all have run, and name those that then fail.

Usage: ``.venv/bin/python tools/within.py -m tools.rerun_cells NN ...``. A learner who goes back
to a cell, after later ones have used its names for something else, meets the same errors. Each
cell finds the names, here and on the ranks, as they were at the end of the lesson.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat.v4 import new_code_cell

from course_lib.teaching.execution import CELL_SECONDS, client_of
from course_lib.teaching.lessons import number, read_source, sources

from .build_notebooks import ANSI

# For the notebook, and for the ranks once there are any.
HERE_AND_THERE = """
exec({code!r})
if "cluster" in globals() and cluster.is_running:
    cluster.view.execute({code!r}, silent=True)
"""
KEEP = "_finished = dict(get_ipython().user_ns)"
# Freshly started ranks have nothing to put back, and after a hang the communicator from the end is
# unusable: the library has replaced it.
PUT_BACK = """
_finished = globals().get("_finished", dict(get_ipython().user_ns))
for _name in set(get_ipython().user_ns) - set(_finished) - {"_finished", "_name"}:
    del get_ipython().user_ns[_name]
for _name in set(_finished) - {"comm", "rank", "world_size"}:
    get_ipython().user_ns[_name] = _finished[_name]
"""


def failing_again(source: Path, cell_seconds: int = CELL_SECONDS) -> list[str]:
    """Return which cells of a lesson fail when they are run again, with the errors."""
    notebook = read_source(source)
    client = client_of(notebook, source.parent.parent, cell_seconds)
    code = [(index, cell) for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    found = []
    with client.setup_kernel():
        for index, cell in code:
            client.execute_cell(cell, index)
        client.execute_cell(new_code_cell(HERE_AND_THERE.format(code=KEEP)), 0)
        for index, cell in code:
            client.execute_cell(new_code_cell(HERE_AND_THERE.format(code=PUT_BACK)), 0)
            try:
                client.execute_cell(cell, index)
            except (CellExecutionError, CellTimeoutError) as error:
                last = ANSI.sub("", str(error)).strip().splitlines()[-1]
                found.append(f"{source.name}, cell {index + 1}: {last}")
                print(found[-1], flush=True)
    return found


def main() -> int:
    """Run the chosen lessons; return 1 if any cell fails."""
    chosen = [source for source in sources() if number(source) in sys.argv[1:]]
    if not chosen:
        print(__doc__)
        return 2
    failed = False
    for source in chosen:
        found = failing_again(source)
        failed |= bool(found)
        print(f"{source.name}: cells that fail when they are run again: {len(found)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
