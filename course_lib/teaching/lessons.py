"""Where the lessons are, and how their files are read and written.

``notebooks/lesson_NN/NN_name.py`` is a jupytext percent script. Cell ids follow from what the cells
say, so a rebuild of an unchanged source gives the same notebook, and a change of one cell
changes no other.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from course_lib.places import NOTEBOOKS

PART = ".part"  # the suffix of files that are being written

_EXERCISE = re.compile(r'^# %%.*\bexercise="([^"]+)"', re.MULTILINE)

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def sources() -> list[Path]:
    """Return the sources of all lessons, in order."""
    return sorted(NOTEBOOKS.glob("lesson_*/[0-9][0-9]*_*.py"))


def notebooks() -> list[Path]:
    """Return the executed notebooks of all lessons, in order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]*_*.ipynb"))


def number(path: Path) -> str:
    """Return the number in the name of a lesson's source or notebook, such as 07 or 10b."""
    return path.name.partition("_")[0]


def exercise_ids(source: Path) -> list[str]:
    """Return the ids of the exercises in a lesson's source, in its order."""
    return _EXERCISE.findall(source.read_text(encoding="utf-8"))


def chosen(text: str) -> list[str]:
    """Return the lessons named by ``"01-03,10b"``, in order.

    Raises:
        ValueError: if there is no such lesson.
    """
    known = [number(path) for path in sources()]
    found: set[str] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if first not in known or last not in known or known.index(first) > known.index(last):
            raise ValueError(f"{part!r}: give lessons like 03 or 01-05; the lessons are {known}")
        found.update(known[known.index(first) : known.index(last) + 1])
    return [one for one in known if one in found]


def fingerprint(path: Path) -> str:
    """Return the fingerprint of this version of a source."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_source(path: Path) -> Any:
    """Return the notebook of a source, not executed."""
    import jupytext

    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata = type(notebook.metadata)(
        kernelspec=KERNELSPEC,
        language_info={"name": "python"},
        course={"source": f"{path.parent.name}/{path.name}", "sha256": fingerprint(path)},
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        text = f"{cell.cell_type}\n{cell.source}"
        seen[text] += 1
        cell.id = hashlib.sha256(f"{text}\n{seen[text]}".encode()).hexdigest()[:12]
    return notebook


def exercise_cell(id: str) -> str:
    """Return the text of an exercise's cell, solution and marks included.

    Raises:
        FileNotFoundError: if the lessons' sources are not beside this package.
        LookupError: if no source has the exercise.
    """
    lesson = id.partition(".")[0]
    paths = sorted(NOTEBOOKS.glob(f"lesson_*/{lesson}_*.py"))
    if not paths:
        raise FileNotFoundError(f"no lesson {lesson} in {NOTEBOOKS}")
    header = re.compile(r'^# %%.*\bexercise="' + re.escape(id) + r'".*\n', re.MULTILINE)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if found := header.search(text):
            cell = re.split(r"^# %%(?: .*)?$", text[found.end() :], maxsplit=1, flags=re.MULTILINE)
            # jupytext writes magics as comments.
            return re.sub(r"\A# (?=%%?\w)", "", cell[0]).strip("\n")
    raise LookupError(f"no cell of lesson {lesson} has exercise {id}")


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path``; a reader sees all of the old file or all of the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with open(part, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
