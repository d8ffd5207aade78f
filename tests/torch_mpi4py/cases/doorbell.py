"""A rank that waits for a message sleeps until its partner rings."""

from __future__ import annotations

import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from statistics import median
from unittest import mock

import numpy
import torch
import torch.distributed as dist
from torch_mpi4py import MPI, DeadlineError, RevokedError, world
from torch_mpi4py.core import futex
from torch_mpi4py.faults import deadlines
from torch_mpi4py.log.events import log
from torch_mpi4py.meeting import doorbell

from tests.ranks import case
from tests.torch_mpi4py.helpers import equal, raises

WAIT_SECONDS = 1.0
# A rank that spins uses all of WAIT_SECONDS, one that sleeps some hundredths of it.
MOST_CPU_SECONDS = 0.15 * WAIT_SECONDS
MISSED_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 0.05
ROUNDS = 4000
LONG = 4_000_000  # float32, 16 MiB
NOT_TAKEN = 100_000  # enough for a send to wait
BEFORE = 40  # short messages, for which a sender has memory
A_MOMENT = 0.3
MOST_HELPED_SECONDS = 0.04  # it takes 2 to 9 ms; where the sender looks once a slice, 67 and more

_number = itertools.count()


def waits(
    rank: int, size: int, name: str, wait: Callable[[], object], send: Callable[[], object]
) -> None:
    """Rank 0 makes all others wait in ``wait()``, and comes late with ``send()``."""
    comm = world()
    comm.barrier()
    if rank == 0:
        time.sleep(WAIT_SECONDS)
        send()
        return
    began, used = time.monotonic(), time.process_time()
    wait()
    waited, used = time.monotonic() - began, time.process_time() - used
    assert waited > 0.8 * WAIT_SECONDS, (name, waited)
    assert used < MOST_CPU_SECONDS, (name, waited, used)


@case(sizes=(2, 4), seconds=90)
def case_rank_waiting_for_a_message_sleeps(rank: int, size: int) -> None:
    comm, into, data = world(), numpy.zeros(3), numpy.ones(3)
    others = range(1, size)

    def send() -> None:
        for other in others:
            comm.send("late", other)

    def send_buffer() -> None:
        for other in others:
            comm.Send(data, other)

    waits(rank, size, "recv", lambda: comm.recv(source=0), send)
    waits(rank, size, "recv of any", comm.recv, send)
    waits(rank, size, "Recv", lambda: comm.Recv(into, 0), send_buffer)
    waits(rank, size, "probe", lambda: comm.probe(0), send)
    if rank:
        comm.recv(source=0)
    waits(rank, size, "mprobe", lambda: comm.mprobe(0).recv(), send)
    waits(rank, size, "irecv.wait", lambda: comm.irecv(source=0).wait(), send)


@case(sizes=(2, 4), seconds=90)
def case_rank_waiting_for_a_message_in_a_group_sleeps(rank: int, size: int) -> None:
    into, data = torch.zeros(3), torch.ones(3)

    def send() -> None:
        for other in range(1, size):
            dist.send(data, other)

    waits(rank, size, "recv", lambda: dist.recv(into, 0), send)
    waits(rank, size, "recv of any", lambda: dist.recv(into), send)
    waits(rank, size, "irecv.wait", lambda: dist.irecv(into, 0).wait(), send)
    limit = timedelta(seconds=20)
    waits(rank, size, "wait with a limit", lambda: dist.irecv(into, 0).wait(limit), send)
    equal(into, [1.0 if rank else 0.0] * 3)


