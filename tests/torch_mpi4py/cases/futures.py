"""Futures and handles: each completes, whatever is raised, and each wait ends when it may."""

from __future__ import annotations

import ctypes
import functools
import gc
import operator
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
from torch.futures import Future, collect_all, wait_all
from torch_mpi4py import DeadlineError
from torch_mpi4py.core import buffers
from torch_mpi4py.core.base_comm import base
from torch_mpi4py.faults import deadlines
from torch_mpi4py.group.store_barrier import meet

from tests.torch_mpi4py.helpers import equal, group_of_all, raises, sizes, still_works

BRIEF = timedelta(seconds=0.05)
LIMIT_SECONDS = 15.0


def summed(elements: int = 1, group: dist.ProcessGroup | None = None) -> Future:
    """Return the future of an all_reduce of ones."""
    return dist.all_reduce(torch.ones(elements), group=group, async_op=True).get_future()


def ended(function: Callable, *args: object) -> object:
    """Return ``function(*args)``, or raise if it takes longer than anything here may."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(function(*args))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive(), "it waits without end"
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


# --- callbacks that wait ------------------------------------------------------------------


def case_callback_waits_for_another_callback(rank: int, size: int) -> None:
    first, second = summed(), summed()
    outer = first.then(lambda _: second.then(lambda done: done.value()[0] * 2).wait())
    equal(ended(outer.wait), [2.0 * size])


def case_callback_waits_in_torch_for_another_callback(rank: int, size: int) -> None:
    first, second = summed(), summed()

    def inner() -> Future:
        return second.then(lambda done: done.value()[0] * 2)

    for wait in (
        lambda: wait_all([inner()])[0],
        lambda: collect_all([inner(), inner()]).wait()[1].value(),
        lambda: wait_all([inner().then(lambda done: done.value())])[0],
    ):
        outer = first.then(lambda _, wait=wait: wait())
        equal(ended(outer.wait), [2.0 * size])


def case_callback_waits_for_callback_attached_later(rank: int, size: int) -> None:
    first, second, third = summed(), summed(), summed()
    order, later, attached = [], [], threading.Event()

    def waits(_: Future) -> int:
        assert attached.wait(LIMIT_SECONDS)
        order.append("waits")
        return later[-1].wait()

    outer = first.then(waits)
    after = outer.then(lambda _: order.append("after"))  # can't run before
    later.append(second.then(lambda _: order.append("between")))
    later.append(third.then(lambda _: order.append("last") or 7))
    attached.set()
    assert ended(outer.wait) == 7
    ended(after.wait)
    assert order == ["waits", "between", "last", "after"]


def case_callback_waits_in_torch_for_callback_attached_later(rank: int, size: int) -> None:
    """Nothing in Python learns of it, so it ends only after the group's time-out."""
    with group_of_all() as group:
        group.set_timeout(timedelta(seconds=2))
        first, second = summed(group=group), summed(group=group)
        later, attached = [], threading.Event()

        def waits(_: Future) -> int:
            assert attached.wait(LIMIT_SECONDS)
            return wait_all(later)[0]

        outer = first.then(waits)
        later.append(second.then(lambda _: 7))
        attached.set()
        assert ended(outer.wait) == 7
        assert ended(summed(group=group).then(lambda _: 8).wait) == 8
        still_works(group)


def case_callback_waiting_for_itself_raises(rank: int, size: int) -> None:
    own, attached = [], threading.Event()

    def waits(_: Future) -> object:
        assert attached.wait(LIMIT_SECONDS)
        return own[-1].wait()

    for attach in (lambda: own[0], lambda: own[0].then(lambda done: done.value())):
        own[:] = [summed().then(waits)]
        own.append(attach())
        attached.set()
        with raises(RuntimeError, "only once the callback has returned"):
            ended(own[0].wait)
        with raises(RuntimeError, "only once the callback has returned"):
            ended(own[1].wait)
        attached.clear()
    assert ended(summed().then(lambda _: 3).wait) == 3


