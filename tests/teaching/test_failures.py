"""What kept a function from its result is named by its cause."""

from __future__ import annotations

import pytest

from course_lib.teaching.exercise import WrongAnswer, as_mistake
from course_lib.teaching.judges.collective_calls import hang
from course_lib.teaching.judges.failures import judge_errors
from course_lib.teaching.message_log import LoggedCall
from course_lib.teaching.mistakes import explain
from course_lib.teaching.turns import StuckError


class DeadlineError(Exception):
    """Known by its name, as a kernel that is no rank knows it."""


class MismatchError(Exception):
    pass


TAGS = {"rank": 1, "tag": 3, "peer": 0, "sent": 4}
MISFIT = MismatchError("calls differ\n  rank 0: barrier\n  rank 1: all_reduce")


@pytest.mark.parametrize(
    ("errors", "name", "words"),
    [
        ([DeadlineError(), KeyError("x")], "it-raises", "rank 1 raised KeyError: 'x'"),
        ([MISFIT, DeadlineError()], "ranks-disagree", "rank 0: barrier; rank 1: all_reduce"),
        ([ValueError("one\ntwo"), None], "it-raises", "ValueError: one"),
        ([ValueError("\n\none\ntwo"), None], "it-raises", "ValueError: one"),
        ([DeadlineError(), WrongAnswer("tags-differ", **TAGS)], "tags-differ", "with tag 3 from"),
    ],
)
def test_cause_comes_before_its_consequences(errors, name, words):
    with pytest.raises(WrongAnswer) as wrong:
        judge_errors(errors)
    told = explain(wrong.value)
    assert (wrong.value.mistake, words in told) == (name, True)
    assert "two" not in told


def test_stub_is_not_a_mistake():
    with pytest.raises(NotImplementedError):
        judge_errors([KeyError(), NotImplementedError()])


def test_waiting_alone_is_not_an_error():
    judge_errors([None, DeadlineError()])
    judge_errors([StuckError(), None])


def test_waiting_ranks_are_reported_with_their_calls() -> None:
    summed = LoggedCall("collective", "all_reduce", finished=True)
    waits, receives = LoggedCall("collective", "barrier"), LoggedCall("recv", "recv")
    assert explain(hang([[summed, waits], [summed], []])) == (
        "not every rank of the group made the same collective call: rank 0 waited in its call 2, "
        "barrier; rank 1 had finished 1 call; rank 2 made no call"
    )
    assert explain(hang([[receives], [receives]])) == (
        "ranks wait for messages that are not sent, or that no rank receives: rank 0 waited in its "
        "call 1, recv; rank 1 waited in its call 1, recv"
    )


def test_exception_comes_before_the_checks_conclusion() -> None:
    with pytest.raises(WrongAnswer) as wrong, as_mistake("size-is-fixed: of a group", p=4, last=3):
        judge_errors([None, IndexError("list index out of range")])
    assert wrong.value.mistake == "size-is-fixed"
    told = explain(wrong.value)
    assert told.startswith("rank 1 raised IndexError: list index out of range (on 4 ranks it is")
    with pytest.raises(WrongAnswer) as wrong, as_mistake("size-is-fixed: of a group", p=4, last=3):
        raise WrongAnswer("no-communication: by dist")
    told = explain(wrong.value)
    assert told.startswith("on 4 ranks it is right, but on a group of ranks 1 to 3 it is not.")
    assert told.endswith("(no call of `dist` was seen: the ranks did not exchange anything)")
