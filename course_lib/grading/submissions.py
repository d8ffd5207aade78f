"""Finds the notebooks that learners have handed in, however they were collected.

Two layouts are read, also mixed:

- a folder for each learner, with notebooks in it at any depth: a copy of their workspaces,
  nbgrader's ``submitted/<learner>/<assignment>``, the folders ``Ada Lovelace_4711_assignsubmission_
  file`` of Moodle's "Download all submissions", and Gradescope's ``submission_4711``;
- files with the learner before the lesson's name, as Canvas has them:
  ``lovelaceada_LATE_4711_99_01_send_and_receive-2.ipynb``.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.teaching import lessons

# Suffixes of a lesson's name: a newer lesson laid beside it, a file handed in again, a repeated
# download.
_COPY = r"(?:\.newer(?:-(?P<newer>\d+))?)?(?:[-_ ]?\(?(?P<again>\d+)\)?)?"
_MOODLE = re.compile(r"(?P<name>(?s:.+))_(?P<id>\d+)_assignsubmission_file_?")
_CANVAS = re.compile(r"(?P<name>(?s:.+?))_(?:LATE_)?(?P<id>\d+)_\d+")


@dataclass
class Learner:
    """A learner and the notebooks they have handed in.

    Attributes:
        name: of their folder, or the part before the lesson's name; a plain file name.
        number: the number that Moodle or Canvas has given them; empty if there is none.
        notebooks: lesson -> its copies, the newest first.
    """

    name: str
    number: str = ""
    notebooks: dict[str, list[Path]] = field(default_factory=dict)


class NoSubmissionsError(Exception):
    """Nothing to grade; the message names the files looked for."""


def find(folder: Path, numbers: list[str]) -> list[Learner]:
    """Return the learners by name, with their notebooks of these lessons.

    Raises:
        NoSubmissionsError: if there are none.
    """
    stems = {p.stem: lessons.number(p) for p in lessons.sources() if lessons.number(p) in numbers}
    names = "|".join(map(re.escape, stems))
    pattern = re.compile(rf"(?:(?P<who>(?s:.+))_)?(?P<stem>{names}){_COPY}\.ipynb")
    found: dict[tuple[str, str], Learner] = {}
    copies: dict[tuple[str, str], list[tuple[str, tuple[int, int], Path]]] = defaultdict(list)
    for who in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        if not who.startswith("."):  # including learners with nothing to grade
            key = _learner(who)
            found[key] = Learner(_plain(key[0]), key[1])
    for path in _notebooks(folder):
        match = pattern.fullmatch(path.name)
        inside = path.relative_to(folder).parts[0]
        who = inside if path.parent != folder else match["who"] if match else ""
        if match is None or not who:
            continue
        key = _learner(who)
        found.setdefault(key, Learner(_plain(key[0]), key[1]))
        newer = int(match["newer"] or 1) if ".newer" in path.name else 0
        copy = stems[match["stem"]], (newer, int(match["again"] or 0)), path
        copies[key].append(copy)
    if not copies:
        raise NoSubmissionsError(
            f"{folder} has no notebooks of these lessons: expected a folder for each learner with "
            f"{next(iter(stems))}.ipynb in it, or files such as LEARNER_{next(iter(stems))}.ipynb"
        )
    named = Counter(learner.name.lower() for learner in found.values())
    alike: Counter[str] = Counter()  # without a number, and with the same plain name
    for key, learner in found.items():
        if named[learner.name.lower()] > 1 and learner.number:
            learner.name = f"{learner.name} {learner.number}"
        alike[learner.name] += 1
        if alike[learner.name] > 1:
            learner.name = f"{learner.name} ({alike[learner.name]})"
        for number, _, path in sorted(copies[key], reverse=True):
            learner.notebooks.setdefault(number, []).append(path)
    return sorted(found.values(), key=lambda learner: learner.name.lower())


def _notebooks(folder: Path) -> Iterator[Path]:
    """Yield the notebooks in a folder, but no links, and nothing in hidden folders."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(where, name)
            if name.endswith(".ipynb") and path.is_file() and not path.is_symlink():
                yield path


def _learner(text: str) -> tuple[str, str]:
    """Return the name and the number in the name of a folder, or in the part before a lesson's."""
    for pattern in (_MOODLE, _CANVAS):
        if match := pattern.fullmatch(text):
            return match["name"], match["id"]
    return text, ""


def _plain(name: str) -> str:
    """Return ``name`` as the name of a file, without separators and never ``.`` or ``..``."""
    return re.sub(r"[^\w .@+-]", "_", name).strip(". ") or "_"
