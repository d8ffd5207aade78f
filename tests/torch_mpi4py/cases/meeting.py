"""The ranks of a host meet in shared memory before a collective, and sleep while they wait."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy
import psutil
import torch
import torch.distributed as dist
from torch_mpi4py import (
    CommunicationError,
    DeadlineError,
    MismatchError,
    RevokedError,
    renew_world,
    world,
)
from torch_mpi4py.board.event_board import Board
from torch_mpi4py.board.observing import looks_asleep
from torch_mpi4py.core import crowding, futex
from torch_mpi4py.faults import deadlines
from torch_mpi4py.log.peer_boards import board_of
from torch_mpi4py.meeting import arrivals, cores, spinning
from torch_mpi4py.meeting.remote_arrivals import RemoteArrivals

from tests.ranks import case
from tests.torch_mpi4py.helpers import equal, group_of_all, raises, still_works

WAIT_SECONDS = 1.0
# What a waiting rank may use of a core. Measured: 0.02, and 0.045 where a thread waits for it. One
# that spins uses all of a core that is free.
ON_LINUX = sys.platform == "linux"  # elsewhere there is no futex, so it looks every millisecond
MOST_OF_A_CORE = 0.04 if ON_LINUX else 0.3
MOST_ASYNCHRONOUS = 2.5 * MOST_OF_A_CORE
LEAST_SLICE = futex.SLICE_SECONDS if ON_LINUX else futex._NAP_SECONDS
ASLEEP_WITHIN = 12.0
MISSED_SECONDS = 10.0
MEETINGS, MEETINGS_OF_COMM = 5000, 1000
GROUP_SECONDS = 30.0
SLACK = 8.0  # as of a machine that stalls
FREED = (DeadlineError, RevokedError)  # whichever rank is the first


class Signs(NamedTuple):
    """A waiting rank as another rank sees it: its open calls, its looks asleep, its CPU seconds."""

    calls: list[int]
    looks: int
    cpu: float


def signs_of(board: Board) -> Signs:
    calls = [call.number for call in board.open_operations()]
    return Signs(calls, looks_asleep(board), cpu_seconds(board.pid))


def cpu_seconds(pid: int) -> float:
    """Return how long all threads of a process on this host have run on a core."""
    if ON_LINUX:  # man 3 clock_getcpuclockid; psutil's times are 10 ms coarse
        return time.clock_gettime(~pid << 3 | 2)
    return sum(psutil.Process(pid).cpu_times()[:2])


def stolen_seconds() -> float:
    """Return how long the host of a virtual machine has kept its cores from it, all together."""
    return getattr(psutil.cpu_times(), "steal", 0.0)


def wrong_sleep(waiting: Sequence[int], most: float) -> str:
    """Watch ranks that wait for this one; return "" if they sleep, else what is wrong.

    Under Open MPI a rank that spins in a call yields its core, so on a busy machine its share of a
    core may be as small as a sleeper's. Its board shows whether it sleeps, and how often it wakes.

    Linux books time for which a virtual machine stood still on threads that sleep nearly always: up
    to twice as much as it calls stolen (21 ms for 10, 52 ms for 30). So that much is allowed.
    """
    boards = [board for rank in waiting if (board := board_of(rank)) is not None]
    assert len(boards) == len(waiting)
    end = time.monotonic() + ASLEEP_WITHIN
    while True:
        before, began = [*map(signs_of, boards)], time.monotonic()
        stolen = stolen_seconds()
        if began > end:
            return f"not asleep: {before}"
        if not all(signs.looks for signs in before):
            time.sleep(0.001)
            continue
        time.sleep(WAIT_SECONDS)
        after, waited = [*map(signs_of, boards)], time.monotonic() - began
        if [signs.calls for signs in before] == [signs.calls for signs in after]:
            break  # otherwise one was still in the call before
    stolen = stolen_seconds() - stolen
    most_looks = waited / LEAST_SLICE + len(waiting)
    for old, new in zip(before, after, strict=True):
        too_often = new.looks - old.looks > most_looks
        if not new.looks or too_often or new.cpu - old.cpu > most * waited + 2 * stolen:
            ran = f"{old} became {new} in {waited:.2f} s, {stolen:.2f} s stolen"
            return f"not asleep all the time: {ran}"
    return ""


def sleep_until_rank_0_comes(
    call: Callable[[], object], waiting: Sequence[int], most: float = MOST_OF_A_CORE
) -> None:
    """Raise AssertionError unless the ranks ``waiting`` sleep in ``call`` until rank 0 comes."""
    wrong = wrong_sleep(waiting, most) if dist.get_rank() == 0 else ""
    call()
    assert not wrong, wrong


@case(sizes=(2, 4))
def case_waiting_rank_yields_its_core(rank: int, size: int) -> None:
    ones = torch.ones(3)
    for call in (
        lambda: dist.all_reduce(ones),
        lambda: dist.broadcast(ones, src=0),
        dist.barrier,
    ):
        dist.barrier()
        sleep_until_rank_0_comes(call, range(1, size))


@case(sizes=(2, 4))
def case_rank_waiting_for_a_handle_yields_its_core(rank: int, size: int) -> None:
    def call() -> None:
        dist.all_reduce(torch.ones(3), async_op=True).wait()

    dist.barrier()
    sleep_until_rank_0_comes(call, range(1, size), MOST_ASYNCHRONOUS)


def longest_call(calls: int, rank: int, call: Callable[[int], None]) -> float:
    """Return the seconds of the longest of many calls, each begun at a moment drawn by chance."""
    usual = futex.SLICE_SECONDS, futex.LONG_SLICE_SECONDS
    chance, longest = random.Random(rank), 0.0
    try:
        # A wake-up that was missed costs a whole slice.
        futex.SLICE_SECONDS = futex.LONG_SLICE_SECONDS = MISSED_SECONDS
        for number in range(calls):
            delay = chance.random()
            if delay < 0.02:
                time.sleep(0.01 * delay)
            for _ in range(int(100 * delay)):
                pass
            began = time.monotonic()
            call(number)
            longest = max(longest, time.monotonic() - began)
    finally:
        futex.SLICE_SECONDS, futex.LONG_SLICE_SECONDS = usual
    return longest


@case(sizes=(2, 3, 4), seconds=90)
def case_no_rank_oversleeps(rank: int, size: int) -> None:
    data = torch.zeros(1)

    def call(number: int) -> None:
        dist.broadcast(data, src=0)  # rank 0 does not wait for the others to leave

    longest = longest_call(MEETINGS, rank, call)
    assert longest < MISSED_SECONDS, longest


def await_looks(waiting: Board | None, looks: int) -> None:
    """Return once a rank has woken so often in one call, not still in the one before."""
    assert waiting is not None
    first = signs_of(waiting)
    while (now := signs_of(waiting)).looks < first.looks + looks or now.calls != first.calls:
        if now.calls != first.calls or now.looks < first.looks:
            first = now
        time.sleep(0.001)


def longest_slice(rank: int, call: Callable[[], object]) -> float:
    """Return for how long rank 1 sleeps in one go at most, when it is long in ``call``.

    Its slices grow so fast here that it needs few of them.
    """
    slices = [0.0]

    def sleep(address: int, seen: int, seconds: float) -> None:
        slices.append(seconds)
        usual(address, seen, seconds)

    usual = futex.sleep
    dist.barrier()
    with mock.patch.multiple(futex, sleep=sleep, _PART=10.0):
        if rank == 0:
            await_looks(board_of(1), 14)  # the first slices are shorter, by half each
        call()
    return max(slices)


@case(sizes=(2,))
def case_rank_sleeps_longer_in_a_long_collective_unless_it_has_messages_to_move(
    rank: int, size: int
) -> None:
    one = torch.ones(1)

    def message() -> None:
        dist.send(one, 1) if rank == 0 else dist.recv(one, 0)

    for call in (lambda: dist.all_reduce(one), lambda: dist.barrier()):
        longest = longest_slice(rank, call)
        assert rank == 0 or longest == futex.LONGEST_SLICE_SECONDS, longest
    longest = longest_slice(rank, message)
    assert rank == 0 or longest == futex.LONG_SLICE_SECONDS, "what it waits for may be under way"
    handle = None if rank == 0 else dist.irecv(torch.ones(1), 0, tag=7)
    for call in (lambda: dist.all_reduce(one), message):
        longest = longest_slice(rank, call)
        assert rank == 0 or longest == futex.LONG_SLICE_SECONDS, longest
    if handle is None:
        dist.send(one, 1, tag=7)
    else:
        handle.wait()


@case(sizes=(2, 3))
def case_mismatched_calls_are_detected_at_any_call_number(rank: int, size: int) -> None:
    for number in range(1, 6):
        with raises(MismatchError, f"rank {size - 1}: all_reduce(SUM) of 9"):
            dist.all_reduce(torch.ones(9 if rank == size - 1 else number))
        total = torch.ones(number)
        dist.all_reduce(total)
        equal(total, [float(size)] * number)


@case(sizes=(2, 3))
def case_call_number_wraps_to_zero(rank: int, size: int) -> None:
    meeting = dist.group.WORLD._channels[0]._arrivals
    meeting.meetings = arrivals._NUMBER - 3
    dist.barrier()
    for number in range(8):
        total = torch.full((2,), float(number))
        dist.all_reduce(total)
        equal(total, [float(size * number)] * 2)


@contextlib.contextmanager
def no_free_slot(here: bool) -> Iterator[None]:
    """Take all free slots of this rank, if ``here``, and give them back."""
    taken = arrivals._free_slots.copy()
    if here:
        arrivals._free_slots.clear()
    try:
        yield
    finally:
        arrivals._free_slots = deque(sorted({*taken, *arrivals._free_slots}))


@case(sizes=(2, 3, 4))
def case_rank_without_a_free_slot(rank: int, size: int) -> None:
    with no_free_slot(here=rank == 0), group_of_all() as group:
        assert isinstance(group._channels[0]._arrivals, RemoteArrivals)
        still_works(group)
        with raises(MismatchError):
            dist.all_reduce(torch.ones(1 + (rank == size - 1)), group=group)
        still_works(group)


@case(sizes=(2, 4))
def case_waiting_rank_without_a_slot_yields_its_core(rank: int, size: int) -> None:
    ones = torch.ones(3)
    with no_free_slot(here=rank == 0), group_of_all() as group:
        for call, most in (
            (lambda: dist.all_reduce(ones, group=group), MOST_OF_A_CORE),
            (lambda: dist.all_reduce(ones, group=group, async_op=True).wait(), MOST_ASYNCHRONOUS),
        ):
            dist.barrier()
            sleep_until_rank_0_comes(call, range(1, size), most)


@case(sizes=(2, 3))
def case_rank_asleep_without_a_slot_is_freed_at_its_deadline(rank: int, size: int) -> None:
    with no_free_slot(here=rank == 0):
        group = dist.new_group(timeout=timedelta(seconds=1))
    if rank:
        with raises(FREED, within=SLACK):
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    still_works()


@case(sizes=(2, 3))
def case_slots_are_released(rank: int, size: int) -> None:
    free = len(arrivals._free_slots)
    for _ in range(5):
        with group_of_all() as group:
            assert len(arrivals._free_slots) == free - 1
            still_works(group)
    assert len(arrivals._free_slots) == free


def send_and_sleep_in(comm: Any, rank: int, barrier: Callable[[], object]) -> None:
    """Have rank 0 wait in a barrier while its long message to rank 1 is under way."""
    data = numpy.full(4_000_000, rank, numpy.float64)
    if rank == 0:
        request = comm.Isend(data, 1)
        barrier()
        request.wait()
    else:
        if rank == 1:
            comm.Recv(data, 0)
            assert not data.any()
        barrier()


@case(sizes=(2, 3))
def case_message_progresses_while_its_sender_sleeps(rank: int, size: int) -> None:
    send_and_sleep_in(world(), rank, dist.barrier)


@case(sizes=(2, 3))
def case_group_left_by_a_rank_ends_before_its_deadline(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=GROUP_SECONDS))
    if rank:
        with raises(CommunicationError, within=0.8 * GROUP_SECONDS):
            dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    still_works()


def group_with_a_patient_last_rank(rank: int, size: int) -> Any:
    """Return a group whose ranks have met before; all but the last wait for a second only."""
    group = dist.new_group(timeout=timedelta(seconds=GROUP_SECONDS))
    dist.all_reduce(torch.ones(1), group=group)
    if rank < size - 1:
        cast(Any, group).set_timeout(timedelta(seconds=1))
    return group


@case(sizes=(2, 3, 4))
def case_late_rank_does_not_complete_what_the_others_have_given_up(rank: int, size: int) -> None:
    for count in (1, 500_000):
        for call in (dist.all_reduce, lambda ones, group: dist.broadcast(ones, 0, group)):
            group = group_with_a_patient_last_rank(rank, size)
            if rank < size - 1:
                with raises(FREED, within=SLACK):
                    call(torch.ones(count), group=group)
            dist.barrier()
            if rank == size - 1:
                with raises(RevokedError, within=SLACK):
                    call(torch.ones(count), group=group)
            dist.destroy_process_group(group)
    still_works()


@case(sizes=(2, 3), seconds=90)
def case_ranks_agree_on_whether_a_call_ended_in_time(rank: int, size: int) -> None:
    """The last rank comes shortly before or after the others' time is over."""
    for delay in numpy.linspace(0.98, 1.2, 12):
        group = group_with_a_patient_last_rank(rank, size)
        if rank == size - 1:
            time.sleep(delay)
        try:
            dist.all_reduce(torch.ones(1), group=group)
            ended = True
        except CommunicationError:
            ended = False
        everyone = [False] * size
        dist.all_gather_object(everyone, ended)
        assert len(set(everyone)) == 1, (delay, everyone)
        dist.destroy_process_group(group)


