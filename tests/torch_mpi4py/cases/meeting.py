"""The ranks of a host meet in shared memory before a collective, and sleep while they wait."""

from __future__ import annotations

import random
import time
from collections import deque
from datetime import timedelta

import numpy
import torch
import torch.distributed as dist
from torch_mpi4py import CommunicationError, MismatchError, arrivals, world

from tests.ranks import case
from tests.torch_mpi4py.helpers import equal, group_of_all, raises, still_works

WAIT_SECONDS = 1.0
# A rank that spins uses all of WAIT_SECONDS, one that sleeps some hundredths of it.
MOST_CPU_SECONDS = 0.3 * WAIT_SECONDS
MISSED_SECONDS = 10.0
MEETINGS = 5000
GROUP_SECONDS = 30.0


@case(sizes=(2, 4))
def case_a_rank_that_waits_leaves_its_core_to_others(rank: int, size: int) -> None:
    ones = torch.ones(3)
    for call in (
        lambda: dist.all_reduce(ones),
        lambda: dist.broadcast(ones, src=0),
        lambda: dist.all_reduce(ones, async_op=True).wait(),
        dist.barrier,
    ):
        dist.barrier()
        if rank == 0:
            time.sleep(WAIT_SECONDS)
        began, used = time.monotonic(), time.process_time()
        call()
        waited, used = time.monotonic() - began, time.process_time() - used
        if rank:
            assert waited > 0.5 * WAIT_SECONDS, waited
            assert used < MOST_CPU_SECONDS, (waited, used)


@case(sizes=(2, 3, 4), seconds=90)
def case_no_rank_oversleeps(rank: int, size: int) -> None:
    usual = arrivals._SLICE_SECONDS, arrivals._LONG_SLICE_SECONDS
    chance = random.Random(rank)
    longest, number = 0.0, torch.zeros(1)
    try:
        # A wake-up that was missed costs a whole slice.
        arrivals._SLICE_SECONDS = arrivals._LONG_SLICE_SECONDS = MISSED_SECONDS
        for _ in range(MEETINGS):
            delay = chance.random()
            if delay < 0.02:
                time.sleep(0.01 * delay)
            for _ in range(int(100 * delay)):
                pass
            began = time.monotonic()
            dist.broadcast(number, src=0)  # rank 0 does not wait for the others to leave
            longest = max(longest, time.monotonic() - began)
    finally:
        arrivals._SLICE_SECONDS, arrivals._LONG_SLICE_SECONDS = usual
    assert longest < MISSED_SECONDS, longest


@case(sizes=(2, 3))
def case_calls_that_do_not_match_are_told_apart_in_any_turn(rank: int, size: int) -> None:
    for number in range(1, 6):
        with raises(MismatchError, f"rank {size - 1}: all_reduce(SUM) of 9"):
            dist.all_reduce(torch.ones(9 if rank == size - 1 else number))
        total = torch.ones(number)
        dist.all_reduce(total)
        equal(total, [float(size)] * number)


@case(sizes=(2, 3))
def case_the_number_of_a_call_starts_again_at_zero(rank: int, size: int) -> None:
    meeting = dist.group.WORLD._channels[0]._arrivals
    meeting._number = arrivals._NUMBER - 3
    dist.barrier()
    for number in range(8):
        total = torch.full((2,), float(number))
        dist.all_reduce(total)
        equal(total, [float(size * number)] * 2)


@case(sizes=(2, 3))
def case_a_rank_without_a_free_slot(rank: int, size: int) -> None:
    taken = arrivals._free_slots.copy()
    if rank == 0:
        arrivals._free_slots.clear()
    try:
        with group_of_all() as group:
            assert group._channels[0]._arrivals is None
            still_works(group)
            with raises(MismatchError):
                dist.all_reduce(torch.ones(1 + rank), group=group)
            still_works(group)
    finally:
        arrivals._free_slots = deque(sorted({*taken, *arrivals._free_slots}))


@case(sizes=(2, 3))
def case_slots_are_given_back(rank: int, size: int) -> None:
    free = len(arrivals._free_slots)
    for _ in range(5):
        with group_of_all() as group:
            assert len(arrivals._free_slots) == free - 1
            still_works(group)
    assert len(arrivals._free_slots) == free


@case(sizes=(2, 3))
def case_a_message_moves_on_while_its_sender_sleeps(rank: int, size: int) -> None:
    comm = world()
    data = numpy.full(4_000_000, rank, numpy.float64)
    if rank == 0:
        request = comm.Isend(data, 1)
        dist.barrier()
        request.wait()
    else:
        if rank == 1:
            comm.Recv(data, 0)
            assert not data.any()
        dist.barrier()


@case(sizes=(2, 3))
def case_a_group_that_a_rank_has_left_ends_long_before_its_deadline(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=GROUP_SECONDS))
    if rank:
        with raises(CommunicationError, within=0.8 * GROUP_SECONDS):
            dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    still_works()


@case(sizes=(2, 3))
def case_a_group_that_failed_stays_failed_when_it_is_closed(rank: int, size: int) -> None:
    """The others are not to wait for the news of why it was closed."""
    with group_of_all() as group:
        meeting = group._channels[0]._arrivals
        meeting.leave()
        meeting.close()
        assert meeting._words[meeting._first + arrivals._GONE] == arrivals._FAILED
        dist.barrier()
    still_works()
