"""Schedules keep the order that data dependencies ask for, and idle as the formulas say."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from course_lib.parallel.pipeline_schedules import (
    Task,
    bubble,
    gpipe,
    in_flight,
    interleaved,
    one_f_one_b,
    times,
    zero_bubble,
)

SIZES = [(1, 1), (1, 4), (2, 1), (2, 8), (4, 2), (4, 4), (4, 16), (8, 8), (8, 3)]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_the_bubble_is_that_of_the_formula(make, stages, micro_batches):
    schedule = make(stages, micro_batches)
    placed = times(schedule, {"F": 1, "B": 2})
    wanted = (stages - 1) / (micro_batches + stages - 1)
    assert bubble(placed) == pytest.approx(wanted, abs=1e-12)
    for tasks in schedule:
        each_once = {Task(kind, m) for kind in "FB" for m in range(micro_batches)}
        assert Counter(tasks) == Counter(each_once)


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_one_f_one_b_holds_no_more_micro_batches_than_stages_follow(stages, micro_batches):
    held = [in_flight(tasks) for tasks in one_f_one_b(stages, micro_batches)]
    assert held == [min(micro_batches, stages - rank) for rank in range(stages)]
    assert {in_flight(tasks) for tasks in gpipe(stages, micro_batches)} == {micro_batches}


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 16)])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_interleaving_divides_the_bubble(ranks, micro_batches, chunks):
    """Each of the stages is a ``chunks``-th as long, so that all models are of one size."""
    schedule = interleaved(ranks, chunks, micro_batches)
    placed = times(schedule, {"F": 1 / chunks, "B": 2 / chunks})
    wanted = (ranks - 1) / (chunks * micro_batches + ranks - 1)
    assert bubble(placed) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 2), (2, 8), (4, 4), (4, 16)])
def test_weights_last_fill_all_but_a_third_of_the_bubble(stages, micro_batches):
    schedule = zero_bubble(stages, micro_batches)
    placed = times(schedule, {"F": 1, "B": 1, "W": 1})
    assert max(one.end for tasks in placed for one in tasks) == 3 * micro_batches + stages - 1
    flushed = times(one_f_one_b(stages, micro_batches), {"F": 1, "B": 2})
    assert max(one.end for tasks in flushed for one in tasks) == 3 * (micro_batches + stages - 1)
    assert [in_flight(tasks) for tasks in schedule] == [
        in_flight(tasks) for tasks in one_f_one_b(stages, micro_batches)
    ]


def test_no_task_begins_before_what_it_needs_is_there():
    placed = times(one_f_one_b(3, 4), {"F": 1, "B": 2}, message_s=0.5)
    ends = {
        (p.task.kind, p.task.micro_batch, r): p.end for r, one in enumerate(placed) for p in one
    }
    for rank, tasks in enumerate(placed):
        for before, after in pairwise(tasks):
            assert before.end <= after.start
        for task, start, _ in tasks:
            before, after = ("F", task.micro_batch, rank - 1), ("B", task.micro_batch, rank + 1)
            needs = before if task.kind == "F" else after
            assert start >= ends.get(needs, -0.5) + 0.5


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="wait for each other: rank 0 at Task"):
        times([[Task("B", 0), Task("F", 0)]], {"F": 1, "B": 1})
    with pytest.raises(ValueError, match="multiple of 4"):
        interleaved(4, 2, 6)
    with pytest.raises(ValueError, match="at least one"):
        gpipe(0, 1)