@case(sizes=(2, 3))
def case_sum_to_which_all_have_come_ends_well_on_a_rank_without_a_core(
    rank: int, size: int
) -> None:
    """Its time is over before it goes on; on the other ranks the sum has ended."""

    def meet(*arguments: Any) -> bool:
        equal_calls = usual(*arguments)
        time.sleep(1.5)  # the watcher looks, as the thread would wait for a core
        return equal_calls

    usual = arrivals.Arrivals.meet
    group = group_with_a_patient_last_rank(rank, size)
    ones = torch.ones(3)
    with mock.patch.object(arrivals.Arrivals, "meet", meet if rank == 0 else usual):
        dist.all_reduce(ones, group=group)
    equal(ones, torch.full((3,), float(size)))
    dist.barrier()
    still_works(group)
    dist.destroy_process_group(group)


@case(sizes=(2, 3))
def case_rank_that_is_slow_to_leave_is_not_taken_for_stuck_in_mpi(rank: int, size: int) -> None:
    """It leaves by itself, and needs a core for that."""

    def meet(*arguments: Any) -> bool:
        try:
            return usual(*arguments)
        except CommunicationError:
            time.sleep(0.5)  # the watcher looks several times
            raise

    usual = arrivals.Arrivals.meet
    group = group_with_a_patient_last_rank(rank, size)
    if rank < size - 1:
        with mock.patch.object(arrivals.Arrivals, "meet", meet), raises(FREED, within=SLACK):
            dist.all_reduce(torch.ones(3), group=group)
        assert not cast(Any, group)._channels[0]._abandoned
    dist.barrier()
    dist.destroy_process_group(group)
    still_works()


