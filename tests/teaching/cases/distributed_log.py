"""Calls are written down with their bytes and their group, and whether somebody waits for them."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import observe_distributed, recorded


def case_collectives_and_whether_they_were_waited_for(rank, size):
    group = dist.new_group()
    with recorded(group) as log:
        dist.all_reduce(torch.ones(3), group=group)
        works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for _ in range(2)]
        works[0].wait()
        dist.all_gather([torch.empty(1) for _ in range(size)], torch.ones(1))
    assert [event.call for event in log] == ["all_reduce"] * 3 + ["all_gather"]
    assert {event.kind for event in log} == {"collective"}
    assert [event.nbytes for event in log] == [12, 8, 8, 4]
    assert [event.on_group for event in log] == [True, True, True, False]
    assert [event.waited for event in log] == [True, True, False, True]
    assert all(event.finished for event in log)
    works[1].wait()
    dist.destroy_process_group(group)


def case_phases_of_calls_and_of_their_waits(rank, size):
    group, phase = dist.new_group(), "forward"
    with recorded(group, lambda: phase, ("all_reduce",)) as log:
        dist.all_reduce(torch.ones(3), group=group)
        asked, told, awaited = (
            dist.all_reduce(torch.ones(2), group=group, async_op=True) for _ in range(3)
        )
        future = told.get_future()
        dist.barrier(group)  # which is not written down
        phase = "backward"
        awaited.wait()
        assert asked.is_completed()  # as collectives of a group end in their order
        phase = "after"
        future.wait()
        awaited.wait()
        left = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    assert [event.sent for event in log] == ["forward"] * 4 + ["after"]
    assert [event.waits for event in log] == [
        ["forward"],
        [],
        ["after"],
        ["backward", "after"],
        [],
    ]
    assert [event.waited for event in log] == [True, True, True, True, False]
    assert left.is_completed()
    dist.destroy_process_group(group)


def case_messages_of_a_batch(rank, size):
    """They count as calls, though neither their peers nor their contents are recorded."""
    if rank > 1:
        dist.new_group([0, 1])
        return
    group = dist.new_group([0, 1])
    taken = torch.zeros(2)
    with recorded(group) as log:
        sent = dist.P2POp(dist.isend, torch.tensor([rank, 5.0]), 1 - rank, group)
        works = dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, taken, 1 - rank, group)])
        for work in works:
            work.wait()
    assert taken.tolist() == [1.0 - rank, 5.0]
    assert [event.kind for event in log] == ["send", "recv"]
    assert all(event.on_group and event.waited and event.nbytes == 8 for event in log)
    dist.destroy_process_group(group)


def case_events_are_reported_by_group_rank(rank, size):
    def total(value, group):
        dist.all_reduce(value, group=group)
        return value.item() + dist.get_rank(group)

    ranks = list(range(1, size))
    seen = observe_distributed(total, torch.ones(1), ranks=ranks)
    assert seen.results == [size - 1.0 + r for r in range(size - 1)] + [None]
    assert [len(log) for log in seen.logs] == [1] * (size - 1) + [0]
