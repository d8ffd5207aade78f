"""Keeps which exercises a learner has solved and tried, and shows it by :func:`progress`.

The record is ``workspace/.progress``, with an empty file for each thing that happened, such as
``01.shift.tried``. An empty file cannot be half written, damaged, or overwritten by a second
notebook, and the file of an exercise that was removed does no harm. Cells that run outside the
workspace, for example while a lesson is built, belong to no learner: their record ends with the
kernel.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import NamedTuple

from . import class_record
from .lessons import exercise_ids, sources
from .workspace import WORKSPACE

# As the kernel starts in the notebook's folder; a cell may go elsewhere later.
_FOLDER = WORKSPACE / ".progress" if Path.cwd().is_relative_to(WORKSPACE) else None
_STATES = {"right": "solved"} | dict.fromkeys(("wrong", "raised", "freed", "out of time"), "tried")
_HEADERS = ("lesson", "solved", "tried, not yet right", "skipped")

_of_this_kernel: set[str] = set()

if _FOLDER is not None:
    class_record.begin()


def note(id: str, kind: str, mistake: str = "") -> None:
    """Record what a check of exercise ``id`` found, by the kind of its result.

    The name of the mistake is for a teacher, where one is told (:mod:`.class_record`).

    A check works without a record, too: if none can be written, a line says why.
    """
    if kind not in _STATES:  # nothing was tried yet, or the check itself failed
        return
    class_record.note(_STATES[kind], id, mistake)
    name = f"{id}.{_STATES[kind]}"
    _of_this_kernel.add(name)
    if _FOLDER is None:
        return
    try:
        _FOLDER.mkdir(exist_ok=True)
        (_FOLDER / name).touch()
    except OSError as error:
        print(f"(progress() will forget this when the kernel ends: {error})")


def asked(id: str, what: str) -> None:
    """Tell a teacher that a ``"hint"`` or the ``"solution"`` of exercise ``id`` was shown."""
    class_record.note(what, id)


class ProgressTable(NamedTuple):
    """For each lesson its name, how many exercises are solved, which are tried and skipped."""

    summary: str
    rows: list[tuple[str, str, str, str]]

    def __repr__(self) -> str:
        table = [_HEADERS, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        return "\n".join([self.summary, "", *lines])

    def _repr_html_(self) -> str:
        """Return a table in which a screen reader can name the lesson and column of a cell."""
        head = "".join(f'<th scope="col">{title}</th>' for title in _HEADERS)
        rows = ""
        for lesson, *cells in self.rows:
            texts = "".join(f"<td>{html.escape(text)}</td>" for text in cells)
            rows += f'<tr><th scope="row">{html.escape(lesson)}</th>{texts}</tr>'
        caption = f"<caption>{self.summary}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def progress() -> ProgressTable:
    """Return a table of all lessons: exercises solved, tried and not yet right, and skipped.

    Solved stays solved. Skipped is what you have not tried, although you did a later exercise of
    the same lesson.
    """
    known = set(_of_this_kernel)
    if _FOLDER is not None and _FOLDER.is_dir():
        known |= {path.name for path in _FOLDER.iterdir()}
    rows, solved, total = [], 0, 0
    for source in sources():
        ids = exercise_ids(source)
        right = [id for id in ids if f"{id}.solved" in known]
        tried = [id for id in ids if f"{id}.tried" in known and id not in right]
        last = max((ids.index(id) for id in right + tried), default=0)
        skipped = [id for id in ids[:last] if id not in right + tried]
        count = f"{len(right)} of {len(ids)}"
        rows.append((source.stem.replace("_", " "), count, _names(tried), _names(skipped)))
        solved, total = solved + len(right), total + len(ids)
    return ProgressTable(f"{solved} of {total} exercises solved", rows)


def _names(ids: list[str]) -> str:
    return ", ".join(id.partition(".")[2] for id in ids) or "none"
