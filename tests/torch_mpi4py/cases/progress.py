"""Who runs a collective: its caller, whoever waits for it, or the progress thread.

Without fault tolerance (MPICH) only sums in shared memory run on a thread of the program: in MPI it
could be stuck, and the progress thread can be left behind there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_mpi4py import MPI, emulated_link
from torch_mpi4py.core import crowding
from torch_mpi4py.core.call import Call
from torch_mpi4py.group import progress, work
from torch_mpi4py.group.channel import Channel
from torch_mpi4py.log import events
from torch_mpi4py.meeting import cores

from tests.ranks import case
from tests.torch_mpi4py.helpers import equal, group_of_all

LONG_SECONDS = 60.0  # longer than the groups' deadline of 20 s
MODES = ("patient", "eager")


@contextlib.contextmanager
def threads_are(mode: str, patience: float | None = None, crowded: bool = False) -> Iterator[None]:
    """Have progress threads find cores to spare or none, and wait so long before they begin.

    Other programs take cores if it is ``crowded``, whatever else runs on this machine.
    """
    before = progress.cores_a_rank, progress.others_take_cores, progress._PATIENCE_SECONDS
    progress.cores_a_rank = lambda: 1_000 if mode == "eager" else 1
    progress.others_take_cores = lambda: crowded
    progress._PATIENCE_SECONDS = before[2] if patience is None else patience
    try:
        yield
    finally:
        progress.cores_a_rank, progress.others_take_cores, progress._PATIENCE_SECONDS = before


@contextlib.contextmanager
def group_that_has_summed() -> Iterator[dist.ProcessGroup]:
    """Make a group of all whose shared memory is open, and whose thread looks for itself.

    Each call to look that comes before it does makes it look once more, and so begin what is there.
    """
    with group_of_all() as group:
        start(group, torch.ones(1)).wait()
        deadline = time.monotonic() + 15
        while not group._channels[0]._progress._looks:
            assert time.monotonic() < deadline
            time.sleep(1e-3)
        yield group


@contextlib.contextmanager
def all_run_on_this_thread() -> Iterator[None]:
    """Expect that this thread, and no other, runs the collectives in this block."""
    threads = set()
    usual = Channel._call_mpi

    def call_mpi(channel: Channel, work: work.Collective) -> BaseException | None:
        threads.add(threading.current_thread())
        return usual(channel, work)

    with mock.patch.object(Channel, "_call_mpi", call_mpi):
        yield
    assert threads == {threading.current_thread()}


def start(group: dist.ProcessGroup, tensor: torch.Tensor) -> dist.Work:
    return dist.all_reduce(tensor, group=group, async_op=True)


def sum_of_ranks(size: int) -> int:
    return size * (size - 1) // 2


def case_waiting_caller_runs_the_operation(rank: int, size: int) -> None:
    with threads_are("patient", LONG_SECONDS), group_that_has_summed() as group:
        tensors = [torch.full((3,), rank) for _ in range(10)]
        with all_run_on_this_thread():
            works = [start(group, tensor) for tensor in tensors]
            for work in (works[4], works[2], *works[:4:-1]):
                work.wait()
        assert all(work.is_completed() for work in works)
        for tensor in tensors:
            equal(tensor, [sum_of_ranks(size)] * 3)


def case_synchronous_call_runs_earlier_operations(rank: int, size: int) -> None:
    with threads_are("patient", LONG_SECONDS), group_that_has_summed() as group:
        first, second = torch.full((2,), rank), torch.ones(2)
        with all_run_on_this_thread():
            work = start(group, first)
            dist.all_reduce(second, group=group)
        assert work.is_completed()
        equal(first, [sum_of_ranks(size)] * 2)
        equal(second, [size] * 2)


def case_call_returning_while_abandoned_ends_once(rank: int, size: int) -> None:
    """The watcher gives up a call that is stuck, in the moment in which it comes back."""
    late = work.CollectiveWork()
    late.channel, late.call = Channel(MPI.COMM_SELF, "late", 0, 5.0), Call("barrier")
    late.prepare_to_wait()
    errors: list[BaseException] = []
    second = ValueError("given up")

    def give_up() -> None:
        try:
            late.finish(second)
        except BaseException as error:
            errors.append(error)

    runner, watcher = threading.current_thread(), threading.Thread(target=give_up)

    def stopped(*_: object) -> None:
        if threading.current_thread() is runner:
            watcher.start()
            time.sleep(0.2)  # nothing is lost if the other thread takes longer to come

    with mock.patch.object(work.log, "end", stopped):
        late.finish(None)
        watcher.join(20)
    assert not errors, errors
    assert late.wait(timedelta(seconds=20))
    assert late.error is None
    assert late.channel.close(20)


def ends_by_itself(group: dist.ProcessGroup, rank: int, size: int) -> None:
    """Expect that a sum begins and ends without a wait."""
    tensor = torch.full((3,), rank)
    work = start(group, tensor)
    deadline = time.monotonic() + 15
    while not work.is_completed():
        assert time.monotonic() < deadline, "not begun"
        time.sleep(1e-3)
    equal(tensor, [sum_of_ranks(size)] * 3)


def case_operation_starts_without_a_wait(rank: int, size: int) -> None:
    """It starts by itself because another rank may wait for it."""
    for mode in MODES:
        with threads_are(mode), group_of_all() as group:
            ends_by_itself(group, rank, size)


def case_operation_starts_at_once_where_other_programs_take_the_cores(rank: int, size: int) -> None:
    with threads_are("patient", LONG_SECONDS, crowded=True), group_that_has_summed() as group:
        ends_by_itself(group, rank, size)


@case(mpi="openmpi")  # without ULFM, all but sums go by the progress thread in any case
def case_collective_after_computing_is_run_by_another_thread_where_others_take_the_cores(
    rank: int, size: int
) -> None:
    """So is a long one. A short one that follows another at once is run by its caller."""
    for crowded in (True, False):
        runs_on: list[bool] = []
        run = Channel._call_mpi

        def call_mpi(
            channel: Channel, called: work.Collective, run: Any = run, runs_on: Any = runs_on
        ) -> BaseException | None:
            runs_on.append(threading.current_thread() is threading.main_thread())
            return run(channel, called)

        with (
            threads_are("patient", LONG_SECONDS, crowded=crowded),
            mock.patch.object(crowding, "look"),  # whatever else runs on this machine
            mock.patch.object(crowding, "others_take_the_core", crowded),
            group_of_all() as group,
        ):
            dist.barrier()
            tensor = torch.full((3,), float(rank))
            with mock.patch.object(Channel, "_call_mpi", call_mpi):
                with mock.patch.object(crowding, "_COMPUTES_SECONDS", LONG_SECONDS):
                    dist.barrier(group)
                    dist.all_reduce(torch.ones(crowding.COMPUTES_BYTES // 4), group=group)
                with mock.patch.object(crowding, "_COMPUTES_SECONDS", 0.0):
                    dist.all_reduce(tensor, group=group)
            equal(tensor, [sum_of_ranks(size)] * 3)
            assert runs_on == [True, not crowded, not crowded], (crowded, runs_on)


def case_progress_thread_keeps_to_its_ranks_own_cores_where_others_take_some(
    rank: int, size: int
) -> None:
    if not hasattr(os, "sched_setaffinity"):
        return
    usual = os.sched_getaffinity(0)
    used: list[set[int]] = []
    run = Channel._call_mpi

    def call_mpi(channel: Channel, called: work.Collective) -> BaseException | None:
        used.append(os.sched_getaffinity(0))  # of the thread that runs it
        return run(channel, called)

    with group_of_all() as group, mock.patch.object(Channel, "_call_mpi", call_mpi):
        for crowded in (False, True, True, False):
            with threads_are("eager", crowded=crowded):
                begun = start(group, torch.ones(2))
                deadline = time.monotonic() + 15
                while not begun.is_completed():  # a wait would run it on this thread
                    assert time.monotonic() < deadline
                    time.sleep(1e-3)
    own = cores.own_cores()
    assert used == [usual, own, own, usual], (used, own)
    assert os.sched_getaffinity(0) == usual  # of the program's own thread


def case_ranks_wait_in_different_orders(rank: int, size: int) -> None:
    """A rank that runs its own operation must not hold up those of others."""
    for mode in MODES:
        with threads_are(mode), group_of_all() as one, group_of_all() as other:
            for _ in range(20):
                tensors = [torch.full((3,), rank), torch.ones(2)]
                works = [start(one, tensors[0]), start(other, tensors[1])]
                for work in works if rank % 2 else works[::-1]:
                    work.wait()
                equal(tensors[0], [sum_of_ranks(size)] * 3)
                equal(tensors[1], [size] * 2)


def case_waits_outside_mpi_wake_the_progress_thread(rank: int, size: int) -> None:
    with threads_are("patient", LONG_SECONDS), group_of_all() as group:
        tensors = [torch.full((3,), rank) for _ in range(3)]
        start(group, tensors[0]).wait(timedelta(seconds=15))
        start(group, tensors[1]).get_future().wait()
        start(group, tensors[2]).get_future().then(lambda done: done.value()).wait()
        for tensor in tensors:
            equal(tensor, [sum_of_ranks(size)] * 3)


def case_operation_on_an_emulated_link_starts_at_once(rank: int, size: int) -> None:
    with threads_are("patient", LONG_SECONDS), group_of_all() as group:
        with emulated_link(latency=1e-3, bandwidth=1e9):
            work = start(group, torch.ones(3))
        deadline = time.monotonic() + 15
        while not work.is_completed():
            assert time.monotonic() < deadline, "not begun"
            time.sleep(1e-3)


def case_destroying_a_group_completes_queued_operations(rank: int, size: int) -> None:
    for patience in (None, LONG_SECONDS):
        for mode in MODES:
            with threads_are(mode, patience):
                tensor = torch.full((3,), rank)
                with group_of_all() as group:
                    work = start(group, tensor)
                assert work.is_completed()
                equal(tensor, [sum_of_ranks(size)] * 3)


def case_many_threads_wait_for_operations(rank: int, size: int) -> None:
    for mode in MODES:
        with threads_are(mode), group_of_all() as group:
            for _ in range(5):
                tensors = [torch.full((3,), rank) for _ in range(16)]
                works = [start(group, tensor) for tensor in tensors]
                waiting = [threading.Thread(target=work.wait) for work in reversed(works)]
                for thread in waiting:
                    thread.start()
                for thread in waiting:
                    thread.join(15)
                    assert not thread.is_alive(), mode
                for tensor in tensors:
                    equal(tensor, [sum_of_ranks(size)] * 3)


class Watched(progress.ProgressThread):
    """Notes how long it waits between its looks, in units of its shortest patience."""

    def __init__(self, tasks: deque) -> None:
        self.waits: list[int] = []
        super().__init__("watched", tasks, self._run_first)

    def _run_first(self) -> bool:
        if not self._tasks:
            return False
        self._tasks.popleft()
        return True

    def _next_call(self, patience: int) -> int:
        self.waits.append(patience)
        return super()._next_call(patience)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 15
        while not condition():
            assert time.monotonic() < deadline, self.waits
            time.sleep(1e-3)


def case_idle_progress_thread_polls_less_often(rank: int, size: int) -> None:
    tasks: deque = deque()
    thread = Watched(tasks)
    thread.look()
    asleep = progress._QUIET_LOOKS + 1
    thread.until(lambda: len(thread.waits) == asleep and not thread._looks)
    assert thread.waits[:6] == [1, 2, 4, 8, 8, 8]
    tasks.append(object())
    thread.look()
    thread.until(lambda: not tasks)
    thread.until(lambda: not thread._looks)
    # Asleep; it lies there; it still does, so it is run; from then on as in the beginning.
    assert thread.waits[asleep - 1 : asleep + 5] == [8, 1, 1, 2, 4, 8]
    assert thread.stop(15)


def case_ddp_backward_runs_its_buckets(rank: int, size: int) -> None:
    """DDP waits in C++; the end of backward runs what the thread has not begun."""
    torch.manual_seed(0)
    with threads_are("patient", LONG_SECONDS), group_that_has_summed() as group:
        layers = [torch.nn.Linear(4, 4, bias=False) for _ in range(4)]
        ddp = DistributedDataParallel(
            torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=1e-5
        )
        serial = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(4)])
        serial.load_state_dict(ddp.module.state_dict())
        for _ in range(3):
            ddp.zero_grad()
            serial.zero_grad()
            batch = torch.arange(4.0 * size).reshape(size, 4)
            ddp(batch[rank : rank + 1]).sum().backward()
            (serial(batch).sum() / size).backward()
            for mine, wanted in zip(ddp.parameters(), serial.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, wanted.grad)


def case_event_starts_when_its_operation_runs(rank: int, size: int) -> None:
    """The log gives the time in MPI, not in the queue, whichever thread runs it."""
    with threads_are("patient", LONG_SECONDS), group_that_has_summed() as group:
        number = events.mark()
        work = start(group, torch.ones(3))
        before = time.perf_counter()
        time.sleep(0.01)
        work.wait()
        (event,) = [e for e in events.events(number) if e.kind == "all_reduce"]
        assert event.start >= before + 0.01