@case(sizes=(2, 3))
def case_failed_group_stays_failed_after_close(rank: int, size: int) -> None:
    """The others must not wait to learn why it was closed."""
    with group_of_all() as group:
        meeting = group._channels[0]._arrivals
        meeting.leave()
        meeting.close()
        assert meeting._words[meeting._first + arrivals._GONE] & arrivals._WHY == arrivals._FAILED
        dist.barrier()
    still_works()


# --- the guarded communicator -------------------------------------------------------------------


@case(sizes=(2, 3, 4))
def case_rank_waiting_in_comm_yields_its_core(rank: int, size: int) -> None:
    comm = renew_world()
    mine, total = numpy.ones(3), numpy.zeros(3)
    for call in (
        lambda: comm.allreduce(rank),
        lambda: comm.Allreduce(mine, total),
        comm.Barrier,
        lambda: comm.bcast(rank, root=0),
        lambda: comm.Bcast(total),
        lambda: comm.scatter([None] * size, 0),
        lambda: comm.alltoall([None] * size),
        lambda: comm.Dup().Free(),
    ):
        comm.Barrier()
        sleep_until_rank_0_comes(call, range(1, size))


@case(sizes=(2, 3))
def case_root_of_a_comm_gather_yields_its_core(rank: int, size: int) -> None:
    comm = renew_world()
    mine, all_of_them = numpy.full(2, float(rank)), numpy.zeros((size, 2))
    for call in (
        lambda: comm.gather(rank, root=1),
        lambda: comm.reduce(rank, root=1),
        lambda: comm.Gather(mine, all_of_them if rank == 1 else None, 1),
        lambda: comm.Reduce(mine, all_of_them[0] if rank == 1 else None, root=1),
    ):
        comm.Barrier()
        sleep_until_rank_0_comes(call, waiting=[1])


