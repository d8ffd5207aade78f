"""Reads the records of learners' kernels, in a shared folder or in the homes of a hub.

Learners can write anything into their files, and in a shared folder also files under the names of
others. So a line counts only if :mod:`course_lib.teaching.class_record` could have written it;
sizes and numbers are bounded; no link is followed out of a folder that learners may write to; and
files with one name but different owners are different learners.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import pwd
import re
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from course_lib.teaching import class_record

IN_A_HOME = "rank-by-rank/class"
"""Where a learner's own files are, from their home, unless the teacher says otherwise."""

_SUFFIX = ".jsonl"
_MOST_FILES = 20_000
_MOST_KERNELS = 50  # of one learner, the latest
_MOST_NAMES = 100  # of one owner
_MOST_BYTES = 1 << 20  # of one learner, the latest
_LONGEST_LINE = 500
_LARGEST = 1e11  # of seconds
_MISTAKE = re.compile(r"[a-z0-9-]{1,60}(: [\w ,.'-]{1,60})?")
_SLACK_S = 20.0  # a sign of life may be late by that


class NothingToReadError(OSError):
    """There is no such folder; the message gives the remedy."""


@dataclass
class Work:
    """A learner's work on one exercise.

    Attributes:
        tries: checks that found it right or wrong.
        mistake: the latest one's name; empty if there was none.
        mistakes: all that were made.
    """

    solved: bool = False
    tries: int = 0
    hints: int = 0
    solution: bool = False
    mistake: str = ""
    mistakes: set[str] = field(default_factory=set)


class Running(NamedTuple):
    """A long-running cell: the exercise it checks, for how many seconds, whether all ranks wait."""

    exercise: str
    seconds: float
    hangs: bool


@dataclass
class Learner:
    """One row of the page.

    Attributes:
        name: the learner's name.
        work: by exercise.
        seen: when anything was written last, in seconds since the epoch.
        running: a long-running cell at present.
    """

    name: str
    work: dict[str, Work] = field(default_factory=dict)
    seen: float = 0.0
    running: Running | None = None

    @property
    def stuck(self) -> int:
        """Tries without success, hints and solutions, of exercises that are not solved."""
        rest = (work for work in self.work.values() if not work.solved)
        return sum(work.tries + work.hints + work.solution for work in rest)

    @property
    def solved(self) -> int:
        return sum(work.solved for work in self.work.values())


class _File(NamedTuple):
    changed: float
    size: int
    name: str


def shared(folder: Path, exercises: Collection[str]) -> list[Learner]:
    """Return the learners whose kernels write to one folder.

    Raises:
        NothingToReadError: if it is not there, or cannot be read.
    """
    found: dict[tuple[str, int], list[_File]] = defaultdict(list)
    try:
        with _opened(folder) as where:
            for file, owner in _files(where):
                name = class_record.plain(file.name.removesuffix(_SUFFIX).rpartition(".")[0])
                found[name, owner].append(file)
            owners = Counter(name for name, _ in found)
            names: Counter[int] = Counter()
            learners = []
            for (name, owner), files in sorted(found.items()):
                names[owner] += 1
                if names[owner] <= _MOST_NAMES:
                    shown = f"{name} ({_account(owner)})" if owners[name] > 1 else name
                    learners.append(_learner(shown, where, files, exercises))
            return learners
    except OSError as error:
        raise NothingToReadError(
            f"{folder} cannot be read ({error.strerror}): give the folder that learners have in "
            f"{class_record.FOLDER}"
        ) from None


def homes(pattern: str, inside: str, exercises: Collection[str]) -> list[Learner]:
    """Return the learners who have files in ``inside`` of their homes; each has the home's name.

    Raises:
        NothingToReadError: if no folder fits the pattern, or this account may read none.
    """
    learners, closed = [], 0
    folders = [path for path in map(Path, sorted(glob(pattern))) if path.is_dir()]
    if not folders:
        raise NothingToReadError(
            f"there is no folder {pattern}: give the learners' homes, in quotes, like '/home/*'"
        )
    for home in folders:
        try:
            with _opened(home, *Path(inside).parts) as where:
                own = os.stat(home).st_uid
                files = [file for file, owner in _files(where) if owner == own]
                name = class_record.plain(home.name)
                learners.append(_learner(name, where, files, exercises))
        except PermissionError:
            closed += 1
        except OSError:
            pass  # none of the class, or not yet
    if closed and not learners:
        raise NothingToReadError(f"you may not read {pattern}: run this as root, with sudo")
    return learners


