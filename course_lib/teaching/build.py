"""Every notebook follows from its source, by one command that hides nothing.

``python -m course_lib.teaching.build`` reads ``notebooks/lesson_NN/NN_name.py``, executes those
whose source changed since, and writes ``notebooks/NN_name.ipynb``. Where the source is the same,
the notebook stays as it is, to the byte.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import lessons
from .execute import ANSI, execute, problems, sanitise
from .files import write_atomically
from .lint import lint

__all__ = ["LessonError", "build", "in_step", "main", "target"]


class LessonError(Exception):
    """A lesson cannot be built; the message says what is wrong in which cell."""


def target(source: Path) -> Path:
    """Return where the notebook of a source stands."""
    return source.parent.parent / f"{source.stem}.ipynb"


def in_step(source: Path) -> bool:
    """Tell whether the notebook was made from the source as it is now."""
    import nbformat

    path = target(source)
    if not path.is_file():
        return False
    notebook = nbformat.read(path, as_version=4)
    return notebook.metadata.get("course", {}).get("sha256") == lessons.fingerprint(source)


def build(source: Path) -> Path:
    """Execute one lesson and write its notebook.

    Raises:
        LessonError: if the source breaks a rule, a cell fails, or an output cannot be shown to
            others. The notebook on disk is then left as it was.
    """
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    wrong = [p for p in lint(source) if not p.warning]
    if wrong:
        raise LessonError("\n".join(map(str, wrong)))
    notebook = lessons.read_source(source)
    try:
        execute(notebook, source.parent.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise LessonError(f"{source.name}: {ANSI.sub('', str(error)).strip()}") from None
    sanitise(notebook)
    notebook.metadata["language_info"].pop("version", None)  # of the Python that built it
    found = problems(notebook)
    if found:
        raise LessonError("\n".join(f"{source.name}: {problem}" for problem in found))
    nbformat.validate(notebook)
    path = target(source)
    write_atomically(path, nbformat.writes(notebook).rstrip("\n") + "\n")
    return path


def main(arguments: list[str] | None = None) -> int:
    """Build what changed; return 1 if a lesson could not be built or is out of step."""
    parser = argparse.ArgumentParser(prog="make notebooks", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also where nothing changed")
    parser.add_argument("--only", nargs="+", default=[], metavar="NN", help="these lessons alone")
    parser.add_argument("--check", action="store_true", help="build nothing; say what is to do")
    given = parser.parse_args(arguments)
    chosen = [s for s in lessons.sources() if not given.only or s.name[:2] in given.only]
    if not chosen:
        parser.error(f"there is no such lesson in {lessons.NOTEBOOKS.relative_to(lessons.ROOT)}")
    failed = False
    for source in chosen:
        if in_step(source) and not given.all:
            print(f"{target(source).name}: unchanged")
            continue
        if given.check:
            print(f"{target(source).name}: does not fit its source; run make notebooks")
            failed = True
            continue
        failed |= not _built(source)
    return int(failed)


def _built(source: Path) -> bool:
    for problem in lint(source):
        if problem.warning:
            print(problem)
    began = time.monotonic()
    try:
        path = build(source)
    except LessonError as error:
        print(error, file=sys.stderr)
        return False
    print(f"{path.name}: executed in {time.monotonic() - began:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
