"""In a hang report, look for the rank that is not waiting, or for what cannot match.

What each wrong diagnosis of the three reports in :mod:`.hang_reports` overlooks. No rank is
needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from course_lib.teaching.exercise import WrongAnswer

from .hang_reports import BUGS, REPORTS

__all__ = ["judge_diagnoses"]

# By report: the bug, and the sets of ranks to change. Of two tags either may be changed.
_RIGHT = {
    "A": ("skipped collective", [{2}]),
    "B": ("endless loop", [{3}]),
    "C": ("wrong tag", [{0, 1}, {0}, {1}]),
}


def judge_diagnoses(answer: object) -> None:
    """Raise :class:`WrongAnswer` for the first report that is read wrongly."""
    if not isinstance(answer, dict) or set(answer) != set(REPORTS):
        raise WrongAnswer("not-all-three", 'return a dict with the keys "A", "B" and "C"')
    for report in REPORTS:
        diagnosis = answer[report]
        if not (isinstance(diagnosis, tuple | list) and len(diagnosis) == 2):
            raise WrongAnswer("not-a-pair", f"report {report}: give `(bug, ranks)`")
        bug, ranks = diagnosis
        name = bug.strip().lower() if isinstance(bug, str) else bug
        if name not in BUGS:
            raise WrongAnswer(
                "unknown-bug", f"report {report}: {bug!r} is none of {', '.join(BUGS)}"
            )
        _judge(report, name, _set_of_ranks(report, ranks))


def _set_of_ranks(report: str, ranks: Any) -> set[int]:
    found = {ranks} if isinstance(ranks, int) else set(ranks if isinstance(ranks, Iterable) else ())
    if not found or not all(isinstance(rank, int) and 0 <= rank < 4 for rank in found):
        text = f"report {report}: give the ranks as a set of numbers from 0 to 3, not {ranks!r}"
        raise WrongAnswer("not-ranks", text)
    return found


def _judge(report: str, bug: str, ranks: set[int]) -> None:
    right, guilty = _RIGHT[report]
    if bug == right and ranks in guilty:
        return
    if bug in _RECOGNISED[report]:
        mistake, explanation = _RECOGNISED[report][bug]
        raise WrongAnswer(mistake, f"report {report}: {explanation}")
    raise WrongAnswer(
        "does-not-fit",
        f"report {report}: a {bug} would look different. Which rank is *not* waiting, or which "
        "two calls were meant for each other and cannot meet?",
    )


# By report and by the bug that was named. The right bug stands here for wrong ranks.
_RECOGNISED = {
    "A": {
        "skipped collective": (
            "blames-the-waiting",
            "the bug is right, the rank is not. Those who wait have made their call; who has "
            "finished without it?",
        ),
        "deadlock": (
            "no-circle",
            "in a deadlock everybody waits for somebody. Rank 2 waits for nobody: it has finished",
        ),
        "death": ("finished-is-not-dead", "rank 2 is not dead. It came to its cell's end, alive"),
        "missing send": (
            "a-collective-is-no-message",
            "nobody receives here. All three wait in the same collective",
        ),
    },
    "B": {
        "deadlock": (
            "no-circle",
            "2 waits for 1, 1 for 0, 0 for 3, and there the chain ends: rank 3 waits for nobody, "
            "so it is no circle",
        ),
        "missing send": (
            "stops-too-early",
            "true of ranks 0, 1 and 2, and a consequence. Follow the chain to its end: rank 3 "
            "would send, if it ever got out of line 10",
        ),
        "endless loop": (
            "blames-the-waiting",
            "the bug is right, the rank is not. Who is computing?",
        ),
        "death": ("computing-is-not-dead", "a dead rank is called dead. Rank 3 computes"),
    },
    "C": {
        "skipped collective": (
            "takes-the-consequence",
            "ranks 2 and 3 do wait in a barrier without 0 and 1, but those two are on the way "
            "there: what holds *them* up?",
        ),
        "missing send": (
            "overlooks-the-send",
            "the send is there: rank 0 waits in it. Compare it with rank 1's receive, word by word",
        ),
        "deadlock": (
            "sees-a-circle",
            "0 sends to 1, and 1 receives from 0: that would fit. Two that both send or both "
            "receive would be a deadlock. Compare the two calls, word by word",
        ),
        "wrong tag": (
            "blames-the-waiting",
            "the bug is right, the ranks are not. Whose two calls were meant for each other?",
        ),
    },
}