def case_callbacks_of_two_groups_wait_for_each_other(rank: int, size: int) -> None:
    with group_of_all() as one, group_of_all() as other:
        of_one, of_other = summed(group=one), summed(group=other)
        for mine, theirs in ((of_one, of_other), (of_other, of_one)):

            def inner(_: Future, mine: Future = mine) -> int:
                return wait_all([mine.then(lambda _: 5)])[0]

            def outer(_: Future, theirs: Future = theirs, inner: Callable = inner) -> int:
                return wait_all([theirs.then(inner)])[0]

            assert ended(mine.then(outer).wait) == 5


def case_callbacks_at_two_depths_wait_for_each_other(rank: int, size: int) -> None:
    first, second = summed(), summed()

    def innermost(_: Future) -> torch.Tensor:
        return wait_all([second.then(lambda done: done.value()[0])])[0]

    def outer(_: Future) -> torch.Tensor:
        return wait_all([summed().then(innermost)])[0]

    equal(ended(first.then(outer).wait), [size])


def case_callbacks_wait_for_handles(rank: int, size: int) -> None:
    work = dist.all_reduce(torch.ones(2), async_op=True)

    def waits(_: Future) -> bool:
        return work.wait() and work.wait(timedelta(seconds=LIMIT_SECONDS))

    assert ended(summed().then(waits).wait)


# --- callbacks that communicate -----------------------------------------------------------


def case_callbacks_communicate_in_the_same_order_on_all_ranks(rank: int, size: int) -> None:
    """Whether the program attaches another callback sooner or later than a callback does."""
    for early in (0, 1):
        assert attached_by_both(rank % 2 == early) == ["by the callback", "by the program"]
    still_works()


def attached_by_both(program_first: bool) -> list[str]:
    """Attach a callback in another one and one in the program; return who came first."""
    first, second, third = summed(), summed(), summed()
    attached, called = threading.Event(), threading.Event()
    order: list[str] = []

    def communicates(elements: int, name: str) -> Callable:
        def callback(_: Future) -> None:
            dist.all_reduce(torch.ones(elements))
            order.append(name)

        return callback

    def outer(_: Future) -> Future:
        if program_first:
            assert attached.wait(LIMIT_SECONDS)
        child = second.then(communicates(2, "by the callback"))
        called.set()
        return child

    outer_child = first.then(outer)
    if not program_first:
        assert called.wait(LIMIT_SECONDS)
    child = third.then(communicates(3, "by the program"))
    attached.set()
    ended(outer_child.wait)
    ended(child.wait)
    return order


@sizes(2, 3, 4)
def case_late_message_does_not_delay_callbacks(rank: int, size: int) -> None:
    received, work = torch.zeros(1), None
    if rank == 1:
        work = dist.irecv(received, 0)
        late = work.get_future().then(lambda done: done.value()[0] + 1)
    equal(ended(summed().then(lambda done: done.value()[0]).wait), [size])
    if rank == 0:
        dist.recv(torch.zeros(1), 1)  # it has come so far without the message
        dist.send(torch.full((1,), 4.0), 1)
    elif rank == 1:
        dist.send(torch.zeros(1), 0)
        equal(ended(late.wait), [5.0])


@sizes(2, 3, 4)
def case_message_and_collective_callbacks_both_communicate(rank: int, size: int) -> None:
    """The collectives that they issue don't meet, whichever callback runs first."""
    pair = dist.new_group([0, 1])
    if rank < 2:
        peer, begun = 1 - rank, (threading.Event(), threading.Event())
        received = dist.irecv(torch.zeros(1), peer, group=pair).get_future()

        def communicates(elements: int, after: int) -> Callable:
            def callback(_: Future) -> torch.Tensor:
                begun[1 - after].set()
                assert rank != after or begun[after].wait(LIMIT_SECONDS)
                total = torch.ones(elements)
                dist.all_reduce(total, group=pair)
                return total

            return callback

        of_message = received.then(communicates(2, after=1))
        of_collective = summed(group=pair).then(communicates(3, after=0))
        dist.send(torch.ones(1), peer, group=pair)
        equal(ended(of_message.wait), [2.0] * 2)
        equal(ended(of_collective.wait), [2.0] * 3)
        dist.destroy_process_group(pair)
    still_works()