@case(sizes=(2, 3))
def case_independent_comm_calls_do_not_wait_for_other_ranks(rank: int, size: int) -> None:
    """Also many calls ahead of the others."""
    comm, ahead = renew_world(), 50
    for number in range(ahead):
        if rank and number == 0:
            comm.recv(source=0)
        assert comm.bcast(number if rank == 0 else None, root=0) == number
    if rank == 0:
        for other in range(1, size):
            comm.send("all is sent", other)
    for number in range(ahead):
        if rank == 0 and number == 0:
            for other in range(1, size):
                comm.recv(source=other)
        gathered = comm.gather(number * rank, root=0)
        assert gathered == ([number * other for other in range(size)] if rank == 0 else None)
    if rank:
        comm.send("all is given", 0)
    assert comm.allreduce(1) == size


@case(sizes=(2, 3, 4), seconds=90)
def case_no_rank_oversleeps_in_comm(rank: int, size: int) -> None:
    comm = renew_world()

    def call(number: int) -> None:
        root = number // 7 % size
        assert comm.bcast(number if rank == root else None, root) == number
        if number % 3 == 0:
            assert comm.reduce(1, root=root) == (size if rank == root else None)
        if number % 11 == 0:
            comm.barrier()

    longest = longest_call(MEETINGS_OF_COMM, rank, call)
    assert longest < MISSED_SECONDS, longest


