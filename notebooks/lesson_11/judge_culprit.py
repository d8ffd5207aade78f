"""The judge of lesson 11 for the rank that all others wait for, and for what it does.

The traces are made up, with whole numbers of milliseconds. Each mistake leads to a wrong rank or a
wrong name in at least one of them, and the right answer is the same for every reading of the task.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import name_the_mistake

from .traces import self_seconds

SYNC = "sync"

Spans = Sequence[tuple[str, float, float]]
Traces = Sequence[Spans]


def expected(traces: Traces) -> tuple[int, str]:
    """Return the rank with the least time in sync, and the name with its largest self time."""
    return _answer(traces, min(range(len(traces)), key=lambda rank: waited(traces[rank])))


def waited(spans: Spans) -> float:
    """Return the seconds that a rank has spent in sync."""
    return sum(end - start for name, start, end in spans if name == SYNC)


def judge_culprit(culprit: Callable) -> None:
    """Raise WrongAnswer unless the function finds rank and name in all made-up traces."""
    cases = list(made_up().values())
    tried = copy.deepcopy(cases)
    given = [_plain(culprit(case)) for case in tried]
    wanted = [expected(case) for case in cases]
    for answer in given:
        if answer is None:
            raise WrongAnswer("returns-nothing")
        if not _is_pair(answer):
            raise WrongAnswer("not-a-pair", answer=repr(answer))
    if given == wanted:
        if tried != cases:
            raise WrongAnswer("changes-its-input")
        return
    name_the_mistake(_CULPRIT_MISTAKES, lambda makes: given == [makes(case) for case in cases])
    for label, answer, right in zip(made_up(), given, wanted, strict=True):
        if answer[0] != right[0]:
            raise WrongAnswer("wrong-rank", label=label, given=answer[0], rank=right[0])
        if answer[1] != right[1]:
            raise WrongAnswer(
                "wrong-name",
                label=label,
                rank=right[0],
                given=repr(answer[1]),
                wanted=repr(right[1]),
            )


def _plain(answer: Any) -> Any:
    if isinstance(answer, list):
        answer = tuple(answer)
    if isinstance(answer, tuple) and len(answer) == 2 and hasattr(answer[0], "item"):
        return answer[0].item(), answer[1]
    return answer


def _is_pair(answer: Any) -> bool:
    return (
        isinstance(answer, tuple)
        and len(answer) == 2
        and isinstance(answer[0], int)
        and isinstance(answer[1], str)
    )


# ---- traces that are made up ------------------------------------------------------------------


def made_up() -> dict[str, Traces]:
    """Return traces by their special feature; times are in seconds, in whole milliseconds."""
    return {
        "one operator is slow": [
            _trace([("load", 5, [("aten::stack", 4)]), ("forward", 20, [("aten::mm", 18)])], 65),
            _trace([("load", 60, [("aten::sort", 50)]), ("forward", 20, [("aten::mm", 18)])], 10),
            _trace([("load", 5, [("aten::stack", 4)]), ("forward", 25, [("aten::mm", 22)])], 60),
        ],
        "many short calls add up": [
            _trace(
                [
                    ("load", 62, [("aten::select", 2)] * 30),
                    ("forward", 29, [("aten::mm", 25)]),
                ],
                6,
            ),
            _trace([("load", 4, [("aten::select", 2)]), ("forward", 29, [("aten::mm", 25)])], 64),
        ],
        "a section computes in Python": [
            _trace([("load", 3, []), ("forward", 20, [("aten::mm", 15)])], 80),
            _trace([("load", 3, []), ("forward", 20, [("aten::mm", 15)])], 80),
            _trace([("load", 3, []), ("forward", 20, [("aten::mm", 15)])], 80),
            _trace([("load", 63, [("aten::stack", 18)]), ("forward", 30, [("aten::mm", 28)])], 10),
        ],
        "the slow rank's sync is long in one step": [
            _steps([(4, 30), (40, 4), (40, 4)], 9),
            _steps([(30, 4), (4, 60), (4, 60)], 9),
        ],
        "each rank's sync is long in another step": [
            _steps([(51 - sync, sync) for sync in (6, 6, 2, 6, 6, 20, 20)], 9),
            _steps([(51 - sync, sync) for sync in (18, 1, 18, 18, 18, 18, 18)], 9),
            _steps([(51 - sync, sync) for sync in (4, 4, 4, 4, 40, 40, 40)], 9),
        ],
        "operators call operators": [
            _trace([("load", 9, []), ("forward", 45, [("aten::linear", 40)])], 50),
            _nested(),
        ],
        "a section computes beside operators that call operators": [
            _trace([("load", 9, []), ("forward", 45, [("aten::mm", 40)])], 50),
            _deeply_nested(),
        ],
        "the rank with most to do waits as well": [
            _trace(
                [
                    ("load", 20, [("aten::stack", 9)]),
                    ("forward", 20, [("aten::mm", 18)]),
                    ("load", 140, [("aten::argmax", 139)]),
                ],
                20,
            ),
            _trace([("load", 30, [("aten::sort", 28)]), ("forward", 20, [("aten::mm", 18)])], 10),
        ],
        "the copies are made in sync": [
            _trace(
                [("load", 30, [("aten::sort", 28)]), ("forward", 10, [("aten::mm", 9)])], 40, 39
            ),
            _trace([("load", 4, [("aten::sort", 2)]), ("forward", 10, [("aten::mm", 9)])], 66, 65),
        ],
        "every rank spends most of its time in sync": [
            _trace([("load", 6, [("aten::stack", 5)]), ("forward", 10, [("aten::mm", 9)])], 84),
            _trace([("load", 36, [("aten::sort", 34)]), ("forward", 10, [("aten::mm", 9)])], 54),
        ],
        "a rank's sync comes in several pieces": [
            _steps([(72, 12)], 9),
            _steps([(9, 5)] * 6, 9),
        ],
        "an operator calls itself": [
            _trace([("load", 9, []), ("forward", 45, [("aten::to", 40)])], 50),
            _calls_itself(),
        ],
    }


_Section = tuple[str, int, list[tuple[str, int]]]


def _trace(sections: list[_Section], sync: int, copies: int = 2) -> Spans:
    """One step: sections with operators at their beginning, then sync, in milliseconds."""
    spans: list[tuple[str, float, float]] = _views(0)
    now = 0
    for name, length, operators in [*sections, (SYNC, sync, [("aten::copy_", copies)])]:
        spans.append((name, now, now + length))
        inner = now + (name == SYNC)  # copies end with their sync, if they take all but 1 ms
        for operator, of_operator in operators:
            spans.append((operator, inner, inner + of_operator))
            inner += of_operator
        now += length
    return _seconds([("step", 0, now), *spans])


def _steps(pairs: list[tuple[int, int]], forward: int) -> Spans:
    """Several steps of load, forward and sync, in milliseconds."""
    spans: list[tuple[str, float, float]] = _views(0)
    now = 0
    for load, sync in pairs:
        spans += [("load", now, now + load), ("aten::sort", now, now + load - 1)]
        now += load
        spans += [("forward", now, now + forward), ("aten::mm", now, now + forward - 1)]
        now += forward
        spans.append((SYNC, now, now + sync))
        now += sync
    return _seconds([("step", 0, now), *spans])


def _views(at: float) -> list[tuple[str, float, float]]:
    """Forty calls that take hardly any time, in the first millisecond."""
    ends = [at + number / 100 for number in range(41)]
    return [("aten::view", a, b) for a, b in itertools.pairwise(ends)]


def _nested() -> Spans:
    """A rank whose outer operator only calls others."""
    return _seconds(
        [
            ("step", 0, 104),
            *_views(0),
            ("load", 0, 6),
            ("forward", 6, 94),
            ("aten::linear", 8, 92),
            ("aten::addmm", 10, 40),
            ("aten::copy_", 40, 90),
            (SYNC, 94, 104),
        ]
    )


def _deeply_nested() -> Spans:
    """A rank whose section has the most self time, even without everything inside it."""
    return _seconds(
        [
            ("step", 0, 104),
            *_views(0),
            ("load", 0, 6),
            ("forward", 6, 94),
            ("aten::linear", 8, 50),
            ("aten::addmm", 10, 49),
            (SYNC, 94, 104),
        ]
    )


def _calls_itself() -> Spans:
    """A rank whose time goes to an operator that calls itself; no span contains all others.

    Some spans end together, and the time between sections belongs to none of them.
    """
    return _seconds(
        [
            *_views(0),
            ("load", 0, 8),
            ("forward", 8, 94),
            ("aten::to", 20, 94),
            ("aten::to", 22, 94),
            (SYNC, 96, 104),
        ]
    )


def _seconds(spans: Spans) -> Spans:
    """In seconds, and not in the order of time."""
    in_seconds: list[tuple[str, float, float]] = [
        (name, start / 1000, end / 1000) for name, start, end in spans
    ]
    return in_seconds[1::2] + in_seconds[::2]


# ---- answers, right and wrong -----------------------------------------------------------------


def _answer(traces: Traces, rank: int) -> tuple[int, str]:
    return rank, _largest(_self_outside_sync(traces[rank]))


def _self_outside_sync(spans: Spans) -> dict[str, float]:
    found = self_seconds([span for span in spans if span[0] == SYNC or not _in_sync(span, spans)])
    found.pop(SYNC, None)
    return found


def _in_sync(span: tuple[str, float, float], spans: Spans) -> bool:
    return any(n == SYNC and start <= span[1] and span[2] <= end for n, start, end in spans)


def _largest(seconds: dict[str, float]) -> str:
    return max(seconds, key=lambda name: seconds[name])


def _by_wait(choose: Callable) -> Callable[[Traces], int]:
    return lambda traces: choose(range(len(traces)), key=lambda rank: waited(traces[rank]))


_latest, _most_patient = _by_wait(min), _by_wait(max)


def _victim(traces: Traces) -> tuple[int, str]:
    return _answer(traces, _most_patient(traces))


def _blames_sync(traces: Traces) -> tuple[int, str]:
    totals = [self_seconds(spans) for spans in traces]
    rank = max(range(len(traces)), key=lambda r: max(totals[r].values()))
    return rank, _largest(totals[rank])


def _total_time(traces: Traces) -> tuple[int, str]:
    rank = _latest(traces)
    found: dict[str, float] = {}
    for name, start, end in traces[rank]:
        if name != SYNC:
            found[name] = found.get(name, 0) + end - start
    return rank, _largest(found)


def _longest_span(traces: Traces) -> tuple[int, str]:
    rank = _latest(traces)
    operators = [
        s for s in traces[rank] if s[0].startswith("aten::") and not _in_sync(s, traces[rank])
    ]
    return rank, max(operators, key=lambda span: span[2] - span[1])[0]


def _most_calls(traces: Traces) -> tuple[int, str]:
    rank = _latest(traces)
    names = [span[0] for span in traces[rank] if span[0] != SYNC]
    return rank, max(names, key=names.count)


def _counts_inside_sync(traces: Traces) -> tuple[int, str]:
    rank = _latest(traces)
    found = self_seconds(traces[rank])
    found.pop(SYNC, None)
    return rank, _largest(found)


def _sync_not_taken_out(traces: Traces) -> tuple[int, str]:
    rank = _latest(traces)
    outside = [span for span in traces[rank] if not _in_sync(span, traces[rank])]
    return rank, _largest(self_seconds(outside))


def _operators_only(traces: Traces) -> tuple[int, str]:
    rank = _latest(traces)
    found = _self_outside_sync(traces[rank])
    return rank, _largest({n: s for n, s in found.items() if n.startswith("aten::")})


def _by_sync(traces: Traces, of: Callable) -> int:
    """The rank whose spans of sync have the smallest value of something, such as the longest."""

    def measured(rank: int) -> float:
        return of(end - start for name, start, end in traces[rank] if name == SYNC)

    return min(range(len(traces)), key=measured)


def _first_step_only(traces: Traces) -> tuple[int, str]:
    def first(spans: Spans) -> float:
        return min((s for s in spans if s[0] == SYNC), key=lambda s: s[1])

    ranks = range(len(traces))
    rank = min(ranks, key=lambda r: first(traces[r])[2] - first(traces[r])[1])
    return _answer(traces, rank)


def _smallest_share(traces: Traces) -> tuple[int, str]:
    def share(rank: int) -> float:
        _, starts, ends = zip(*traces[rank], strict=True)
        return waited(traces[rank]) / (max(ends) - min(starts))

    return _answer(traces, min(range(len(traces)), key=share))


_CULPRIT_MISTAKES: tuple[tuple[str, Callable[[Traces], tuple[int, str]]], ...] = (
    ("blames-the-one-that-waits", _victim),
    ("blames-the-collective", _blames_sync),
    ("total-not-self-time", _total_time),
    ("longest-single-span", _longest_span),
    ("most-calls", _most_calls),
    ("counts-what-is-inside-sync", _counts_inside_sync),
    ("sync-left-in-what-surrounds-it", _sync_not_taken_out),
    ("operators-only", _operators_only),
    ("first-step-only", _first_step_only),
    ("share-not-time", _smallest_share),
    ("longest-or-last-sync", lambda traces: _answer(traces, _by_sync(traces, max))),
)