@case(sizes=(2, 3), seconds=90)
def case_sender_of_an_unreceived_message_sleeps(rank: int, size: int) -> None:
    comm, data, tensor = world(), numpy.ones(NOT_TAKEN, numpy.float32), torch.ones(NOT_TAKEN)
    into, landing = numpy.zeros(NOT_TAKEN, numpy.float32), torch.zeros(NOT_TAKEN)

    def take(receive: Callable[[int], object]) -> Callable[[], None]:
        return lambda: [receive(other) for other in range(1, size)]

    take_object = take(lambda one: comm.recv(source=one))
    take_buffer = take(lambda one: comm.Recv(into, one))
    take_tensor = take(lambda one: dist.recv(landing, one))
    waits(rank, size, "ssend", lambda: comm.ssend(1, 0), take_object)
    waits(rank, size, "send", lambda: comm.send(data, 0), take_object)
    waits(rank, size, "Send", lambda: comm.Send(data, 0), take_buffer)
    waits(rank, size, "isend.wait", lambda: comm.Isend(data, 0).Wait(), take_buffer)
    waits(rank, size, "dist.send", lambda: dist.send(tensor, 0), take_tensor)
    waits(rank, size, "dist.isend", lambda: dist.isend(tensor, 0).wait(), take_tensor)


@contextmanager
def long_slices(first: float = MISSED_SECONDS) -> Iterator[None]:
    """Let nothing but a ring wake a sleeper, after a first slice of so long.

    But a receiver may look again for what was announced before it looked. Open MPI 5 shows a
    message only once whoever has queued something before it has linked it, such as the buffer of
    another message, for which nobody rings; and that rank may have lost its core meanwhile.
    """
    in_kernel = futex.sleep

    def sleep(address: int, seen: int, seconds: float) -> None:
        of_caller = sys._getframe(1).f_locals
        known, until = of_caller.get("last_sent"), time.monotonic() + seconds
        if known is None or of_caller["awaited"].sends:
            in_kernel(address, seen, seconds)
            return
        while (left := until - time.monotonic()) > 0:
            in_kernel(address, seen, min(left, LOOK_AGAIN_SECONDS))
            if log.bell[doorbell._RUNG] != seen or log.bell[doorbell._SENT] == known:
                return

    slices = mock.patch.multiple(
        futex,
        SLICE_SECONDS=MISSED_SECONDS,
        LONG_SLICE_SECONDS=MISSED_SECONDS,
        sleep=sleep,
    )
    with slices, mock.patch.object(doorbell, "FIRST_SLICE_SECONDS", first):
        yield


def dawdle(chance: random.Random) -> None:
    """Take some time, often about as long as a rank spins."""
    kind = chance.random()
    if kind < 0.1:
        time.sleep(2e-4 * chance.random())
    until = time.perf_counter() + 1e-4 * chance.random()
    while kind < 0.6 and time.perf_counter() < until:
        pass