@sizes(2, 3, 4)
def case_two_threads_exchange_texts_in_opposite_orders(rank: int, size: int) -> None:
    """As callbacks of a message and of a collective do, when each makes its communicator."""
    store = dist.distributed_c10d._get_default_store()
    meetings = [
        meet(store, f"exchange {number}", base(), size, LIMIT_SECONDS, "exchange", range(size))
        for number in (0, 1)
    ]
    dist.barrier()

    def exchanges(number: int, seconds: float) -> set[str]:
        time.sleep(seconds)
        return set(meetings[number].exchange(f"{number} of {rank}"))

    with ThreadPoolExecutor() as threads:
        first, second = [
            threads.submit(exchanges, number, 0.0 if (number + rank) % 2 == 0 else 0.2)
            for number in (0, 1)
        ]
        assert first.result() == {f"0 of {one}" for one in range(size)}
        assert second.result() == {f"1 of {one}" for one in range(size)}


@sizes(2, 3)
def case_exchange_ends_if_a_rank_that_has_come_says_nothing(rank: int, size: int) -> None:
    store, everybody = dist.distributed_c10d._get_default_store(), range(size)
    meeting = meet(store, "silence", base(), size, LIMIT_SECONDS, "new_group", everybody)
    assert meeting is not None
    if rank > 0:
        over = meeting.terms._replace(deadline=deadlines.clock())
        with raises(DeadlineError, "new_group: Timed out", f"of {size} ranks arrived"):
            meeting._replace(terms=over).exchange("a word")
    still_works()


@sizes(2, 3)
def case_exchange_that_a_rank_has_given_up_fails_on_all(rank: int, size: int) -> None:
    """One that went on would wait in MPI for the rank that gave up."""
    store, everybody = dist.distributed_c10d._get_default_store(), range(size)
    meeting = meet(store, "given up", base(), size, LIMIT_SECONDS, "new_group", everybody)
    assert meeting is not None
    gives_up = rank == size - 1
    if gives_up:
        meeting = meeting._replace(terms=meeting.terms._replace(deadline=deadlines.clock()))
    else:
        dist.barrier()  # until that rank has given up
    with raises(DeadlineError, "new_group: Timed out", f"only 1 of {size} ranks arrived"):
        meeting.exchange("a word")
    if gives_up:
        dist.barrier()
    still_works()


@sizes(2, 3, 4)
def case_message_callbacks_wait_for_each_other(rank: int, size: int) -> None:
    if rank > 1:
        return
    tensors = [torch.zeros(1) for _ in range(3)]
    works = [dist.irecv(tensor, 1 - rank, tag=tag) for tag, tensor in enumerate(tensors)]
    futures = [work.get_future() for work in works]

    def waits(_: Future) -> list[float]:
        return wait_all([future.then(lambda done: done.value()[0].item()) for future in futures])

    waiting = [future.then(waits) for future in futures]
    for tag in reversed(range(3)):
        dist.send(torch.full((1,), float(tag)), 1 - rank, tag=tag)
    for future in waiting:
        assert ended(future.wait) == [0.0, 1.0, 2.0]


# --- every future completes ---------------------------------------------------------------


def case_callback_may_raise_any_exception(rank: int, size: int) -> None:
    for error in (KeyError("own"), SystemExit(3), KeyboardInterrupt()):

        def fails(_: Future, error: BaseException = error) -> None:
            raise error

        future = summed()
        child, last = future.then(fails), future.then(lambda _: 4)
        with raises((KeyError, RuntimeError), *map(str, error.args)):
            ended(child.wait)
        assert ended(last.wait) == 4


def case_future_completed_by_the_program(rank: int, size: int) -> None:
    future, go = summed(), threading.Event()
    child = future.then(lambda _: go.wait(LIMIT_SECONDS))
    last = future.then(lambda _: 4)
    child.set_result(1)
    go.set()
    assert ended(last.wait) == 4
    assert child.wait() == 1
    own = summed()
    own.done() or own.wait()
    assert ended(own.then(lambda _: 4).wait) == 4


