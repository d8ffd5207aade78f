"""What the meter counts is what the schedules' formulas say, on real ranks."""

from __future__ import annotations

import gc
import threading
import time
from unittest import mock

import numpy
import torch
import torch.distributed as dist
from torch_mpi4py import Traffic, world
from torch_mpi4py.board.event_board import RECORDS
from torch_mpi4py.log import events
from torch_mpi4py.tools import clocks

from course_lib.parallel.all_reduces import ALGORITHMS
from course_lib.teaching import timeline
from tests.parallel.all_reduce_formulas import count
from tests.ranks import case
from tests.teaching.trace_format import check_trace, flows
from tests.torch_mpi4py.helpers import equal, raises


def case_all_reduce_traffic_matches_the_formulas(rank, size):
    for name, algorithm in ALGORITHMS.items():
        for numel in (0, 1, 3, 8, 1001):
            with Traffic() as traffic:
                algorithm.all_reduce(torch.zeros(numel, dtype=torch.int64))
            counts = count(algorithm.schedule(rank, size, numel))
            counted = (
                traffic.sent.messages,
                traffic.received.messages,
                traffic.sent.bytes,
                traffic.received.bytes,
            )
            wanted = (
                counts.messages_sent,
                counts.messages_received,
                8 * counts.elements_sent,
                8 * counts.elements_received,
            )
            assert counted == wanted, (name, numel, counted, wanted)
            assert not traffic.collectives
            assert traffic.under_way == traffic.failed == 0
            matrix = traffic.matrix()
            assert matrix.ranks == tuple(range(size))
            assert (matrix.messages == matrix.received_messages).all(), matrix
            assert (matrix.bytes == matrix.received_bytes).all(), matrix
            every = [count(algorithm.schedule(r, size, numel)) for r in range(size)]
            sent = [8 * one.elements_sent for one in every]
            assert matrix.bytes.sum(1).tolist() == sent, (name, matrix)
            assert matrix.messages.sum(0).tolist() == [one.messages_received for one in every]


@case(sizes=(3, 4))
def case_traffic_distinguishes_links(rank, size):
    comm = world()
    with Traffic() as traffic:
        if rank == 0:
            dist.send(torch.zeros(5), 2)
            comm.send("four", 1)
            comm.Send(numpy.zeros(3), 2)
        elif rank == 1:
            comm.recv()
        elif rank == 2:
            comm.Recv(numpy.zeros(3), 0)
            dist.recv(torch.zeros(5), 0)
        comm.sendrecv(rank, (rank + 1) % size, source=(rank - 1) % size)
    matrix = traffic.matrix()
    number = len(comm_pickled(0))
    messages = numpy.roll(numpy.eye(size, dtype=int), 1, axis=1)
    size_bytes = messages * number
    messages[0, 1] += 1
    messages[0, 2] += 2
    size_bytes[0, 1] += len(comm_pickled("four"))
    size_bytes[0, 2] += 20 + 24
    assert (matrix.messages == messages).all(), matrix
    assert (matrix.bytes == size_bytes).all(), matrix
    assert (matrix.received_bytes == size_bytes).all(), matrix
    if rank == 0:
        assert traffic.sent.by_peer[2] == (2, 44)


def comm_pickled(sent: object) -> bytes:
    return clocks.MPI.pickle.dumps(sent)


def case_library_collectives_count_input_bytes(rank, size):
    comm = world()
    with Traffic() as traffic:
        for _ in range(3):
            dist.all_reduce(torch.zeros(10))
        comm.Allreduce(numpy.zeros(4), numpy.zeros(4))
        dist.barrier()
    assert traffic.sent.messages == traffic.received.messages == 0
    assert traffic.collectives["all_reduce"] == (3, 120)
    assert traffic.collectives["Allreduce"] == (1, 32)
    assert traffic.collectives["barrier"] == (1, 0)


