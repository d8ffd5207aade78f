"""Every message of a rank is written down, with whom, and what it held."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from rank_by_rank.lesson_09.message_recording import (
    OutsideTheGroupError,
    observe_messages,
    recorded_messages,
)
from torch_mpi4py.log import peer_boards


def case_messages_and_their_contents(rank, size):
    """Tag, peer, bytes and content are right on both sides, also for any source."""
    with recorded_messages({5: "question"}) as log:
        if rank == 0:
            numbers = torch.zeros(3)
            assert dist.recv(numbers, tag=5) == 1
            dist.send(numbers * 2, 1, tag=6)
        elif rank == 1:
            dist.send(torch.tensor([1.0, 2.0, 3.0]), 0, tag=5)
            dist.recv(torch.zeros(3), 0, tag=6)
    if rank > 1:
        assert log == []
        return
    kinds = ["recv", "send"] if rank == 0 else ["send", "recv"]
    assert [event.kind for event in log] == kinds
    assert [event.label for event in log] == ["question", "tag 6"]
    assert [event.content for event in log] == [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]
    assert all(event.peer == 1 - rank and event.nbytes == 12 for event in log)
    assert [event.any_source for event in log] == [rank == 0, False]
    assert all(event.start <= event.end <= time.perf_counter() for event in log)


def case_a_receive_ends_after_its_send_began(rank, size):
    """The clocks of all ranks on one machine are the same."""
    with recorded_messages() as log:
        if rank == 0:
            dist.recv(torch.zeros(1), 1)
        elif rank == 1:
            board, deadline = peer_boards.board_of(0), time.monotonic() + 20
            while not any(e.kind == "recv" and e.waiting for e in board.open_operations()):
                assert time.monotonic() < deadline, "rank 0 does not receive"
                time.sleep(1e-3)
            dist.send(torch.zeros(1), 0)
    logs = [None] * size
    dist.all_gather_object(logs, log)
    (received,), (sent,) = logs[:2]
    assert received.start < sent.start < received.end


def case_unwaited_request_is_marked(rank, size):
    with recorded_messages() as log:
        if rank < 2:
            works = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(torch.zeros(1), 1 - rank)]
            works[1].wait()
    assert [event.waited for event in log] == ([False, True] if rank < 2 else [])
    if rank < 2:
        works[0].wait()


def case_batch_is_recorded_message_by_message(rank, size):
    """Like those of ``isend`` and ``irecv``, also if one recording is nested in another."""
    group = dist.new_group([0, 1])
    if rank > 1:
        return
    taken = torch.zeros(2)
    with recorded_messages() as outer, recorded_messages(only=group) as log:
        batch = [
            dist.P2POp(dist.isend, torch.tensor([rank, 5.0]), 1 - rank, group, tag=3),
            dist.P2POp(dist.irecv, taken, 1 - rank, group=group, tag=3),
        ]
        with pytest.raises(OutsideTheGroupError, match="batch_isend_irecv"):
            dist.batch_isend_irecv([dist.P2POp(dist.isend, taken, 1 - rank)])
        works = dist.batch_isend_irecv(batch)
        assert not any(event.waited for event in log)
        works[1].wait()
    assert taken.tolist() == [1.0 - rank, 5.0]
    assert all(isinstance(one, dist.P2POp) for one in batch)
    for found in (log, outer):
        assert [event.kind for event in found] == ["send", "recv"]
        assert {event.call for event in found} == {"batch_isend_irecv"}
        assert all(event.finished and event.on_group for event in found)
        assert [(event.peer, event.tag, event.nbytes) for event in found] == [(1 - rank, 3, 8)] * 2
        assert found[0].content == [rank, 5.0]
        assert [event.waited for event in found] == [False, True]
    works[0].wait()
    dist.destroy_process_group(group)


def case_functions_are_restored_after_recording(rank, size):
    names = ("send", "recv", "isend", "irecv", "P2POp", "batch_isend_irecv")
    before = [getattr(dist, name) for name in names]
    with recorded_messages() as log:
        assert all(getattr(dist, name) is not one for name, one in zip(names, before, strict=True))
    assert [getattr(dist, name) for name in names] == before
    assert log == []


def case_message_outside_the_group_raises_unsent(rank, size):
    mine = dist.new_group()
    with recorded_messages(only=mine), pytest.raises(OutsideTheGroupError, match="send"):
        dist.send(torch.ones(1), (rank + 1) % size)
    if rank < 2:
        with recorded_messages(only=mine) as log:
            work = dist.isend(torch.ones(1), 1 - rank, group=mine)
            dist.recv(torch.zeros(1), 1 - rank, group=mine)
            work.wait()
        assert len(log) == 2
    dist.destroy_process_group(mine)


def case_every_rank_gets_all_events(rank, size):
    def talk(group):
        if rank == 0:
            dist.send(torch.tensor([7.0]), 1, group=group)
        elif rank == 1:
            dist.recv(torch.zeros(1), 0, group=group)
        return 10 * rank

    seen = observe_messages(talk)
    assert seen.results == [10 * r for r in range(size)]
    assert seen.logs[0][0].content == seen.logs[1][0].content == [7.0]
    assert not seen.hung


def case_hang_ends_and_leaves_other_groups_intact(rank, size):
    seen = observe_messages(
        lambda group: dist.recv(torch.zeros(1), 1 - rank, group=group) if rank < 2 else None,
        timeout=4,  # the group is made within it, too
    )
    assert seen.hung
    assert seen.stuck().keys() == {0, 1}
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size