@sizes(2, 3, 4)
def case_undeliverable_message_completes_its_future(rank: int, size: int) -> None:
    """As where the GPU has no memory left."""
    if rank == 0:
        dist.recv(torch.zeros(1), 1)
        dist.send(torch.ones(4), 1)
    elif rank == 1:
        full = torch.OutOfMemoryError("no memory left")
        with mock.patch.object(buffers.Staging, "_copy", side_effect=full):
            work = dist.irecv(torch.zeros(4, 2)[:, 0], 0)
            dist.send(torch.ones(1, device="cpu"), 0)
            for wait in (work.get_future().wait, work.wait, work.wait):
                with raises(RuntimeError, "no memory left"):
                    ended(wait)
        assert work.is_completed()
        assert not work.is_success()
    dist.barrier()
    still_works()


# --- waits with a time-out of their own ---------------------------------------------------


@sizes(2, 3, 4)
def case_collective_can_be_polled(rank: int, size: int) -> None:
    """As with gloo, a wait that stops early ends neither the collective nor the group."""
    with group_of_all() as group:
        total = torch.ones(3)
        if rank == 0:
            for peer in range(1, size):
                dist.recv(torch.zeros(1), peer, group=group)
        work = dist.all_reduce(total, group=group, async_op=True)
        if rank:
            for _ in range(5):
                with raises(DeadlineError, "Timed out", "0.05 s", "wait again"):
                    work.wait(BRIEF)
                assert not work.is_completed()
                assert work.exception() is None
            dist.send(torch.ones(1), 0, group=group)
        assert work.wait(timedelta(seconds=LIMIT_SECONDS))
        assert work.wait()
        equal(total, [size] * 3)
        still_works(group)


@sizes(2, 3, 4)
def case_messages_can_be_polled(rank: int, size: int) -> None:
    large = 2_000_000
    with group_of_all() as group:
        if rank < 2:
            peer = 1 - rank
            received = torch.zeros(large)
            receive = dist.irecv(received, peer, tag=1, group=group)
            send = dist.isend(torch.full((large,), 3.0), peer, tag=2, group=group)
            for work in (receive, send):
                for _ in range(3):
                    with raises(DeadlineError, "Timed out", "0.05 s", "wait again"):
                        work.wait(BRIEF)
            told = dist.isend(torch.ones(1), peer, tag=3, group=group)  # small: it needs no receive
            dist.recv(torch.zeros(1), peer, tag=3, group=group)  # both have polled
            told.wait()
            far = dist.irecv(torch.zeros(large), peer, tag=2, group=group)
            near = dist.isend(torch.full((large,), 4.0), peer, tag=1, group=group)
            for work in (receive, send, far, near):
                assert work.wait(timedelta(seconds=LIMIT_SECONDS))
                assert work.wait()
            equal(received, torch.full((large,), 4.0))
        still_works(group)


@sizes(2, 3, 4)
def case_wait_beside_a_future_has_its_own_timeout(rank: int, size: int) -> None:
    """The future's thread is in MPI for the same message."""
    if rank == 1:
        received = torch.zeros(1)
        work = dist.irecv(received, 0)
        future = work.get_future()
        for _ in range(3):
            with raises(DeadlineError, "Timed out", "0.05 s"):
                work.wait(BRIEF)
        assert not future.done()
        assert work.get_future() is future
        dist.send(torch.ones(1), 0)
        assert work.wait(timedelta(seconds=LIMIT_SECONDS))
        equal(future.wait()[0], [6.0])
    elif rank == 0:
        dist.recv(torch.zeros(1), 1)
        dist.send(torch.full((1,), 6.0), 1)
    still_works()


@sizes(2, 3, 4)
def case_many_threads_wait_for_one_handle(rank: int, size: int) -> None:
    if rank == 1:
        work = dist.irecv(torch.zeros(1), 0)
        outcomes: list[object] = []

        def wait(*timeout: timedelta) -> None:
            try:
                outcomes.append(work.wait(*timeout))
            except DeadlineError:
                outcomes.append("late")

        threads = [
            threading.Thread(target=wait, args=arguments, daemon=True)
            for arguments in ((), (), (timedelta(seconds=LIMIT_SECONDS),), (BRIEF,))
        ]
        for thread in threads:
            thread.start()
        threads[-1].join(LIMIT_SECONDS)
        assert outcomes == ["late"]
        assert isinstance(work.get_future(), Future)  # takes no lock for as long as they wait
        dist.send(torch.ones(1), 0)
        for thread in threads:
            thread.join(LIMIT_SECONDS)
        assert sorted(outcomes, key=str) == [True, True, True, "late"]
    elif rank == 0:
        dist.recv(torch.zeros(1), 1)
        dist.send(torch.ones(1), 1)
    still_works()


