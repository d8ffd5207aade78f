"""Makes the learners' own copies of the lessons, and never overwrites their work.

``python -m course_lib.teaching.workspace`` makes ``workspace/NN_name.ipynb`` from
``notebooks/NN_name.ipynb``: solutions blanked, outputs cleared. A copy in which nothing was
changed is brought up to date in place. Beside a copy that was changed, a newer lesson is laid
as ``NN_name.newer.ipynb``. A note in the workspace, ``.issued.json``, holds the fingerprint of
everything handed out, which is how changes are recognised. ``AGENTS.md`` beside the notebooks tells
an assistant how to be a tutor; a copy that was changed stays as it is.

It runs at each ``make lab``, so it imports nothing but the standard library. It may be
interrupted at any point: files change in one step, and the next run goes on.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from course_lib.places import ISSUED, NOTEBOOKS, WORKSPACE

from .lessons import PART, write_atomically
from .solution_marks import blanked

TUTOR = Path(__file__).with_name("tutor.md")
# Most assistants read AGENTS.md; these two read a file of their own, which may include another.
INCLUDES = {"CLAUDE.md": "@AGENTS.md\n", "GEMINI.md": "@./AGENTS.md\n"}


def for_learners(notebook: dict) -> dict:
    """Return a lesson as a learner gets it: no outputs, no solutions."""
    cells = []
    for cell in notebook["cells"]:
        cell = dict(cell)
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        if "exercise" in cell["metadata"]:
            cell["source"] = blanked(_text(cell["source"]))
        cells.append(cell)
    return notebook | {"cells": cells}


def make_workspace(lessons: Path = NOTEBOOKS, workspace: Path = WORKSPACE) -> list[str]:
    """Bring every lesson's copy in ``workspace`` up to date; return the messages to print.

    Raises:
        FileNotFoundError: if there are no lessons.
    """
    paths = sorted(lessons.glob("[0-9][0-9]*_*.ipynb"))
    if not paths:
        raise FileNotFoundError(f"there are no lessons in {lessons}: run make notebooks")
    workspace.mkdir(parents=True, exist_ok=True)
    for part in workspace.glob(f".*{PART}"):  # of a run that was killed
        part.unlink(missing_ok=True)
    issued = _read_note(workspace)
    said = []
    for path in paths:
        notebook = for_learners(json.loads(path.read_text(encoding="utf-8")))
        said += _issue(path.name, notebook, workspace, issued)
    put_texts({"AGENTS.md": TUTOR.read_text(encoding="utf-8"), **INCLUDES}, workspace)
    return said


def put_texts(texts: Mapping[str, str], folder: Path) -> None:
    """Bring text files in ``folder`` up to date, except those that a user has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    issued = _read_note(folder)
    for name, text in texts.items():
        _issue_text(name, text, folder, issued)


def _issue(name: str, notebook: dict, workspace: Path, issued: dict[str, str]) -> list[str]:
    """Bring one lesson's copy up to date, without touching a learner's work."""
    new = fingerprint(notebook)
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    for candidate in _names(name):
        path = workspace / candidate
        there = path.exists() or path.is_symlink()
        current = _fingerprint_of(path) if there else ""
        if there and current not in (new, issued.get(candidate)):
            if issued.get(candidate) == new:
                return []  # the learner's work on the newest version
            continue
        if current != new:
            write_atomically(path, text)
        if issued.get(candidate) != new:
            issued[candidate] = new
            _write_note(workspace, issued)
        if current == new:
            return []
        return [_message(name, candidate, there)]
    raise AssertionError("names do not end")


def _issue_text(name: str, text: str, workspace: Path, issued: dict[str, str]) -> None:
    """Bring a text up to date, unless a user has changed it."""
    path, new = workspace / name, hashlib.sha256(text.encode()).hexdigest()
    if path.exists() or path.is_symlink():
        try:
            current = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            return  # a folder, or a link that leads nowhere
        if current not in (new, issued.get(name)):
            return
    else:
        current = ""
    if current != new:
        write_atomically(path, text)
    if issued.get(name) != new:
        issued[name] = new
        _write_note(workspace, issued)


def _message(name: str, written: str, was_there: bool) -> str:
    if written != name:
        return f"{name} has your work in it, so it is kept; the newer version is {written}"
    return f"{name}: {'brought up to date' if was_there else 'new'}"


def _names(name: str) -> Iterator[str]:
    stem = name.removesuffix(".ipynb")
    yield name
    yield f"{stem}.newer.ipynb"
    yield from (f"{stem}.newer-{number}.ipynb" for number in itertools.count(2))


def fingerprint(notebook: dict) -> str:
    """Return the content by which learners tell notebooks apart: their cells and outputs.

    Jupyter's additions when it saves an untouched notebook do not count.
    """
    cells = [
        [cell["cell_type"], _text(cell["source"]), cell.get("outputs", [])]
        for cell in notebook["cells"]
    ]
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()


def _fingerprint_of(path: Path) -> str:
    """Return a file's fingerprint; if it is not a notebook, one that matches nothing."""
    try:
        return fingerprint(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "not a notebook"


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _read_note(workspace: Path) -> dict[str, str]:
    """Return what was handed out; without this record, every copy counts as changed."""
    try:
        note = json.loads((workspace / ISSUED).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _write_note(workspace: Path, issued: dict[str, str]) -> None:
    write_atomically(workspace / ISSUED, json.dumps(issued, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Make the workspace and report changes; return the exit status."""
    try:
        said = make_workspace()
    except OSError as error:
        print(f"workspace: {error}", file=sys.stderr)
        return 1
    if said:
        print("\n".join(f"workspace/{line}" for line in said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
