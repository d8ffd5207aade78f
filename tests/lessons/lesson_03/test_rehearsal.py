"""Rehearsed messages arrive as real ones do; a deadlock is found at once and for certain."""

from __future__ import annotations

import contextlib
import contextvars
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from rank_by_rank.lesson_03.own_globals import OnRanks
from rank_by_rank.lesson_03.rehearsal import (
    CollectiveError,
    StuckError,
    UnrehearsedError,
    rehearse,
)


@pytest.fixture
def press_stop() -> Iterator[Callable[[], None]]:
    """A function after which a kernel's stop button is pressed, as soon as it has returned."""
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.005)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


def ring_pass(comm, array):
    received = np.empty_like(array)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(array, dest=right, recvbuf=received, source=left)
    return received


@pytest.mark.parametrize("p", [1, 2, 5, 64])
def test_ring_pass_takes_one_step(p):
    seen = rehearse(ring_pass, [(np.array([rank, 7]),) for rank in range(p)])
    assert [result.tolist() for result in seen.results] == [[(r - 1) % p, 7] for r in range(p)]
    assert seen.errors == [None] * p
    assert seen.steps == 1
    assert [seen.bytes_sent(rank) for rank in range(p)] == [16] * p
    assert sorted((m.source, m.dest) for m in seen.messages) == [(r, (r + 1) % p) for r in range(p)]


def test_steps_are_the_longest_chain_of_messages():
    def to_root(comm, array):
        if comm.rank:
            comm.Send(array, dest=0)
        else:
            for source in range(1, comm.size):
                comm.Recv(array, source=source)

    assert rehearse(to_root, [(np.zeros(1),) for _ in range(6)]).steps == 5

    def all_posted_at_once(comm, array):
        if comm.rank:
            return comm.Send(array, dest=0)
        rooms = [np.empty_like(array) for _ in range(1, comm.size)]
        requests = [comm.Irecv(room, source=r) for r, room in enumerate(rooms, 1)]
        return [request.wait() for request in requests]

    assert rehearse(all_posted_at_once, [(np.zeros(1),) for _ in range(6)]).steps == 5


def test_all_ranks_sending_first_deadlock():
    def send_first(comm, array):
        comm.Send(array, dest=(comm.rank + 1) % comm.size)
        comm.Recv(array, source=(comm.rank - 1) % comm.size)

    began = time.monotonic()
    seen = rehearse(send_first, [(np.zeros(1),) for _ in range(4)])
    assert time.monotonic() - began < 30  # no deadline is waited for: it is found, not timed
    assert all(isinstance(error, StuckError) for error in seen.errors)
    assert {rank: calls[0].call for rank, calls in seen.stuck.items()} == dict.fromkeys(
        range(4), "Send"
    )


def test_rehearsal_ends_after_an_error_on_one_rank():
    def fails(comm, array):
        if comm.rank == 1:
            raise KeyError("mine")
        comm.Recv(array, source=1)

    seen = rehearse(fails, [(np.zeros(1),) for _ in range(3)])
    assert [type(error) for error in seen.errors] == [StuckError, KeyError, StuckError]


def test_messages_keep_their_order_and_match_by_tag():
    def talk(comm, _):
        if comm.rank == 0:
            for tag, word in ((1, "one"), (2, "two"), (1, "three")):
                comm.isend(word, dest=1, tag=tag)
            return None
        return [comm.recv(source=0, tag=2), comm.recv(source=0), comm.recv()]

    assert rehearse(talk, [(0,), (0,)]).results[1] == ["two", "one", "three"]


def test_changed_send_buffer_is_recorded():
    def changes(comm, array):
        request = comm.Isend(array, dest=1 - comm.rank)
        array += 1
        comm.Recv(np.empty_like(array), source=1 - comm.rank)
        request.wait()

    def waits(comm, array):
        request = comm.Isend(array, dest=1 - comm.rank)
        comm.Recv(np.empty_like(array), source=1 - comm.rank)
        request.wait()
        array += 1

    def changes_after_its_arrival(comm, array):
        request = comm.Isend(array, dest=1 - comm.rank)
        comm.Recv(np.empty_like(array), source=1 - comm.rank)
        array += 1  # the sender cannot know that it has arrived before it has waited
        request.wait()

    for wrong in (changes, changes_after_its_arrival):
        assert any(m.changed for m in rehearse(wrong, [(np.zeros(2),), (np.zeros(2),)]).messages)
    assert not any(m.changed for m in rehearse(waits, [(np.zeros(2),), (np.zeros(2),)]).messages)


def test_sending_an_unfinished_receive_buffer_is_recorded():
    def passes_on(comm, array, waits):
        receive = comm.Irecv(array, source=1 - comm.rank)
        sends = [comm.Isend(np.zeros(2), dest=1 - comm.rank)]
        if waits:
            receive.wait()
        sends.append(comm.Isend(array, dest=1 - comm.rank))
        comm.Recv(np.empty(2), source=1 - comm.rank)
        for request in (receive, *sends):
            request.wait()

    for waits in (False, True):
        seen = rehearse(passes_on, [(np.ones(2), waits), (np.ones(2), waits)])
        assert [m.not_yet_there for m in seen.messages] == [False, False, not waits, not waits]


