"""Schedules keep the order that data dependencies ask for, and idle as the formulas say."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from rank_by_rank.lesson_10.pipeline_schedules import (
    Task,
    bubble,
    gpipe,
    in_flight,
    interleaved,
    one_f_one_b,
    seconds_of,
    times,
    zero_bubble,
)
from torch.distributed.pipelining import ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

SIZES = [(1, 1), (1, 4), (2, 1), (2, 8), (4, 2), (4, 4), (4, 16), (8, 8), (8, 3)]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_bubble_equals_the_formula(make, stages, micro_batches):
    schedule = make(stages, micro_batches)
    placed = times(schedule, {"F": 1, "B": 2})
    wanted = (stages - 1) / (micro_batches + stages - 1)
    assert bubble(placed) == pytest.approx(wanted, abs=1e-12)
    for tasks in schedule:
        each_once = {Task(kind, m) for kind in "FB" for m in range(micro_batches)}
        assert Counter(tasks) == Counter(each_once)


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_one_f_one_b_holds_one_micro_batch_per_remaining_stage(stages, micro_batches):
    held = [in_flight(tasks) for tasks in one_f_one_b(stages, micro_batches)]
    assert held == [min(micro_batches, stages - rank) for rank in range(stages)]
    assert {in_flight(tasks) for tasks in gpipe(stages, micro_batches)} == {micro_batches}


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 16)])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_interleaving_divides_the_bubble(ranks, micro_batches, chunks):
    """Each stage is ``chunks`` times shorter, so all models have the same size."""
    schedule = interleaved(ranks, chunks, micro_batches)
    placed = times(schedule, {"F": 1 / chunks, "B": 2 / chunks})
    wanted = (ranks - 1) / (chunks * micro_batches + ranks - 1)
    assert bubble(placed) == pytest.approx(wanted, abs=1e-12)


ENOUGH = [(1, 1), (2, 2), (2, 8), (3, 5), (4, 4), (4, 8), (4, 16), (8, 8), (8, 32)]  # M >= K


@pytest.mark.parametrize(("stages", "micro_batches"), ENOUGH)
def test_deferred_weights_fill_two_thirds_of_the_bubble(stages, micro_batches):
    placed = times(zero_bubble(stages, micro_batches), {"F": 1, "B": 1, "W": 1})
    assert seconds_of(placed) == 3 * micro_batches + stages - 1
    flushed = times(one_f_one_b(stages, micro_batches), {"F": 1, "B": 2})
    assert seconds_of(flushed) == 3 * (micro_batches + stages - 1)


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES + ENOUGH)
def test_zero_bubble_holds_one_micro_batch_per_stage(stages, micro_batches):
    schedule = zero_bubble(stages, micro_batches)
    assert [in_flight(tasks) for tasks in schedule] == [min(stages, micro_batches)] * stages
    for rank, tasks in enumerate(schedule):
        assert Counter(tasks) == Counter(Task(k, m) for k in "FBW" for m in range(micro_batches))
        apart = [task for task in tasks if task.kind != "W"]
        assert apart == one_f_one_b(stages, micro_batches)[rank]
        for m in range(micro_batches):
            assert tasks.index(Task("B", m)) < tasks.index(Task("W", m))


@pytest.mark.parametrize(
    ("micro_batches", "units", "first", "last"),
    [
        (8, 27, "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2", "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1"),
        (16, 51, "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2", "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1"),
    ],
)
def test_zero_bubble_equals_the_published_schedule(micro_batches, units, first, last):
    """Figure 3 of the paper, above."""
    schedule = zero_bubble(4, micro_batches)
    orders = [" ".join(f"{task.kind}{task.micro_batch}" for task in one) for one in schedule]
    assert orders[0].startswith(first)
    assert orders[3].startswith(last)
    assert seconds_of(times(schedule, {"F": 1, "B": 1, "W": 1})) == units


def test_weights_at_the_very_end_hold_all_micro_batches():
    tasks = [Task(kind, m) for m in range(8) for kind in "FB"] + [Task("W", m) for m in range(8)]
    assert in_flight(tasks) == 8
    assert in_flight([task for task in tasks if task.kind != "W"]) == 1


def order_of_torch(cls: type, ranks: int, chunks: int, micro_batches: int) -> list[list[Task]]:
    """Return what a schedule of torch.distributed.pipelining has each rank do.

    Without its constructor, which wants stages on a device and a process group.
    """
    schedule = object.__new__(cls)
    schedule.pp_group_size, schedule.n_local_stages = ranks, chunks
    schedule._n_microbatches = micro_batches
    schedule.microbatches_per_round = ranks
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}
    found = []
    for rank in range(ranks):
        actions = filter(None, schedule._calculate_single_rank_operations(rank))  # None: it waits
        found.append([Task(kinds[kind.name], m, stage // ranks) for stage, kind, m, _ in actions])
    return found


@pytest.mark.parametrize(("stages", "micro_batches"), ENOUGH)
def test_zero_bubble_equals_torch(stages, micro_batches):
    found = order_of_torch(ScheduleInterleavedZeroBubble, stages, 1, micro_batches)
    assert found == zero_bubble(stages, micro_batches)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 16)])
@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaved_equals_torch(ranks, micro_batches, chunks):
    found = order_of_torch(ScheduleInterleaved1F1B, ranks, chunks, micro_batches)
    assert found == interleaved(ranks, chunks, micro_batches)


def test_no_task_begins_before_its_inputs_arrive():
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


def test_schedules_reject_bad_arguments():
    with pytest.raises(ValueError, match="wait for each other: rank 0 at Task"):
        times([[Task("B", 0), Task("F", 0)]], {"F": 1, "B": 1})
    with pytest.raises(ValueError, match="multiple of 4"):
        interleaved(4, 2, 6)
    with pytest.raises(ValueError, match="at least one"):
        gpipe(0, 1)
