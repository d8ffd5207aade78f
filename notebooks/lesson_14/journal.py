"""A learner's journal of predictions and runs, which shows whether it was changed afterwards.

The journal is an append-only file with one line per entry. Each line ends with a seal, the SHA-256
of its text and of the previous line's seal. If a number is changed, or a line is removed from the
middle, no seal from there on fits, and the report says so. (Recomputing all the seals is not
detected, and a run without a report leaves no trace. The seal is printed when a prediction is made,
and again in the report: an instructor who wants to be sure collects the seals before the runs.)
"""

from __future__ import annotations

import hashlib
import json
import numbers
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rank_by_rank.lesson_14.tasks import TASKS, Plan, moment

from course_lib.teaching.workspace import WORKSPACE

__all__ = ["Entry", "Journal", "own_folder"]

_FILE = "journal.jsonl"
_SHORT = 12  # digits of a seal that people compare
_scratch: list[tempfile.TemporaryDirectory] = []


def own_folder() -> Path:
    """Return the learner's folder for the capstone, and make it if necessary.

    Cells that run outside the workspace, for example while a lesson is built, are not a learner's:
    they get a temporary folder, which is removed when the kernel ends.
    """
    if Path.cwd().is_relative_to(WORKSPACE):
        folder = WORKSPACE / "capstone"
        folder.mkdir(exist_ok=True)
        return folder
    return _ends_with_the_kernel()


def _ends_with_the_kernel() -> Path:
    _scratch.append(tempfile.TemporaryDirectory(prefix="capstone-"))
    return Path(_scratch[-1].name)


@dataclass(frozen=True)
class Entry:
    """A line of the journal.

    Attributes:
        number: from 1.
        kind: "prediction" or "run".
        when: in UTC, ISO 8601.
        content: task, plan, and what was predicted or measured.
        seal: over all of it and the seal of the entry before.
        sound: whether the seal fits.
    """

    number: int
    kind: str
    when: str
    content: Mapping[str, Any]
    seal: str
    sound: bool = True

    def is_about(self, task: str, plan: Plan) -> bool:
        """Return whether the entry is about that plan for that task."""
        return self.content.get("task") == task and self.content.get("plan") == _plain(plan)

    @property
    def time(self) -> str:
        """When the entry was written, in a readable form."""
        return f"{self.when[:19].replace('T', ' ')} UTC"

    def in_words(self) -> str:
        """Return a prediction as one line of text."""
        written = f"{self.content['speed_up']:g} times as fast"
        return f"{written}, written {self.time}, seal {self.seal[:_SHORT]}"


class Journal:
    """The journal in ``folder``; its file is made with the first entry.

    Several notebooks may have it open, because each call reads the file again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = own_folder() if folder is None else Path(folder)
        self._path = self.folder / _FILE

    @classmethod
    def for_examples(cls) -> Journal:
        """Return an empty journal for the solved examples, which is removed with the kernel."""
        return cls(_ends_with_the_kernel())

    def predict(self, task: str, plan: Plan, speed_up: float | None, why: str = "") -> None:
        """Write down how many times as fast as one rank ``plan`` will reach the target.

        Args:
            task: its letter.
            plan: what will be run.
            speed_up: your prediction; None if you make none, which the report will say.
            why: how you arrived at the prediction, for the report.

        Raises:
            ValueError: if there is no such task, or the number is not above 0.
        """
        if task not in TASKS:
            raise ValueError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
        if speed_up is None:
            print("No prediction, so none is written down: the report will say so.")
            return
        if isinstance(speed_up, bool) or not isinstance(speed_up, numbers.Real):
            raise ValueError(f"predict a number such as 1.7, not {speed_up!r}")
        if not 0 < speed_up < float("inf"):
            raise ValueError(f"a speed-up is above 0, not {speed_up!r}")
        content = {"task": task, "plan": _plain(plan), "speed_up": float(speed_up), "why": why}
        entry = self._add("prediction", content)
        late = any(one.kind == "run" and one.is_about(task, plan) for one in self.entries())
        after = (
            " You have seen this plan run before: this prediction does not count." if late else ""
        )
        print(f"Written down for task {task}, {plan.in_words()}: {entry.in_words()}.{after}")

    def ran(self, task: str, plan: Plan, result: Mapping[str, Any]) -> Entry:
        """Add a run with its measurements."""
        return self._add("run", {"task": task, "plan": _plain(plan), **result})

    def counting_prediction(self, task: str, plan: Plan, began: str | None = None) -> Entry | None:
        """Return the last prediction that was made before this plan was first run.

        Args:
            began: when a run began that is not in the journal yet.
        """
        first = self._first_run(task, plan, began)
        counting = [one for one in self._predictions(task, plan) if one.when < first]
        return counting[-1] if counting else None

    def late_predictions(self, task: str, plan: Plan, began: str | None = None) -> list[Entry]:
        """Return the predictions that were made after this plan had been run."""
        first = self._first_run(task, plan, began)
        return [one for one in self._predictions(task, plan) if one.when >= first]

    def _predictions(self, task: str, plan: Plan) -> list[Entry]:
        return [
            one for one in self.entries() if one.kind == "prediction" and one.is_about(task, plan)
        ]

    def _first_run(self, task: str, plan: Plan, began: str | None) -> str:
        """Return when the first run of this plan began, or a time after all others if none did."""
        runs = [
            one.content.get("began", one.when)
            for one in self.entries()
            if one.kind == "run" and one.is_about(task, plan)
        ]
        return min([*runs, *([began] if began else [])], default="9999")

    def broken_from(self) -> int | None:
        """Return the number of the first line whose seal does not fit, or None if all fit."""
        return next((entry.number for entry in self.entries() if not entry.sound), None)

    def entries(self) -> list[Entry]:
        """Return all entries; ``sound`` says whether an entry's seal fits."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found, before, sound = [], "", True
        for number, line in enumerate(lines, 1):
            text, _, seal = line.rpartition(" ")
            sound = sound and seal == _seal(text, before)
            try:
                kind, when, content = json.loads(text)
            except ValueError:
                kind, when, content, sound = "unreadable", "", {}, False
            found.append(Entry(number, kind, when, content, seal, sound))
            before = seal
        return found

    def _add(self, kind: str, content: Mapping[str, Any]) -> Entry:
        entries = self.entries()
        when = moment()
        text = json.dumps([kind, when, content], ensure_ascii=True, sort_keys=True)
        seal = _seal(text, entries[-1].seal if entries else "")
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(f"{text} {seal}\n")
            stream.flush()
            os.fsync(stream.fileno())
        return Entry(len(entries) + 1, kind, when, content, seal)


def _seal(text: str, before: str) -> str:
    return hashlib.sha256(f"{before} {text}".encode()).hexdigest()


def _plain(plan: Plan) -> Any:
    return json.loads(json.dumps(plan.as_dict()))