def test_waitall_completes_requests_and_swap_uses_one_buffer():
    from mpi4py import MPI

    def swaps(comm, array):
        comm.Sendrecv_replace(array, dest=1 - comm.rank, source=1 - comm.rank)
        room = np.empty_like(array)
        requests = [comm.Irecv(room, 1 - comm.rank), comm.Isend(array, 1 - comm.rank)]
        MPI.Request.Waitall(requests)
        return [array.tolist(), room.tolist(), *MPI.Request.waitall([])]

    original = MPI.Request
    seen = rehearse(swaps, [(np.array([0]),), (np.array([1]),)])
    assert seen.errors == [None, None]
    assert seen.results == [[[1], [0]], [[0], [1]]]
    assert all(message.waited and not message.changed for message in seen.messages)
    assert MPI.Request is original


def test_unwaited_and_unreceived_messages_are_recorded():
    def forgetful(comm, array):
        if comm.rank == 0:
            comm.Isend(array, dest=1)
            comm.Isend(array, dest=1)
        else:
            comm.Recv(array, source=0)

    seen = rehearse(forgetful, [(np.zeros(1),), (np.zeros(1),)])
    assert [message.waited for message in seen.messages] == [False]
    assert [(m.source, m.dest) for m in seen.lost] == [(0, 1)]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda comm, a: comm.Allreduce(a, a), CollectiveError, "Allreduce"),
        (lambda comm, a: comm.Probe(), UnrehearsedError, "Probe"),
        (lambda comm, a: comm.Send(a, dest=comm.size), ValueError, "no rank 2"),
        (lambda comm, a: comm.Send(a[::2], dest=0), ValueError, "not contiguous"),
        (lambda comm, a: comm.Send(3.0, dest=0), TypeError, "array"),
    ],
)
def test_unsupported_calls_raise_clear_errors(call, error, words):
    seen = rehearse(call, [(np.zeros(4),), (np.zeros(4),)])
    assert all(type(found) is error and words in str(found) for found in seen.errors)


def test_small_receive_buffer_is_an_error_at_the_receiver():
    def talk(comm, array):
        if comm.rank == 0:
            comm.Send(array, dest=1)
        else:
            comm.Recv(array[:1], source=0)

    errors = rehearse(talk, [(np.zeros(2),), (np.zeros(2),)]).errors
    assert errors[0] is None
    assert "truncated" in str(errors[1])


def test_stop_button_interrupts_an_endlessly_computing_rank(press_stop):
    ended = []

    def for_ever(comm, array):
        if comm.rank == 0:
            try:
                comm.Recv(array, source=1)
            finally:
                ended.append(comm.rank)
        press_stop()
        while True:
            array += 1

    for _ in range(50):
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt) as stopped:
            rehearse(for_ever, [(np.zeros(1),) for _ in range(3)])
        assert time.monotonic() - began < 30
        assert "for_ever" in [frame.name for frame in stopped.traceback]
    assert ended == [0] * 50, "whoever waits is ended as well"


def test_rank_that_sends_endlessly_is_stopped():
    def for_ever(comm, array):
        while True:
            ring_pass(comm, array)

    seen = rehearse(for_ever, [(np.zeros(1),), (np.zeros(1),)])
    assert any(isinstance(error, RuntimeError) for error in seen.errors)


@pytest.mark.parametrize("waits_for", [0, 1], ids=["a deadlock", "too many calls"])
def test_rank_that_catches_every_exception_is_stopped(waits_for):
    def stubborn(comm, array):
        dest, source = waits_for ^ comm.rank, 1 - comm.rank
        while True:
            with contextlib.suppress(BaseException):
                comm.Sendrecv(array, dest=dest, recvbuf=array, source=source)

    seen = rehearse(stubborn, [(np.zeros(1),), (np.zeros(1),)])
    assert all(isinstance(error, (RuntimeError, StuckError)) for error in seen.errors)


def test_exit_of_a_rank_is_an_error():
    def leaves(comm, array):
        raise SystemExit(3)

    assert [type(e) for e in rehearse(leaves, [(0,), (0,)]).errors] == [SystemExit] * 2


def test_ranks_inherit_the_cells_context():
    cell = contextvars.ContextVar("cell")
    cell.set(7)
    assert rehearse(lambda comm: cell.get(), [(), ()]).results == [7, 7]


def test_empty_arrays_are_filled_with_a_marker() -> None:
    """Otherwise reused memory could hold an earlier call's result."""
    results = rehearse(lambda comm: (np.empty(3), np.empty_like([1, 2, 3])), [()] * 2).results
    assert [[set(array.tolist()) for array in pair] for pair in results] == [[{113}, {113}]] * 2
    assert np.empty.__module__ == "numpy"
    assert not hasattr(np.empty, "__wrapped__"), "only during the call"


KEPT: list[int] = []


def note(rank: int) -> list[int]:
    KEPT.append(rank)
    return list(KEPT)


def noting(comm) -> list[int]:
    return note(comm.rank)


def test_each_rank_has_its_own_persistent_globals() -> None:
    functions = OnRanks(noting)
    assert rehearse(functions, [()] * 2).results == [[0], [1]]
    assert rehearse(functions, [()] * 3).results == [[0, 0], [1, 1], [2]]
    assert rehearse(noting, [()] * 2).results == [[0], [1]]
    assert KEPT == []
