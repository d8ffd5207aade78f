"""Functions that take turns: who goes on, who is stuck, and that nobody outlives the end."""

from __future__ import annotations

import pytest

from course_lib.teaching.turns import StuckError, Turns


def test_turns_follow_place_then_number():
    order: list[tuple[int, str]] = []

    def function(place: int):
        order.append((turns.running, "begins"))
        turns.wait(lambda: True, place)
        order.append((turns.running, "ends"))
        return place

    with Turns([lambda place=place: function(place) for place in (2, 1, 2)]) as turns:
        assert turns.play() == []
    assert order == [*((n, "begins") for n in range(3)), (1, "ends"), (0, "ends"), (2, "ends")]
    assert turns.results == [2, 1, 2]
    assert turns.running is None


def test_deadlocked_task_is_named_and_its_finally_runs():
    ended = []

    def waits():
        try:
            turns.wait(lambda: False)
        except Exception:
            ended.append("caught as if it were the learner's own error")
        finally:
            ended.append("ended")

    with Turns([waits, lambda: 7]) as turns:
        assert turns.play() == [0]
        assert ended == []
    assert ended == ["ended"]
    assert isinstance(turns.errors[0], StuckError)
    assert turns.results == [None, 7]


def test_nested_turns():
    def outer():
        with Turns([lambda: 1, lambda: 2]) as inner:
            inner.play()
        turns.wait(lambda: True)
        return inner.results

    with Turns([outer, outer]) as turns:
        turns.play()
    assert turns.results == [[1, 2], [1, 2]]


def test_base_exception_ends_everything():
    ended = []

    def waits():
        try:
            turns.wait(lambda: False)
        finally:
            ended.append(True)

    def interrupted():
        raise KeyboardInterrupt

    turns = Turns([waits, interrupted, lambda: ended.append("never begins")])
    with pytest.raises(KeyboardInterrupt), turns:
        turns.play()
    assert ended == [True]