@case(sizes=(2, 3))
def case_comm_collective_missed_by_a_rank_ends_in_time(rank: int, size: int) -> None:
    """Under any MPI the ranks are free afterwards, none is left in MPI, and all go on."""
    before = deadlines.has_abandoned_a_thread()
    for call in (
        lambda comm: comm.allreduce(rank),
        lambda comm: comm.Barrier(),
        lambda comm: comm.bcast(rank, root=0),
        lambda comm: comm.Split(0, rank),
    ):
        comm = renew_world()
        comm.timeout = WAIT_SECONDS
        if rank:
            with raises(FREED, "rank 0: ", ": waiting in ", within=WAIT_SECONDS + SLACK):
                call(comm)
            for again in (call, lambda comm: comm.send(rank, 0)):
                with raises(CommunicationError, within=0.5 * WAIT_SECONDS):
                    again(comm)
        dist.barrier()
    assert deadlines.has_abandoned_a_thread() == before
    assert renew_world().allgather(rank) == list(range(size))


@case(sizes=(2, 3, 4))
def case_late_rank_fails_at_once_where_the_others_have_given_up_comm(rank: int, size: int) -> None:
    last = size - 1
    for call in (
        lambda comm: comm.allreduce(rank),
        lambda comm: comm.Barrier(),
        lambda comm: comm.bcast(rank, root=last),
        lambda comm: comm.Split(0, rank),
    ):
        comm = renew_world()
        comm.allreduce(rank)  # they have met before
        if rank < last:
            comm.timeout = WAIT_SECONDS
            with raises(FREED, within=WAIT_SECONDS + SLACK):
                call(comm)
        dist.barrier()
        if rank == last:
            with raises(RevokedError, within=0.5 * comm.timeout):
                call(comm)
            with raises(CommunicationError, within=0.5 * comm.timeout):
                comm.send(rank, 0)
    assert renew_world().allgather(rank) == list(range(size))


@case(sizes=(2, 3))
def case_interrupting_one_rank_in_comm_frees_all(rank: int, size: int) -> None:
    before = deadlines.has_abandoned_a_thread()
    comm = renew_world()
    if rank == 1:
        alarm = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        alarm.start()
        with raises(KeyboardInterrupt, within=0.5 + SLACK):
            comm.allreduce(rank)
    elif rank:
        with raises(RevokedError, within=0.5 + SLACK):
            comm.allreduce(rank)
    dist.barrier()
    assert deadlines.has_abandoned_a_thread() == before
    assert renew_world().allgather(rank) == list(range(size))


