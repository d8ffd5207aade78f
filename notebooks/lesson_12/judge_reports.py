"""The judge of lesson 12 for the diagnoses of hang reports.

It says what each wrong diagnosis of the reports in :mod:`.hang_reports` overlooks, and needs no
ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from course_lib.teaching.exercise import WrongAnswer

from .hang_reports import BUGS, REPORTS

__all__ = ["judge_diagnoses"]

# By report: the bug, and the sets of ranks to change. Either of two tags may be changed.
_RIGHT = {
    "A": ("skipped collective", [{2}]),
    "B": ("endless loop", [{3}]),
    "C": ("wrong tag", [{0, 1}, {0}, {1}]),
}


def judge_diagnoses(answer: object) -> None:
    """Raise :class:`WrongAnswer` for the first report that is read wrongly."""
    if not isinstance(answer, dict) or set(answer) != set(REPORTS):
        raise WrongAnswer("not-all-three")
    for report in REPORTS:
        diagnosis = answer[report]
        if not (isinstance(diagnosis, tuple | list) and len(diagnosis) == 2):
            raise WrongAnswer("not-a-pair", report=report)
        bug, ranks = diagnosis
        name = bug.strip().lower() if isinstance(bug, str) else bug
        if name not in BUGS:
            raise WrongAnswer("unknown-bug", report=report, bug=repr(bug), bugs=", ".join(BUGS))
        _judge(report, name, _set_of_ranks(report, ranks))


def _set_of_ranks(report: str, ranks: Any) -> set[int]:
    found = {ranks} if isinstance(ranks, int) else set(ranks if isinstance(ranks, Iterable) else ())
    if not found or not all(isinstance(rank, int) and 0 <= rank < 4 for rank in found):
        raise WrongAnswer("not-ranks", report=report, ranks=repr(ranks))
    return found


def _judge(report: str, bug: str, ranks: set[int]) -> None:
    right, guilty = _RIGHT[report]
    if bug == right and ranks in guilty:
        return
    if bug in _RECOGNISED[report]:
        raise WrongAnswer(_RECOGNISED[report][bug], report=report)
    raise WrongAnswer("does-not-fit", report=report, bug=bug)


# By report and by the bug that was named. The right bug is listed for answers with wrong ranks.
_RECOGNISED = {
    "A": {
        "skipped collective": "blames-the-waiting: in A",
        "deadlock": "no-circle: in A",
        "death": "finished-is-not-dead",
        "missing send": "a-collective-is-no-message",
    },
    "B": {
        "deadlock": "no-circle: in B",
        "missing send": "stops-too-early",
        "endless loop": "blames-the-waiting: in B",
        "death": "computing-is-not-dead",
    },
    "C": {
        "skipped collective": "takes-the-consequence",
        "missing send": "overlooks-the-send",
        "deadlock": "sees-a-circle",
        "wrong tag": "blames-the-waiting: in C",
    },
}