@sizes(2, 3, 4)
def case_coalescing_block_can_be_polled(rank: int, size: int) -> None:
    with group_of_all() as group:
        group._start_coalescing(torch.device("cpu"))
        tensors = [torch.ones(2) for _ in range(50)]
        if rank == 0:
            for peer in range(1, size):
                dist.recv(torch.zeros(1), peer)
        works = [dist.broadcast(each, 0, group=group, async_op=True) for each in tensors]
        together = group._end_coalescing(torch.device("cpu"))
        assert len(together.result()) == len(works)
        if rank and size == 2:
            with raises(DeadlineError, "Timed out", within=50 * BRIEF.total_seconds()):
                together.wait(BRIEF)
        if rank:
            dist.send(torch.ones(1), 0)
        assert together.wait()
        still_works(group)


# --- coalescing blocks --------------------------------------------------------------------


def case_error_ends_a_coalescing_block(rank: int, size: int) -> None:
    device = torch.device("cpu")
    with group_of_all() as group:
        issued = torch.ones(3)
        with (
            raises(KeyError, "own"),
            dist.distributed_c10d._coalescing_manager(group, device, async_ops=True),
        ):
            dist.broadcast(issued, 0, group=group, async_op=True)
            raise KeyError("own")
        dist.distributed_c10d._world.pg_coalesce_state.pop(group, None)  # torch leaves it there
        works = [dist.broadcast(torch.ones(3), 0, group=group, async_op=True) for _ in range(20)]
        if size > 1 and rank < 2:
            works.append(dist.isend(torch.ones(1), 1 - rank, group=group))
            works.append(dist.irecv(torch.ones(1), 1 - rank, group=group))
        for work in works:
            work.wait()
        gone = [weakref.ref(work) for work in works]
        del work, works
        gc.collect()
        # The threads that move collectives and messages on may each remember the last they saw.
        assert sum(reference() is not None for reference in gone) <= 2
        still_works(group)


def case_coalescing_block_belongs_to_one_thread(rank: int, size: int) -> None:
    device = torch.device("cpu")
    with group_of_all() as group:
        group._start_coalescing(device)
        mine, others = torch.ones(2), torch.ones(3)

        def call() -> dist.Work | None:
            dist.broadcast(others, 0, group=group, async_op=True).wait()
            return group.barrier(dist.BarrierOptions())  # synchronous

        ended(call)
        dist.broadcast(mine, 0, group=group, async_op=True)
        together = group._end_coalescing(device)
        assert [tensor.numel() for tensor in together.result()] == [2]
        assert together.wait()
        still_works(group)


# --- threads of C++ -----------------------------------------------------------------------


def case_thread_without_python_frames_can_call_the_group(rank: int, size: int) -> None:
    """As autograd's threads for devices do."""
    group = dist.group.WORLD
    total = torch.ones(3)
    calls = [functools.partial(group.allreduce, [total])]
    received = torch.zeros(2)
    if size > 1 and rank < 2:
        calls.append(functools.partial(group.send, [torch.full((2,), 5.0)], 1 - rank))
        calls.append(functools.partial(group.recv, [received], 1 - rank))
    works = [on_thread_of_c(call) for call in calls]
    for work in works:
        work.wait()
    equal(total, [size] * 3)
    if size > 1 and rank < 2:
        equal(received, [5.0] * 2)
    still_works()


def on_thread_of_c(call: Callable) -> object:
    """Return what ``call`` returns on a thread on which Python runs nothing else."""
    results: list[object] = []
    # Both are written in C, so they have no frame: map calls the first and extend keeps the value.
    collect = functools.partial(results.extend, map(operator.call, [call]))
    c = ctypes.CDLL(None)
    start = ctypes.CFUNCTYPE(None)(collect)
    thread = ctypes.c_ulong()
    assert c.pthread_create(ctypes.byref(thread), None, start, None) == 0
    assert c.pthread_join(thread, None) == 0
    (result,) = results
    return result
