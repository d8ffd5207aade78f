"""The outcomes of grading, stored so that a second run continues from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from course_lib.teaching.lessons import write_atomically

KINDS = {
    "right": "right",
    "wrong": "runs, and makes a mistake that the check knows",
    "raised": "the function, or its cell, raised an exception",
    "hangs": "ranks waited for a message or a collective that never came",
    "out of time": "did not finish within the time limit",
    "crashed": "ended its process, or a rank",
    "undefined": "the cell defines no function of this name",
    "not attempted": "as it was handed out",
    "cell deleted": "the notebook has no cell for the exercise",
    "no notebook": "nothing was handed in for this lesson",
    "unreadable": "the file is not a readable notebook",
    "not judged": "the check itself failed, or something was missing: a person has to look",
}
"""How an answer can end, with the meaning."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one answer.

    Attributes:
        kind: one of :data:`KINDS`.
        mistake: its name, as in the lesson's ``mistakes.md``; empty if it has none.
        text: the check's own sentence.
        note: further information for the teacher.
        seconds: how long it took, the start of a cluster included.
    """

    id: str
    kind: str
    mistake: str = ""
    text: str = ""
    note: str = ""
    seconds: float = 0.0


@dataclass
class Graded:
    """The answers of one learner to one lesson, with the path of the notebook that counts."""

    learner: str
    lesson: str
    notebook: str = ""
    outcomes: list[Outcome] = field(default_factory=list)

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self)


class Kept:
    """The outcomes of earlier runs, one file for each learner and lesson.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, learner: str, lesson: str, fingerprint: str) -> list[Outcome] | None:
        """Return the outcomes of answers with this fingerprint; None if there are none."""
        try:
            kept = json.loads(self._path(learner, lesson).read_text(encoding="utf-8"))
            if kept["fingerprint"] == fingerprint:
                return [Outcome(**outcome) for outcome in kept["outcomes"]]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass  # none yet, or written by another version: it is graded again
        return None

    def keep(self, graded: Graded, fingerprint: str) -> None:
        path = self._path(graded.learner, graded.lesson)
        path.parent.mkdir(parents=True, exist_ok=True)
        found = [asdict(outcome) for outcome in graded]
        text = json.dumps({"fingerprint": fingerprint, "outcomes": found}, indent=1)
        write_atomically(path, text + "\n")

    def _path(self, learner: str, lesson: str) -> Path:
        return self._folder / learner / f"{lesson}.json"
