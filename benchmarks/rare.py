"""What takes many minutes is measured when asked for, and its last result is kept.

An ordinary program: ``python -m benchmarks.rare FILE`` executes every lesson, one after the
other, and calls ``make lab`` in a fresh clone. ``make bench ARGS=--all`` runs it and keeps what it
found in benchmarks/results/rare.json, which later reports show with its date.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path

import nbformat
import requests

from benchmarks.run import ROOT
from tests.lab_server import copy_checkout, make_lab, scratch
from tools.build_notebooks import execute, problems

FRESH_SECONDS = 1200


def lessons() -> dict[str, float]:
    """Return the seconds that each lesson takes from its first cell to its last.

    Raises:
        RuntimeError: if a lesson did not run as it should.
    """
    seconds = {}
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]*_*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        start = time.monotonic()
        execute(notebook)
        seconds[path.stem] = time.monotonic() - start
        if found := problems(notebook):
            raise RuntimeError(f"{path.stem}: {found}")
        print(f"{path.stem}: {seconds[path.stem]:.1f} s", file=sys.stderr, flush=True)
    return seconds


def fresh_clone() -> float:
    """Return the seconds from ``make lab`` in a clone to the page, installing included."""
    with scratch() as folder:
        copy_checkout(folder)
        start = time.monotonic()
        with make_lab(folder, {}, seconds=FRESH_SECONDS) as lab:
            requests.get(lab.url, timeout=60)
            return time.monotonic() - start


def main() -> None:
    """Measure both."""
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "lessons": lessons(),
        "fresh": fresh_clone(),
    }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