@case(sizes=(3,))
def case_matched_probes_numpy_ranks_and_objects(rank, size):
    comm = world()
    after, before = numpy.int64((rank + 1) % size), numpy.int32((rank - 1) % size)
    array, number = numpy.zeros(3), len(comm_pickled(rank))
    with Traffic() as traffic:
        works = [comm.Isend(numpy.full(3, float(rank)), after, tag=numpy.int64(1))]
        works.append(comm.isend(rank, after, 2))
        works.append(comm.isend(rank, after, 3))
        comm.Mprobe(before, 1).Recv(array)
        assert comm.mprobe(source=before, tag=2).recv() == before
        comm.probe(before, 3)
        assert comm.improbe(before, 3).irecv().wait() == before
        [work.wait() for work in works]
        comm.allreduce(rank)
        comm.bcast(rank, numpy.int64(1))
        comm.alltoall([rank] * size)
        comm.Barrier()
        comm.allgather(_Pickled())
    assert array.tolist() == [before] * 3
    assert traffic.sent.by_peer == {after: (3, 24 + 2 * number)}, traffic.sent
    assert traffic.received.by_peer == {before: (3, 24 + 2 * number)}, traffic.received
    assert traffic.collectives == {
        "allreduce": (1, number),
        "bcast": (1, number if rank == 1 else 0),
        "alltoall": (1, size * number),
        "Barrier": (1, 0),
        "allgather": (1, None),  # nobody can tell
    }, traffic.collectives


class _Pickled:
    """Can be pickled every second time."""

    times = 0

    def __reduce__(self):
        _Pickled.times += 1
        if _Pickled.times == 1:
            raise RuntimeError("not now")
        return int, ()


@case(sizes=(3,))
def case_handle_collected_while_another_is_counted(rank, size):
    """Garbage may be collected anywhere: the meter must neither deadlock nor lose a message."""

    class Counts(dict):
        def get(self, *given):
            found = super().get(*given)
            gc.collect()
            return found

    after, before = (rank + 1) % size, (rank - 1) % size
    with Traffic() as traffic:
        traffic.sent.by_peer = Counts()
        dropped = dist.isend(torch.zeros(2), after)
        dropped.itself = dropped  # only the collector can free it
        del dropped
        sending = threading.Thread(target=dist.send, args=(torch.zeros(3), after), daemon=True)
        sending.start()
        for numel in (2, 3):
            dist.recv(torch.zeros(numel), before)
        sending.join(20)
        assert not sending.is_alive(), "counting stands still"
    assert traffic.sent.by_peer == {after: (2, 20)}, traffic.sent


@case(sizes=(3,))
def case_invalid_group_raises(rank, size):
    with raises(TypeError, "process group"):
        Traffic("x")
    group = dist.new_group([0])
    if rank:
        with raises(ValueError, "not in that group"):
            Traffic(group)


@case(sizes=(3,))
def case_each_collective_counts_bytes_sent_by_this_rank(rank, size):
    """Received bytes are not counted: every tensor has 5 float32, 20 bytes."""
    one, parts = torch.zeros(5), [torch.zeros(5) for _ in range(size)]
    whole = torch.zeros(5 * size)
    at_root = rank == 1
    expected = {
        "all_gather": (2, 40),
        "gather": (1, 20),
        "scatter": (1, 20 * size if at_root else 0),
        "broadcast": (1, 20 if at_root else 0),
        "reduce": (1, 20),
        "reduce_scatter": (2, 2 * 20 * size),
        "all_to_all": (1, 20 * size),
        "all_to_all_single": (1, 20 * size),
    }
    with Traffic() as traffic:
        dist.all_gather(parts, one)
        dist.all_gather_into_tensor(whole, one)
        dist.gather(one, parts if at_root else None, dst=1)
        dist.scatter(one, parts if at_root else None, src=1)
        dist.broadcast(one, src=1)
        dist.reduce(one, dst=1)
        dist.reduce_scatter(one, parts)
        dist.reduce_scatter_tensor(one, whole)
        dist.all_to_all(parts, [torch.zeros(5) for _ in range(size)])
        dist.all_to_all_single(whole, torch.zeros(5 * size))
    assert traffic.collectives == expected, traffic.collectives


@case(sizes=(4,))
def case_traffic_of_one_group_uses_group_ranks(rank, size):
    pair = dist.new_group([1, 3])
    inside = rank in (1, 3)
    with Traffic(pair if inside else None) as traffic, Traffic() as everything:
        if rank == 1:
            dist.send(torch.zeros(2), 3, group=pair)
            dist.send(torch.zeros(7), 3)
        elif rank == 3:
            dist.recv(torch.zeros(2), 1, group=pair)
            dist.recv(torch.zeros(7), 1)
    if rank == 1:
        assert traffic.sent.by_peer == {1: (1, 8)}
        assert everything.sent.by_peer == {3: (2, 36)}
    if inside:
        assert traffic.matrix().bytes.tolist() == [[0, 8], [0, 0]]


