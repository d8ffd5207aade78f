"""On an emulated link everything takes what the formulas say, and little more.

Never less: that is asserted exactly. How much more is a matter of the machine, so links are slow
(tens of milliseconds against less than one of overhead), the quickest of many trials counts,
and further trials are made until one is near enough.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from unittest import mock

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_mpi4py import (
    MPI,
    CommunicationError,
    DeadlineError,
    MismatchError,
    RevokedError,
    emulated_link,
    renew_world,
    world,
)
from torch_mpi4py.comm.requests import GuardedRequest
from torch_mpi4py.emulation import link_queue
from torch_mpi4py.log import events

from course_lib.parallel.all_reduces import ALGORITHMS
from tests.torch_mpi4py.helpers import equal, group_of_all, raises, sizes

TRIES = 20
LATENCY, BANDWIDTH = 0.06, 2e6


def longest(action: Callable[[], None]) -> float:
    """Return the seconds from the first rank's start to the last rank's end."""
    dist.barrier()
    begin = time.perf_counter()  # one machine, one clock
    action()
    end = time.perf_counter()
    moments = torch.tensor([-begin, end], dtype=torch.float64)
    dist.all_reduce(moments, dist.ReduceOp.MAX)
    return float(moments.sum())


def takes(action: Callable[[], None], seconds: float, more: float = 0.1) -> None:
    """Raise unless ``action`` takes ``seconds``, at most ``more`` of it longer at its best."""
    best = math.inf
    for _ in range(TRIES):
        took = longest(action)
        assert took > 0.999 * seconds, f"{took:.4f} s, less than {seconds:.4f} s"
        best = min(best, took)
        if best <= (1 + more) * seconds:
            return
    raise AssertionError(f"{best:.4f} s, more than {seconds:.4f} s and {more:.0%}")


def message(size_bytes: int) -> torch.Tensor:
    return torch.zeros(size_bytes, dtype=torch.uint8)


def ping_pong_fits(there_and_back: Callable[[int], None]) -> None:
    volumes = (0, 64 * 1024, 128 * 1024, 256 * 1024)
    latency, bandwidth = 0.08, 2e6
    best = [math.inf] * len(volumes)
    for _ in range(TRIES):
        with emulated_link(latency, bandwidth):
            for index, volume in enumerate(volumes):
                begin = time.perf_counter()
                there_and_back(volume)
                best[index] = min(best[index], (time.perf_counter() - begin) / 2)
        slope, intercept = numpy.polyfit(volumes, best, 1)
        near = abs(intercept / latency - 1) < 0.05 and abs(slope * bandwidth - 1) < 0.05
        # Who is asked may start to wait later than the message, so only who asks can measure it.
        if _all_agree(near or dist.get_rank() != 0):
            break
    else:
        raise AssertionError(f"latency {intercept} s, {1 / slope} bytes/s")
    if dist.get_rank() == 0:
        least = [latency + volume / bandwidth for volume in volumes]
        assert all(took >= wanted for took, wanted in zip(best, least, strict=True)), (best, least)


def _all_agree(yes: bool) -> bool:
    answer = torch.tensor(int(yes))
    dist.all_reduce(answer, dist.ReduceOp.MIN)
    return bool(answer)


@sizes(2)
def case_tensor_ping_pong_matches_latency_and_bandwidth(rank, size):
    def there_and_back(volume: int) -> None:
        tensor = message(volume)
        for sender in (0, 1):
            if rank == sender:
                dist.send(tensor, 1 - rank)
            else:
                dist.recv(tensor, 1 - rank)

    ping_pong_fits(there_and_back)


@sizes(2)
def case_comm_ping_pong_matches_latency_and_bandwidth(rank, size):
    comm = renew_world()

    def there_and_back(volume: int) -> None:
        array = numpy.zeros(volume, numpy.uint8)
        for sender in (0, 1):
            if rank == sender:
                comm.Isend(array, 1 - rank).Wait()
            else:
                comm.Recv(array, 1 - rank)

    ping_pong_fits(there_and_back)


@sizes(4)
def case_all_reduces_match_their_formulas(rank, size):
    lg = int(math.log2(size))
    for volume in (64 * 1024, 256 * 1024):
        tensor = torch.zeros(volume // 4)
        whole, part = volume / BANDWIDTH, volume / size / BANDWIDTH
        formulas = {
            "ring": 2 * (size - 1) * (LATENCY + part),
            "tree": 2 * lg * (LATENCY + whole),
            "recursive doubling": lg * (LATENCY + whole),
            "rabenseifner": 2 * lg * LATENCY + 2 * (size - 1) * part,
        }
        for name, seconds in formulas.items():

            def action(name=name, tensor=tensor) -> None:
                with emulated_link(LATENCY, BANDWIDTH):
                    ALGORITHMS[name].all_reduce(tensor)

            takes(action, seconds)


@sizes(4)
def case_naive_all_reduce_on_one_port_matches_its_formula(rank, size):
    tensor = torch.zeros(16 * 1024)

    def action() -> None:
        with emulated_link(LATENCY, BANDWIDTH, one_port=True):
            ALGORITHMS["naive"].all_reduce(tensor)

    takes(action, 2 * (size - 1) * (LATENCY + tensor.nbytes / BANDWIDTH))


@sizes(4)
def case_library_collectives_match_times_of_their_algorithms(rank, size):
    comm = renew_world()
    one = LATENCY + 64 * 1024 / BANDWIDTH  # a message of 64 KiB
    part = LATENCY + 16 * 1024 / BANDWIDTH
    tree = 2 * one
    x, parts = torch.zeros(16 * 1024), [torch.zeros(16 * 1024) for _ in range(size)]
    array, arrays = x.numpy(), numpy.zeros((size, 16 * 1024), numpy.float32)
    at_root = parts if rank == 1 else None
    text = "x" * (64 * 1024 - 30)
    large = torch.zeros(256 * 1024)  # 1 MiB: the ring is cheaper
    calls = [
        (lambda: dist.all_reduce(x), tree),
        (lambda: dist.all_reduce(large), 6 * (LATENCY + 256 * 1024 / BANDWIDTH)),
        (lambda: dist.all_reduce(x, async_op=True).wait(), tree),
        (lambda: dist.all_reduce(x.to(torch.bfloat16)), 2 * (LATENCY + 32 * 1024 / BANDWIDTH)),
        (lambda: dist.broadcast(x, 1), tree),
        (lambda: dist.reduce(x, 1), tree),
        (lambda: dist.barrier(), 2 * LATENCY),
        (lambda: dist.all_gather(parts, x), 3 * one),
        (lambda: dist.reduce_scatter(x, parts), 3 * one),
        (lambda: dist.gather(x, at_root, dst=1), 2 * LATENCY + 3 * (one - LATENCY)),
        (lambda: dist.scatter(x, at_root, src=1), 2 * LATENCY + 3 * (one - LATENCY)),
        (lambda: dist.all_to_all(list(map(torch.clone, parts)), parts), 3 * one),
        (lambda: dist.all_to_all_single(torch.zeros_like(x), x), 3 * part),
        (lambda: comm.Allreduce(array, array.copy()), tree),
        (lambda: comm.Bcast(array, 1), tree),
        (lambda: comm.bcast(text if rank == 1 else None, 1), tree),
        (lambda: comm.allgather(text), 3 * one),
        (lambda: comm.Alltoall(array, array.copy()), 3 * part),
        (lambda: comm.Scatter(arrays if rank == 1 else None, array.copy(), 1),
         2 * LATENCY + 3 * (one - LATENCY)),
        (lambda: comm.barrier(), 2 * LATENCY),
    ]  # fmt: skip
    for index, (call, seconds) in enumerate(calls):

        def action(call=call) -> None:
            with emulated_link(LATENCY, BANDWIDTH):
                call()

        try:
            takes(action, seconds, more=0.25)
        except AssertionError as error:
            raise AssertionError(f"call {index}: {error}") from error


@sizes(2)
def case_links_are_full_duplex_and_send_in_sequence(rank, size):
    out, into = message(0), message(0)

    def both_ways() -> None:
        with emulated_link(0.05):
            works = [dist.isend(out, 1 - rank), dist.irecv(into, 1 - rank)]
            [work.wait() for work in works]

    def two_after_one_another() -> None:
        with emulated_link(0.05):
            transfer = dist.isend if rank == 0 else dist.irecv
            works = [transfer(message(0), 1 - rank) for _ in range(2)]
            [work.wait() for work in works]

    takes(both_ways, 0.05, more=0.5)
    takes(two_after_one_another, 0.1, more=0.5)


@sizes(4)
def case_pairs_have_own_links_but_share_one_port(rank, size):
    def to_all(one_port: bool) -> None:
        with emulated_link(0.05, one_port=one_port):
            if rank == 0:
                works = [dist.isend(message(0), peer) for peer in range(1, size)]
                [work.wait() for work in works]
            else:
                dist.recv(message(0), 0)

    def from_all(one_port: bool) -> None:
        with emulated_link(0.05, one_port=one_port):
            if rank == 0:
                works = [dist.irecv(message(0), peer) for peer in range(1, size)]
                [work.wait() for work in works]
            else:
                dist.send(message(0), 0)

    for action in (to_all, from_all):
        takes(lambda action=action: action(False), 0.05, more=0.5)
        takes(lambda action=action: action(True), 0.15, more=0.3)


@sizes(4)
def case_groups_of_the_same_processes_share_links(rank, size):
    # Rank 3 is rank 1 of the pair: the link belongs to processes, not to numbers in a group.
    pair = dist.new_group([0, 3])

    def action() -> None:
        with emulated_link(0.05):
            if rank == 0:
                works = [dist.isend(message(0), 3), dist.isend(message(0), 3, group=pair)]
                works.append(dist.isend(message(0), 1))
                [work.wait() for work in works]
            elif rank == 3:
                dist.recv(message(0), 0, group=pair)
                dist.recv(message(0), 0)
            elif rank == 1:
                dist.recv(message(0), 0)

    takes(action, 0.1, more=0.4)


@sizes(2)
def case_innermost_block_applies(rank, size):
    def action() -> None:
        with emulated_link(60.0), emulated_link(0.02), emulated_link(0.05):
            dist.barrier()

    takes(action, 0.05, more=0.5)

    def outside() -> None:
        with emulated_link(0.05):
            with emulated_link(60.0):
                pass
            dist.barrier()

    takes(outside, 0.05, more=0.5)
    begin = time.perf_counter()
    dist.barrier()
    assert time.perf_counter() - begin < 20, "the link is still in force"


@sizes(2)
def case_exception_in_block_releases_sent_messages_at_once(rank, size):
    tensor = torch.full((3,), float(rank))
    begin = time.perf_counter()
    if rank == 0:
        try:
            with emulated_link(60.0):
                work = dist.isend(tensor, 1)
                raise KeyError("on purpose")
        except KeyError:
            work.wait()
    else:
        dist.recv(tensor, 0)
        equal(tensor, [0.0, 0.0, 0.0])
    dist.barrier()
    assert time.perf_counter() - begin < 20


@sizes(2)
def case_threads_can_send_while_exception_releases_messages(rank, size):
    """The courier would wait indefinitely for a message that comes after another on its queue."""
    tensors = [message(0) for _ in range(2)]
    if rank == 1:
        for tag, tensor in enumerate(tensors):
            dist.recv(tensor, 0, tag=tag)
        return
    plain, first_is_in, go_on = link_queue._world_rank, threading.Event(), threading.Event()

    def stopped(comm, dest):
        if threading.current_thread() is thread:
            first_is_in.set()
            go_on.wait(20)
        return plain(comm, dest)

    works = []
    thread = threading.Thread(target=lambda: works.append(dist.isend(tensors[0], 1, tag=0)))
    patched = mock.patch.object(link_queue, "_world_rank", stopped)
    with patched, contextlib.suppress(KeyError), emulated_link(60.0):
        thread.start()
        assert first_is_in.wait(20)
        works.append(dist.isend(tensors[1], 1, tag=1))
        go_on.set()
        thread.join()
        raise KeyError("on purpose")
    for work in works:
        work.wait()


@sizes(2)
def case_messages_keep_their_order_and_their_values(rank, size):
    comm = renew_world()
    if rank == 0:
        changing = [0]
        with emulated_link(1e-4, 1e9):
            for number in range(30):
                changing[0] = number
                comm.isend(changing, 1)  # the object is as it was at the call
                if number % 3 == 0:
                    comm.send([100 + number], 1)
                with emulated_link(1e-5):
                    comm.ssend([200 + number], 1)
            request = comm.isend(["end"], 1)
        comm.send(["after"], 1)
        request.wait()
        return
    expected = []
    for number in range(30):
        expected += [number] + ([100 + number] if number % 3 == 0 else []) + [200 + number]
    received = [comm.recv(source=0)[0] for _ in range(len(expected) + 2)]
    assert received == [*expected, "end", "after"], received


@sizes(2)
def case_comm_requests_complete_when_the_message_has_left(rank, size):
    comm = renew_world()
    waits = {
        "Wait": lambda request: request.Wait(),
        "wait": lambda request: request.wait(),
        "waitall": lambda request: GuardedRequest.waitall([request]),
        "wait of comm": lambda request: comm.wait(request),
        "Test": lambda request: _until(request.Test),
        "test": lambda request: _until(lambda: request.test()[0]),
    }
    for name, wait in waits.items():
        sent, taken = numpy.full(4, float(rank)), numpy.zeros(4)
        comm.Barrier()
        with emulated_link(0.02):
            begin, number = time.perf_counter(), events.mark()
            request = comm.Isend(sent, numpy.int64(1 - rank))
            receive = comm.Irecv(taken, 1 - rank)
            assert request
            wait(request)
            took = time.perf_counter() - begin
            sent[:] = 99
            receive.Wait()
        assert not request, name
        assert took > 0.0199, (name, took)
        assert taken.tolist() == [1.0 - rank] * 4, (name, taken)
        outcomes = [(event.kind, event.outcome) for event in events.events(number)]
        assert outcomes[:2] == [("Isend", "ok"), ("Irecv", "ok")], (name, outcomes)


@sizes(2)
def case_unemulated_calls_raise(rank, size):
    comm = renew_world()
    space = numpy.zeros(4)
    with emulated_link(0.01):
        request = comm.isend("x", 1 - rank)
        with raises(TypeError, "HeldRequest"):  # rather than a wait that ends at once
            MPI.Request.Waitall([request])
        comm.recv()
        request.wait()
        with raises(NotImplementedError, "call Allreduce, which blocks, or torch.distributed"):
            comm.Iallreduce(space, space.copy())
        with raises(NotImplementedError, "call Isend and Irecv"):
            comm.Isendrecv(space, 1 - rank, recvbuf=space.copy(), source=1 - rank)
        with raises(NotImplementedError, "call Sendrecv"):
            comm.Sendrecv_replace(space, 1 - rank, source=1 - rank)
        with raises(TypeError):
            comm.isend(dest=1 - rank)  # of nothing
    comm.Ibarrier().Wait()


def _until(ready: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < end, "it never ends"


@sizes(2)
def case_comm_sendrecv_runs_both_ways_at_once(rank, size):
    comm = renew_world()
    taken = numpy.zeros(5)

    def action() -> None:
        with emulated_link(0.05):
            comm.Sendrecv(numpy.full(5, float(rank)), 1 - rank, recvbuf=taken, source=1 - rank)

    takes(action, 0.05, more=0.5)
    equal(torch.from_numpy(taken), [1.0 - rank] * 5)
    with emulated_link(1e-3, one_port=True):
        assert comm.sendrecv(("me", rank), 1 - rank, source=1 - rank) == ("me", 1 - rank)
        assert comm.sendrecv("to nobody", MPI.PROC_NULL, source=MPI.PROC_NULL) is None
    assert comm.sendrecv(rank, rank, source=rank) == rank  # to oneself there is no link


@sizes(2)
def case_long_messages_overlap_with_computation(rank, size):
    tensor = torch.full((2**20,), float(rank))  # 4 MiB: far above what MPI sends in one go
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        dist.recv(tensor, 0)
        equal(tensor, torch.zeros(2**20))
        store.add("arrived", 1)
        return
    with emulated_link(0.01, 1e9):
        work = dist.isend(tensor, 1)
        deadline = time.monotonic() + 20  # before the receiver's own
        while not store.add("arrived", 0):  # computing, outside of MPI
            assert time.monotonic() < deadline, "the message does not move while nobody is in MPI"
            time.sleep(0.01)
        work.wait()


@sizes(2)
def case_ddp_computes_the_same(rank, size):
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 3), bucket_cap_mb=1e-5)
        model(torch.arange(8.0).view(2, 4) + rank).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    expected = gradients()
    begin = time.perf_counter()
    with emulated_link(0.05):
        found = gradients()
    assert time.perf_counter() - begin > 0.05
    for gradient, wanted in zip(found, expected, strict=True):
        equal(gradient, wanted)


@sizes(2)
def case_threads_share_the_link(rank, size):
    def action() -> None:
        with emulated_link(0.05):
            threads = [threading.Thread(target=send, args=(tag,)) for tag in (1, 2)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]

    def send(tag: int) -> None:
        if rank == 0:
            dist.send(message(0), 1, tag=tag)
        else:
            dist.recv(message(0), 0, tag=tag)

    takes(action, 0.1, more=0.5)


@sizes(2)
def case_different_links_across_ranks_raise_mismatch_error(rank, size):
    with emulated_link(1e-3 * (rank + 1)), raises(MismatchError, "emulated link"):
        dist.all_reduce(torch.zeros(3))
    with emulated_link(1e-3 * (rank + 1)), raises(MismatchError, "emulate"):
        world().Barrier()
    with emulated_link(1e-3):
        dist.all_reduce(torch.zeros(3))


@sizes(2)
def case_slow_message_ends_at_the_deadline(rank, size):
    # Leaving the block waits for nothing: what is kept back goes, and fails, at once.
    for operation in ("message", "collective"):
        freed = raises(CommunicationError, within=20)
        with group_of_all() as group:
            group.set_timeout(timedelta(seconds=1))  # all ranks had to make it
            with freed, emulated_link(60.0):
                if operation == "collective":
                    dist.all_reduce(torch.zeros(3), group=group)
                elif rank == 0:
                    dist.send(torch.zeros(3), 1, group=group)
                else:
                    dist.recv(torch.zeros(3), 0, group=group)
    comm = renew_world().Dup()
    comm.Barrier()  # Open MPI crashes if one revokes what another is still making
    comm.timeout = 1.0
    with raises((DeadlineError, RevokedError), within=20), emulated_link(60.0):
        if rank == 0:
            comm.send("late", 1)
        else:
            comm.recv(source=0)


@sizes(2)
def case_invalid_latency_or_bandwidth_raises(rank, size):
    for numbers in ((-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (0.0, 0.0), (0.0, -1.0)):
        with raises(ValueError, "must be"), emulated_link(*numbers):
            pass
    for numbers in (("1", 1.0), (0.0, None)):
        with raises(TypeError, "must be a number"), emulated_link(*numbers):
            pass
    with emulated_link(0.5, 1e3) as link:
        assert link.seconds(500) == 1.0