@contextmanager
def _opened(start: Path, *parts: str) -> Iterator[int]:
    """Open a folder and each folder below it, one by one; none of them may be a link."""
    folder = os.open(start, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _files(folder: int) -> Iterator[tuple[_File, int]]:
    """Yield the kernels' files, each with the account that owns it."""
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MOST_FILES):
            if entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                with suppress(OSError):  # it has gone meanwhile
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield _File(found.st_mtime, found.st_size, entry.name), found.st_uid


def _account(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"account {number}"


def _learner(name: str, folder: int, files: list[_File], exercises: Collection[str]) -> Learner:
    learner, left, now = Learner(name), _MOST_BYTES, time.time()
    lines: list[tuple[float, dict[str, Any]]] = []
    for file in heapq.nlargest(_MOST_KERNELS, files):
        text = _end_of(folder, file.name, left)
        left -= len(text)
        mine = list(filter(None, map(_line, text.split(b"\n"))))
        # The last line was written when the file changed, which shows how the learner's clock
        # differs from that of the disk.
        ahead = mine[-1]["t"] - file.changed if mine else 0.0
        lines += [(line["t"] - ahead, line) for line in mine]
        learner.seen = max(learner.seen, min(file.changed, now))
        if mine and mine[-1]["is"] == "running":
            lasts, silent = mine[-1]["for"], now - file.changed
            if silent < class_record.pause(lasts) + _SLACK_S:
                running = Running(mine[-1]["exercise"], lasts + max(0.0, silent), mine[-1]["hangs"])
                if running.exercise not in exercises:
                    running = running._replace(exercise="")
                # Of several notebooks, the hanging one.
                learner.running = max(filter(None, (learner.running, running)), key=_urgency)
    for _, line in sorted(lines, key=lambda pair: pair[0]):
        if line["exercise"] in exercises and line["is"] not in ("here", "running", "done"):
            _add(learner.work.setdefault(line["exercise"], Work()), line)
    return learner


def _urgency(running: Running) -> tuple[bool, float]:
    return running.hangs, running.seconds


def _add(work: Work, line: dict[str, Any]) -> None:
    match line["is"]:
        case "hint":
            work.hints = min(work.hints + 1, 3)
        case "solution":
            work.solution = True
        case kind:
            work.tries += 1
            work.solved |= kind == "solved"
            if line["mistake"]:
                work.mistake = line["mistake"]
                work.mistakes.add(line["mistake"])


def _end_of(folder: int, name: str, most: int) -> bytes:
    """Return the end of a file; nothing if it is no file any more."""
    try:
        # A pipe would wait for a writer.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return b""
    with open(file, "rb") as stream, suppress(OSError):
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode):
            stream.seek(max(0, found.st_size - most))
            return stream.read(max(0, most))
    return b""


def _line(text: bytes) -> dict[str, Any] | None:
    """Return the contents of a line; None if a kernel would not have written it."""
    if not text.strip() or len(text) > _LONGEST_LINE:
        return None
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    line = {"exercise": "", "mistake": "", "for": 0.0, "hangs": False, **line}
    numbers: list[Any] = [line.get("t"), line["for"]]
    words = line["exercise"], line["mistake"]
    if (
        line.get("is") not in class_record.KINDS
        or not all(type(one) in (int, float) and 0 <= one < _LARGEST for one in numbers)
        or not all(isinstance(one, str) for one in words)
        or not (not line["mistake"] or _MISTAKE.fullmatch(line["mistake"]))
        or not isinstance(line["hangs"], bool)
    ):
        return None
    return line