@case(sizes=(2, 3, 4), seconds=120)
def case_no_wakeup_is_missed(rank: int, size: int) -> None:
    """A ball goes round."""
    comm, chance = world(), random.Random(rank)
    before, after = (rank - 1) % size, (rank + 1) % size
    longest = 0.0
    # Two go at once; the send of the third ends when its receiver calls MPI.
    balls = [torch.zeros(count) for count in (1, 100, 800)]
    calls: list[tuple[Callable[[torch.Tensor], object], Callable[[torch.Tensor], object]]] = [
        (lambda ball: dist.recv(ball, before), lambda ball: dist.send(ball, after)),
        (lambda ball: dist.irecv(ball, before).wait(), lambda ball: dist.isend(ball, after).wait()),
        (lambda _: comm.recv(source=before), lambda ball: comm.send(ball, after)),
        (lambda _: comm.irecv(source=before).wait(), lambda ball: comm.ssend(ball, after)),
        (lambda _: comm.mprobe(before).recv(), lambda ball: comm.isend(ball, after).wait()),
        (lambda ball: comm.Recv(ball, before), lambda ball: comm.Send(ball, after)),
        (
            lambda _: (comm.probe(before), comm.recv(source=before)),
            lambda ball: comm.send(ball, after),
        ),
    ]
    with long_slices():
        for number in range(ROUNDS):
            receive, send = calls[number % len(calls)]
            ball = balls[number // len(calls) % len(balls)]
            dawdle(chance)
            began = time.monotonic()
            if rank == 0:
                send(ball)
            receive(ball)
            if rank:
                send(ball)
            longest = max(longest, time.monotonic() - began)
    assert longest < 0.8 * MISSED_SECONDS, longest


@case(sizes=(2, 4), seconds=120)
def case_sender_wakes_when_its_message_is_received(rank: int, size: int) -> None:
    comm, partner, chance = world(), rank ^ 1, random.Random(rank)
    short, eager = torch.zeros(1), torch.zeros(800)  # whose send ends when its receiver calls MPI
    longest = 0.0
    calls: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: comm.ssend(1, partner), lambda: comm.recv(source=partner)),
        (lambda: comm.Ssend(short, partner), lambda: comm.Recv(short, partner)),
        (lambda: comm.issend(1, partner).wait(), lambda: comm.irecv(source=partner).wait()),
        (lambda: comm.Ssend(short, partner), lambda: comm.Irecv(short, partner).Wait()),
        (lambda: comm.Send(eager, partner), lambda: comm.Irecv(eager, partner).Wait()),
        (lambda: dist.send(eager, partner), lambda: dist.recv(eager, partner)),
        (lambda: dist.isend(eager, partner).wait(), lambda: dist.irecv(eager, partner).wait()),
        (lambda: comm.ssend(1, partner), lambda: comm.mprobe(partner).recv()),
        (lambda: comm.Sendrecv(eager, partner, 0, short, partner), lambda: answer(eager, short)),
    ]

    def answer(into: torch.Tensor, data: torch.Tensor) -> None:
        comm.Recv(into, partner)
        comm.Send(data, partner)

    with long_slices():
        for number in range(20 * len(calls)):
            send, receive = calls[number % len(calls)]
            time.sleep(2e-3 * chance.random())  # either may come first
            if (number // len(calls) + rank) % 2:
                began = time.monotonic()
                send()
                longest = max(longest, time.monotonic() - began)
            else:
                receive()
            comm.barrier()  # which rings no bell; the next message would
    assert longest < 0.8 * MISSED_SECONDS, longest


@case(sizes=(2, 3, 4), seconds=120)
def case_long_messages_in_both_directions(rank: int, size: int) -> None:
    comm, chance = world(), random.Random(rank)
    before, after = (rank - 1) % size, (rank + 1) % size
    data, into = torch.full((LONG,), float(rank)), torch.zeros(LONG)
    for number in range(12):
        time.sleep(0.02 * chance.random())
        if number % 3 == 0:
            work = dist.isend(data, after)
            dist.recv(into, before)
            work.wait()
        elif number % 3 == 1:
            comm.Sendrecv(data.numpy(), after, 0, into.numpy(), before)
        else:
            request = comm.isend(data.numpy(), after)
            into[:] = torch.from_numpy(comm.recv(source=before))
            request.wait()
        assert bool((into == before).all())
        into.zero_()


@case(sizes=(2, 4), seconds=120)
def case_message_longer_than_one_spin_does_not_stop(rank: int, size: int) -> None:
    """Neither rank sleeps before the message is through, whichever of the two is late."""
    ball, partner, longest = torch.zeros(LONG), rank ^ 1, 0.0
    with (
        long_slices(),
        mock.patch.multiple(doorbell, _LONGEST_SPIN_SECONDS=1e-3, _LEAST_BYTES_A_SECOND=1e6),
    ):
        for late in (None, 0, 1, None, 0, 1):
            world().barrier()
            if late == rank % 2:
                time.sleep(A_MOMENT)
            began = time.monotonic()
            if rank % 2:
                dist.recv(ball, partner)
            else:
                dist.send(ball, partner)
            longest = max(longest, time.monotonic() - began)
    assert longest < 0.8 * MISSED_SECONDS, longest


@case(sizes=(2, 4), seconds=60)
def case_two_threads_of_a_rank_share_one_doorbell(rank: int, size: int) -> None:
    partner, chance, longest = rank ^ 1, random.Random(rank), [0.0, 0.0]
    errors: list[BaseException] = []

    def play(tag: int) -> None:
        ball = torch.full((1,), float(rank))
        try:
            for _ in range(300):
                dawdle(chance)
                began = time.monotonic()
                if rank & 1:
                    dist.recv(ball, partner, tag=tag)
                dist.send(ball, partner, tag=tag)
                if not rank & 1:
                    dist.recv(ball, partner, tag=tag)
                longest[tag] = max(longest[tag], time.monotonic() - began)
            equal(ball, [float(rank & ~1)])
        except BaseException as error:
            errors.append(error)

    with long_slices():
        threads = [threading.Thread(target=play, args=(tag,)) for tag in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors, errors
    assert max(longest) < 0.8 * MISSED_SECONDS, longest


@case(sizes=(2,), seconds=60)
def case_ranks_exchanging_long_messages_sleep(rank: int, size: int) -> None:
    comm, into = world().Dup(), numpy.zeros(LONG, numpy.float32)
    comm.timeout = WAIT_SECONDS
    world().barrier()
    used = time.process_time()
    with raises((DeadlineError, RevokedError), ""):  # one frees the other
        comm.Recv(into, rank ^ 1)
    assert time.process_time() - used < MOST_CPU_SECONDS
    world().barrier()


@case(sizes=(2, 3), seconds=60)
def case_abandoned_receive_stays_revoked(rank: int, size: int) -> None:
    comm = world().Dup()
    comm.timeout = A_MOMENT
    if rank == 0:
        request = comm.irecv(source=1)
        with raises(DeadlineError, "Timed out after 0.3 s"):
            request.wait()
        for again in (request.wait, request.test):
            with raises(RevokedError, "this operation was abandoned earlier"):
                again()
    world().barrier()


@case(sizes=(2, 3), seconds=90)
def case_sleeping_sender_advances_its_long_message(rank: int, size: int) -> None:
    """Its receiver, who comes before or after it, wakes it; else the bytes move once a slice."""
    comm, data = world(), numpy.ones(LONG, numpy.float32)
    into = numpy.zeros(LONG, numpy.float32)
    took: dict[int, list[float]] = {0: [], 1: []}
    at_once = []
    for _ in range(5):
        comm.barrier()
        began = time.monotonic()
        if rank == 0:
            comm.Send(data, 1)
        elif rank == 1:
            comm.Recv(into, 0)
        at_once.append(time.monotonic() - began)
    most, usual = MOST_HELPED_SECONDS, min
    if rank < 2 and not comm.bells.rings(rank ^ 1):
        # Between hosts 20 to 60 ms; where the sender sleeps on when its connection has room again,
        # 100 to 600, but now and then not.
        most, usual = most + 6 * min(at_once), median
    with long_slices(doorbell.FIRST_SLICE_SECONDS):
        for late in 5 * [0, 1]:
            comm.barrier()
            if rank == late:
                time.sleep(A_MOMENT)
            began = time.monotonic()
            if rank == 0:
                request = comm.Isend(data, 1)
                assert comm.recv(source=1, tag=1) == "taken"  # asleep in a wait for a short one
                request.Wait()
            elif rank == 1:
                comm.Recv(into, 0)
                comm.send("taken", 0, tag=1)
                assert into.all()
                into[:] = 0
            if rank == late:
                took[late].append(time.monotonic() - began)
    assert all(usual(times) < most for times in took.values() if times), (took, at_once)


@case(sizes=(2, 3, 4), seconds=90)
def case_any_source_receive_is_woken(rank: int, size: int) -> None:
    comm, chance = world(), random.Random(rank)
    longest, number = 0.0, torch.zeros(1)
    with long_slices():
        for _ in range(300):
            dawdle(chance)
            if rank:
                dist.send(torch.full((1,), float(rank)), 0)
                comm.send(rank, 0)
                assert comm.recv(source=0) == "next"
                continue
            began = time.monotonic()
            found = [dist.recv(number) for _ in range(1, size)]
            assert sorted(found) == list(range(1, size))
            assert sorted(comm.recv() for _ in range(1, size)) == list(range(1, size))
            longest = max(longest, time.monotonic() - began)
            for other in range(1, size):
                comm.send("next", other)
    assert longest < 0.8 * MISSED_SECONDS, longest


@case(sizes=(2, 4), seconds=60)
def case_receiver_finds_queued_message_before_it_sleeps(rank: int, size: int) -> None:
    """All have been sent, so no sender rings again; a thread of its own does not spin first."""
    comm, took = world(), []
    # No call of MPI tells rank 0 so, which would take them in.
    store = dist.PrefixStore(f"behind {next(_number)}", dist.group.WORLD.get_group_store())

    def receive() -> None:
        began = time.monotonic()
        for other in range(1, size):
            assert comm.recv(source=other, tag=2) == "behind"
        took.append(time.monotonic() - began)

    if rank:
        requests = [comm.isend("before", 0, tag=1) for _ in range(BEFORE)]
        comm.send("behind", 0, tag=2)
        store.set(str(rank), "sent")
        for request in requests:
            request.wait()
        return
    store.wait([str(other) for other in range(1, size)], timedelta(seconds=30))
    with long_slices():
        thread = threading.Thread(target=receive)
        thread.start()
        thread.join()
    assert took, "its thread failed"
    assert took[0] < 0.8 * MISSED_SECONDS, took
    assert all(comm.recv(tag=1) == "before" for _ in range(BEFORE * (size - 1)))


@case(sizes=(2, 3), seconds=60)
def case_deadline_ends_each_wait(rank: int, size: int) -> None:
    into, last = numpy.zeros(3), size - 1
    for call in (
        lambda comm: comm.recv(source=0),
        lambda comm: comm.Recv(into, 0),
        lambda comm: comm.Recv(into),
        lambda comm: comm.probe(0),
        lambda comm: comm.irecv(source=0).wait(),
        lambda comm: comm.ssend(1, 0),
    ):
        comm = world().Dup()
        comm.timeout = A_MOMENT
        if rank == last:
            with raises(DeadlineError, "Timed out after 0.3 s"):
                call(comm)
        world().barrier()
        assert not deadlines.has_abandoned_a_thread()
        if not deadlines.has_ulfm() and rank in (0, last):
            # The rank and its communicator are usable, and what was given up takes no message.
            if rank == 0:
                comm.send("still here", last, tag=5)
                comm.Send(numpy.ones(3), last, tag=6)
            else:
                assert comm.recv(source=0, tag=5) == "still here"
                comm.Recv(into, 0, 6)
                equal(torch.from_numpy(into), [1.0] * 3)


@case(sizes=(2, 3), seconds=60)
def case_interrupt_ends_the_wait(rank: int, size: int) -> None:
    comm = world().Dup()
    world().barrier()
    if rank == size - 1:
        timer = threading.Timer(A_MOMENT, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        began = time.monotonic()
        with raises(KeyboardInterrupt, ""):
            comm.recv(source=0)
        assert time.monotonic() - began < 5.0
        timer.join()
    world().barrier()
    assert comm.Is_revoked() or not deadlines.has_ulfm()


@case(sizes=(2, 3), seconds=60)
def case_expiring_all_waits_ends_a_receive(rank: int, size: int) -> None:
    comm = world().Dup()
    world().barrier()
    timer = threading.Timer(A_MOMENT, deadlines.expire, (world(),))
    timer.start()
    with raises(DeadlineError, "Timed out"):
        comm.recv(source=(rank + 1) % size)
    timer.join()
    world().barrier()


@case(sizes=(2,))
def case_messages_to_and_from_proc_null(rank: int, size: int) -> None:
    comm, nobody = world(), MPI.PROC_NULL
    data = numpy.ones(3)
    comm.Send(data, nobody)
    comm.Isend(data, nobody).Wait()
    comm.send("a", nobody)
    comm.isend("a", nobody).wait()
    comm.issend("a", nobody).wait()
    status = MPI.Status()
    comm.Recv(data, nobody, status=status)
    assert status.Get_source() == nobody
    comm.Irecv(data, nobody).Wait(status)
    assert status.Get_source() == nobody
    assert comm.recv(source=nobody) is None
    assert comm.irecv(source=nobody).wait() is None
    assert comm.sendrecv("a", nobody, source=nobody) is None
    comm.Sendrecv(data, nobody, recvbuf=data, source=nobody)
    comm.Probe(nobody)
    assert (data == 1).all()
    mine = numpy.full(2, float(rank))
    comm.Sendrecv_replace(mine, rank ^ 1, 5, rank ^ 1, 5, status)
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (rank ^ 1, 5, 2)
    assert (mine == rank ^ 1).all()
