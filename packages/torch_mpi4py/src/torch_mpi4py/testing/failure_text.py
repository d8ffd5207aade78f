"""Combines all ranks' reports of a test into one outcome, with a text if it is a bad one.

Plain data and functions of it: nothing here deals with processes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..board.rank_states import name_ranks
from .crews import Answer, Result

__all__ = ["Verdict", "verdict"]

_PACKAGE = str(Path(__file__).resolve().parents[1])
_PYTEST = re.compile(r"/(_pytest|pluggy)/")
_BAD = ("ended", "failed", "late")
_WORST_FIRST = (*_BAD, "skipped", "xfailed", "xpassed", "passed")
_MOST_PRINTED = 20_000  # characters of a rank


@dataclass(frozen=True)
class Verdict:
    """The outcome of a test.

    Attributes:
        outcome: "passed", "failed", "skipped", "xfailed" or "xpassed".
        text: why, empty if it has passed.
        headline: the same in one line.
        place: file, line (from 0) and reason, as pytest keeps them of a skipped test.
        sections: titles and texts of the ranks' output and logs.
    """

    outcome: str
    text: str = ""
    headline: str = ""
    place: tuple[str, int, str] | None = None
    sections: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class _Word:
    """The outcome of the test on one rank."""

    outcome: str
    text: str = ""
    headline: str = ""
    place: tuple[str, int, str] | None = None


def verdict(result: Result, reports: dict[int, Sequence[pytest.TestReport]]) -> Verdict:
    """Return the outcome of a test.

    Args:
        result: its ranks' answers.
        reports: pytest's reports of each rank that reached the end.
    """
    words = {one.rank: _word(one, result, reports.get(one.rank, ())) for one in result.answers}
    outcomes = {word.outcome for word in words.values()}
    sections = list(_sections(result.answers, reports))
    first = words[0]
    if len(outcomes) == 1 and outcomes <= {"passed", "skipped", "xfailed", "xpassed"}:
        return Verdict(first.outcome, first.text, first.headline, first.place, sections)
    parts = [result.hang] if result.hang else []
    if len(outcomes) > 1 and not outcomes.intersection(_BAD):
        parts.append("The ranks disagree on the outcome of this test.")
    parts += _grouped(words)
    if result.launcher:
        parts.append(_titled("mpiexec printed", result.launcher))
    return Verdict("failed", "\n\n".join(parts), _headline(words, result), None, sections)


def _word(one: Answer, result: Result, reports: Sequence[pytest.TestReport]) -> _Word:
    if one.problem:
        return _Word("failed", one.problem, "the test was not found")
    if one.ended:
        return _Word("ended", "", one.ended)
    if one.rank not in result.stuck or one.failed:
        return _of_reports(reports)
    stacks = _of_the_test(one.stacks) or "It wrote no Python stacks in time."
    what = "torn down the test" if one.came else "finished the test"
    return _Word("late", stacks, f"had not {what} after {result.seconds:.0f} s")


def _of_the_test(stacks: str) -> str:
    """Remove from Python stacks the frames of pytest and the threads of this package."""
    kept = []
    for thread in filter(None, stacks.strip().split("\n\n")):
        title, *frames = thread.splitlines()
        program = [frame for frame in frames if "/threading.py" not in frame]
        if program and _PACKAGE in program[-1]:
            continue
        own = itertools.takewhile(lambda frame: not _PYTEST.search(frame), frames)
        kept.append("\n".join([title, *own]))
    return "\n\n".join(kept)


def _of_reports(reports: Sequence[pytest.TestReport]) -> _Word:
    for report in reports:
        if report.failed:
            where = "" if report.when == "call" else f" in its {report.when}"
            return _Word("failed", report.longreprtext + where, _crash(report))
    for report in reports:
        expected = getattr(report, "wasxfail", None)
        if report.skipped and expected is None:
            place: Any = report.longrepr
            return _Word("skipped", place[2], place[2], tuple(place))
        if expected is not None:
            return _Word("xfailed" if report.skipped else "xpassed", expected, expected)
    return _Word("passed")


def _crash(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else crash.message
    return text.strip().partition("\n")[0]


def _grouped(words: dict[int, _Word]) -> list[str]:
    """One paragraph for all ranks with the same report, the worst first."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, word in words.items():
        alike.setdefault((word.outcome, word.headline, _anonymous(word.text)), []).append(rank)
    told = sorted(alike.values(), key=lambda ranks: _WORST_FIRST.index(words[ranks[0]].outcome))
    return [_paragraph(f"{name_ranks(ranks)} of {len(words)}", words[ranks[0]]) for ranks in told]


def _anonymous(text: str) -> str:
    """Remove from a traceback what differs between ranks that failed alike."""
    return re.sub(r"\b0x[0-9a-f]+|^rank = \d+$", "", text, flags=re.MULTILINE)


def _paragraph(who: str, word: _Word) -> str:
    ends_here = word.outcome in ("ended", "late")
    return _titled(f"{who} {word.headline if ends_here else word.outcome}", word.text)


def _titled(title: str, text: str) -> str:
    return f"--- {title} ---\n{text}".rstrip()


def _headline(words: dict[int, _Word], result: Result) -> str:
    for outcome in _BAD:
        ranks = [rank for rank, word in words.items() if word.outcome == outcome]
        if not ranks:
            continue
        told = words[ranks[0]].headline
        if outcome == "late" and result.hang:
            return f"hung: {result.hang.splitlines()[-1]}"
        return f"{name_ranks(ranks)}{':' if outcome == 'failed' else ''} {told}"
    return "the ranks disagree on the outcome"


def _sections(
    answers: Iterable[Answer], reports: dict[int, Sequence[pytest.TestReport]]
) -> Iterable[tuple[str, str]]:
    for one in answers:
        if one.output.strip():
            text = one.output
            if len(text) > _MOST_PRINTED:
                text = f"[...]\n{text[-_MOST_PRINTED:]}"
            yield f"Captured stdout and stderr of rank {one.rank}", text
        told: dict[str, str] = {}
        for report in reports.get(one.rank, ()):
            told.update(report.sections)
        for title, text in told.items():
            yield f"{title} of rank {one.rank}", text