@case(sizes=(2, 3))
def case_comm_works_after_a_rank_lost_count(rank: int, size: int) -> None:
    comm = renew_world()
    comm.timeout = 0.5 * MISSED_SECONDS
    if rank == 0:
        with raises(TypeError):
            comm.allreduce(op=1, wrong=2)
    for _ in range(3):
        assert comm.allreduce(1) == size
        assert comm.bcast(rank, root=size - 1) == size - 1
    child = comm.Dup()
    assert child.arrivals is not None
    assert child.allreduce(1) == size
    child.Free()


@case(sizes=(2, 3))
def case_invalid_comm_call_raises_at_once(rank: int, size: int) -> None:
    comm = renew_world()
    if rank == 0:
        with raises(TypeError, within=0.5 * WAIT_SECONDS):
            comm.allreduce()
    dist.barrier()


@case(sizes=(2, 3))
def case_rank_asleep_in_comm_can_be_freed_early(rank: int, size: int) -> None:
    """As the checks do, under any MPI; a rank whose turn comes later gets the report, too."""
    before = deadlines.has_abandoned_a_thread()
    comm = renew_world()
    child = comm.Dup()
    if rank:
        alarm = threading.Timer(0.35 + 0.15 * rank, deadlines.expire, (comm,))
        alarm.start()
        with raises(FREED, ": waiting in ", within=0.5 * child.timeout):
            child.allreduce(rank)
        alarm.join()
    assert comm.allreduce(1) == size
    assert deadlines.has_abandoned_a_thread() == before


@case(sizes=(2, 3))
def case_comm_slots_are_released(rank: int, size: int) -> None:
    comm = renew_world()
    free = len(arrivals._free_slots)
    for _ in range(5):
        child = comm.Dup()
        assert len(arrivals._free_slots) == free - 1
        assert child.allreduce(1) == size
        child.Free()
        comm = renew_world()
    assert len(arrivals._free_slots) == free


@case(sizes=(2, 3))
def case_comm_on_a_rank_without_a_free_slot(rank: int, size: int) -> None:
    comm = renew_world()
    with no_free_slot(here=rank == 0):
        child = comm.Dup()
        assert child.arrivals is None
        assert child.bcast(child.allreduce(1), root=0) == size
    child.Free()


@case(sizes=(2, 3))
def case_comm_message_progresses_while_its_sender_sleeps(rank: int, size: int) -> None:
    comm = renew_world()
    send_and_sleep_in(comm, rank, comm.Barrier)


@case(mpi="openmpi")
def case_a_core_is_shared_by_the_ranks_that_may_run_on_it(rank: int, size: int) -> None:
    if not hasattr(os, "sched_setaffinity"):
        return
    usable = sorted(before := os.sched_getaffinity(0))

    def divide() -> tuple[float, list[set[int]]]:
        dist.barrier()
        cores._shared.cache_clear()
        parts: list[set[int]] = [set()] * size
        dist.all_gather_object(parts, cores.own_cores())
        return cores.cores_a_rank(), parts

    try:
        assert crowding.ranks_leave == min(len(usable) / size, 1)
        a_rank, own = divide()
        assert a_rank == len(usable) / size
        users = [sum(core in part for part in own) for core in usable]
        assert set().union(*own) == set(usable)
        if size <= len(usable):
            assert users == [1] * len(usable)
        else:  # one each, and none has two users more than another
            assert all(len(part) == 1 for part in own)
            assert max(users) - min(users) <= 1
        os.sched_setaffinity(0, usable[:1])
        assert divide() == (1 / size, [{usable[0]}] * size)
        mine = usable[rank % len(usable)]
        os.sched_setaffinity(0, [mine])
        a_rank, own = divide()
        assert a_rank == 1 / len(range(rank % len(usable), size, len(usable)))
        assert own[rank] == {mine}
    finally:
        os.sched_setaffinity(0, before)
        divide()


@case(sizes=(2, 4), mpi="openmpi")
def case_waiting_ranks_yield_only_if_they_share_a_core(rank: int, size: int) -> None:
    usual = spinning.cores_a_rank, os.sched_yield
    yields: list[int] = []
    os.sched_yield = lambda: yields.append(rank)
    try:
        for a_rank, yielded in ((1.0, False), (0.5, True)):
            spinning.cores_a_rank = lambda a_rank=a_rank: a_rank
            dist.barrier()
            yields.clear()
            sleep_until_rank_0_comes(lambda: dist.all_reduce(torch.ones(3)), range(1, size))
            assert rank == 0 or bool(yields) == yielded
    finally:
        spinning.cores_a_rank, os.sched_yield = usual