@case(sizes=(4,))
def case_counts_survive_log_wraparound(rank, size):
    many = RECORDS + 500
    comm, empty = world(), numpy.zeros(1, numpy.int8)
    with Traffic() as traffic:
        for _ in range(many):
            if rank == 0:
                comm.Send(empty, 1)
            elif rank == 1:
                comm.Recv(empty, 0)
    assert len(events.events()) <= RECORDS
    matrix = traffic.matrix()
    assert matrix.messages[0, 1] == matrix.bytes[0, 1] == many
    assert matrix.received_messages.sum() == many


@case(sizes=(4,))
def case_nested_blocks_errors_and_threads(rank, size):
    comm = world()
    with Traffic() as traffic:
        with Traffic() as within:
            works = []
            if rank == 0:
                transfer = [lambda tag: dist.send(torch.zeros(tag), 1, tag=tag)]
            else:
                transfer = [lambda tag: dist.recv(torch.zeros(tag), 0, tag=tag)]
            if rank < 2:
                threads = [threading.Thread(target=transfer[0], args=(tag,)) for tag in (1, 2, 3)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                late = dist.irecv(torch.zeros(1), 1 - rank, tag=9)
                works = [dist.isend(torch.zeros(1), 1 - rank, tag=8)]
                works.append(dist.irecv(torch.zeros(1), 1 - rank, tag=8))
                [work.wait() for work in works]
        assert within.under_way == (rank < 2)
        if rank < 2:
            dist.send(torch.zeros(1), 1 - rank, tag=9)
            late.wait()
        elif rank == 2:
            comm.Send(numpy.zeros(4), 3)
        else:
            with raises(Exception, "longer"):
                comm.Recv(numpy.zeros(2), 2)
    if rank == 0:
        assert within.sent.by_peer == {1: (4, 28)}, within.sent
        assert traffic.sent.by_peer == {1: (5, 32)}, traffic.sent
        assert traffic.received.by_peer == {1: (2, 8)}, traffic.received
    assert traffic.failed == (rank == 3)
    events.log.enabled = False
    try:
        with raises(RuntimeError, "enabled"):
            Traffic().__enter__()
    finally:
        events.log.enabled = True


def case_clocks_on_one_machine_agree(rank, size):
    offsets = clocks.clock_offsets(world())
    assert len(offsets) == size
    assert offsets[0] == (0.0, 0.0)
    for offset, residual in offsets[1:]:
        assert 0 < residual < 1
        assert abs(offset) <= residual + 1e-6
    # And a clock that is wrong is found out, though it is only this module's.
    late = mock.Mock(perf_counter=lambda: time.perf_counter() + 3 * rank)
    with mock.patch.object(clocks, "time", late):
        offsets = clocks.clock_offsets(world())
    for other, (offset, residual) in enumerate(offsets):
        assert abs(offset - 3 * other) <= residual + 1e-6, offsets


@case(sizes=(4,))
def case_timeline_shows_all_ranks(rank, size):
    begin = events.mark()
    with events.section("ring"):
        ALGORITHMS["ring"].all_reduce(torch.zeros(64))
    with events.section("library"):
        work = dist.all_reduce(torch.zeros(64), async_op=True)
        time.sleep(0.02)  # computing
        work.wait()
    drawn = timeline(since=begin, title="test")
    assert [lane.rank for lane in drawn.lanes] == list(range(size))
    assert drawn.residual < 1
    for lane in drawn.lanes:
        assert [event.shape for event in lane.sections] == ["ring", "library"]
        kinds = [event.kind for event in lane.operations]
        assert kinds.count("send") == kinds.count("recv") == 2 * (size - 1)
        assert kinds.count("all_reduce") == 1
        assert min(span.start for span in lane.program) >= 0
        assert lane.end <= drawn.seconds
        after = [span.state for span in lane.program if span.start >= lane.sections[1].start]
        assert any(state.startswith("computing") for state in after)
    trace = check_trace(drawn.chrome_trace(f"/dev/shm/trace-{rank}-{time.time_ns()}"))
    messages = size * 2 * (size - 1)
    # Where the clocks' residual lets a message arrive before it was sent, there is no arrow.
    assert len(flows(trace)) <= messages
    one_clock = [clocks.ClockOffset(0.0, 1e-9)] * size  # as it is in truth: one machine
    with mock.patch.object(clocks, "clock_offsets", return_value=one_clock):
        exact = timeline(since=begin)
    trace = check_trace(exact.chrome_trace(f"/dev/shm/trace-{rank}-{time.time_ns()}"))
    assert len(flows(trace)) == messages
    equal(torch.tensor(drawn.lanes[0].program[0].start >= 0), True)
