"""What kept a function from its result is named by its cause."""

from __future__ import annotations

import pytest

from course_lib.teaching.exercise import WrongAnswer, as_mistake
from course_lib.teaching.judges.failures import judge_errors, judge_failures
from course_lib.teaching.turns import StuckError


class DeadlineError(Exception):
    """Known by its name, as a kernel that is no rank knows it."""


class MismatchError(Exception):
    pass


MISFIT = MismatchError("calls differ\n  rank 0: barrier\n  rank 1: all_reduce")


@pytest.mark.parametrize(
    ("errors", "name", "words"),
    [
        ([DeadlineError(), KeyError("x")], "it-raises", "rank 1 raised KeyError: 'x'"),
        ([MISFIT, DeadlineError()], "ranks-disagree", "rank 0: barrier; rank 1: all_reduce"),
        ([None, DeadlineError()], "it-hangs", "same collective call"),
        ([StuckError(), None], "it-hangs", "same collective call"),
        ([ValueError("one\ntwo"), None], "it-raises", "ValueError: one"),
        ([DeadlineError(), WrongAnswer("known", "told")], "known", "told"),
    ],
)
def test_the_cause_comes_before_its_consequences(errors, name, words):
    with pytest.raises(WrongAnswer) as wrong:
        judge_failures(errors)
    assert (wrong.value.name, words in wrong.value.explanation) == (name, True)
    assert "two" not in wrong.value.explanation


def test_the_stub_is_no_mistake():
    with pytest.raises(NotImplementedError):
        judge_failures([KeyError(), NotImplementedError()])


def test_waiting_is_no_error_of_its_own():
    judge_errors([None, DeadlineError()])
    judge_failures([None, None])


def test_an_exception_comes_before_what_the_check_makes_of_it() -> None:
    with pytest.raises(WrongAnswer) as wrong, as_mistake("size-is-fixed", "not on 3 ranks"):
        judge_errors([None, IndexError("list index out of range")])
    assert wrong.value.name == "size-is-fixed"
    assert str(wrong.value) == "rank 1 raised IndexError: list index out of range (not on 3 ranks)"
    with pytest.raises(WrongAnswer) as wrong, as_mistake("size-is-fixed", "not on 3 ranks"):
        raise WrongAnswer("wrong-sum", "it is 7")
    assert str(wrong.value) == "not on 3 ranks (it is 7)"
