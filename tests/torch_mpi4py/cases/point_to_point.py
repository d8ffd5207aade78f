"""Sends meet their receives by source, tag and order, from any rank too."""

from __future__ import annotations

from datetime import timedelta

import numpy
import torch
import torch.distributed as dist
from torch_mpi4py import world
from torch_mpi4py.faults import pending_requests

from tests.ranks import case
from tests.torch_mpi4py.cases.collectives import same, total, values
from tests.torch_mpi4py.helpers import group_of_all, raises

several = case(sizes=(2, 3, 4))


@several
def case_ring(rank, size):
    for count in (0, 1, 10, 100_000):
        received = torch.zeros(count)
        work = dist.isend(values(rank, count), (rank + 1) % size)
        source = dist.recv(received, (rank - 1) % size)
        work.wait()
        assert source == (rank - 1) % size
        same(received, values((rank - 1) % size, count))


@case(sizes=(2, 4))
def case_send_progresses_while_its_rank_computes(rank, size):
    """Even a long one, which MPI alone moves only in its calls."""
    for count in LENGTHS:
        if rank % 2 == 0:
            work = dist.isend(values(rank, count), rank + 1)
            _store().wait([f"arrived at {rank + 1}: {count}"], WITHIN)  # without MPI
            work.wait()
        else:
            received = torch.zeros(count)
            dist.recv(received, rank - 1)
            same(received, values(rank - 1, count))
            _store().set(f"arrived at {rank}: {count}", "")


@case(sizes=(2, 4))
def case_receive_progresses_while_its_rank_computes(rank, size):
    for count in LENGTHS:
        if rank % 2 == 0:
            dist.send(values(rank, count), rank + 1)
            _store().set(f"sent by {rank}: {count}", "")
        else:
            received = torch.zeros(count)
            work = dist.irecv(received, rank - 1)
            _store().wait([f"sent by {rank - 1}: {count}"], WITHIN)
            work.wait()
            same(received, values(rank - 1, count))


@several
def case_message_does_not_mix_with_communicator_creation(rank, size):
    """Open MPI makes some by messages of 4 bytes with the tag that is given, here a callback's."""
    left, right = (rank - 1) % size, (rank + 1) % size
    received = [torch.zeros(1, dtype=torch.int32) for _ in range(4)]
    sums = torch.ones(1)
    with group_of_all() as group:
        receives = [
            dist.irecv(tensor, left, group=group, tag=tag) for tag, tensor in enumerate(received)
        ]
        future = dist.all_reduce(sums, group=group, async_op=True).get_future()
        future.then(lambda _: dist.all_reduce(sums, group=group)).wait()
        for tag in range(4):
            number = torch.full((1,), 1000 + tag, dtype=torch.int32)
            dist.send(number, right, group=group, tag=tag)
        for receive in receives:
            receive.wait()
    assert torch.cat(received).tolist() == [1000, 1001, 1002, 1003]
    assert sums.item() == size**2


@several
def case_comm_message_does_not_mix_with_communicator_creation(rank, size):
    comm, received = world(), numpy.zeros(1, numpy.int32)
    receive = comm.Irecv(received, (rank - 1) % size, tag=7)
    made = comm.Create_group(comm.Get_group(), tag=7)
    assert made.allreduce(1) == size
    comm.Send(numpy.full(1, 1000, numpy.int32), (rank + 1) % size, tag=7)
    receive.Wait()
    assert received.tolist() == [1000]
    made.Free()


@several
def case_tag_out_of_range_raises(rank, size):
    for tag in (-1, 2**31 - 1):
        with raises(ValueError, "tag must be a whole number from 0 to"):
            dist.isend(torch.ones(1), (rank + 1) % size, tag=tag)


LENGTHS = (1, 20_000, 1_000_000)
WITHIN = timedelta(seconds=20)


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


@several
def case_send_and_recv(rank, size):
    tensor = values(rank, 3)
    if rank == 0:
        for peer in range(1, size):
            dist.send(tensor, peer)
            dist.send(tensor * 2, group_dst=peer)
    else:
        dist.recv(tensor, 0)
        same(tensor, values(0, 3))
        dist.recv(tensor, group_src=0)
        same(tensor, values(0, 3) * 2)


@several
def case_any_source(rank, size):
    """A receive from any rank says who sent it."""
    if rank == 0:
        seen = []
        for _ in range(size - 1):
            tensor = torch.zeros(2)
            source = dist.recv(tensor)
            same(tensor, values(source, 2))
            seen.append(source)
        assert sorted(seen) == list(range(1, size))
    else:
        dist.send(values(rank, 2), 0)


@several
def case_tags(rank, size):
    """Messages are told apart by tag, whatever the order they are received in."""
    if rank == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in range(5)]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (3, 0, 4, 1, 2):
            tensor = torch.zeros(1)
            dist.recv(tensor, 0, tag=tag)
            assert tensor.item() == tag


@several
def case_messages_keep_their_order(rank, size):
    if rank == 0:
        works = [dist.isend(torch.tensor([float(i)]), 1) for i in range(50)]
        for work in works:
            work.wait()
    elif rank == 1:
        tensors = [torch.zeros(1) for _ in range(50)]
        works = [dist.irecv(tensor, 0) for tensor in tensors]
        for work in works:
            work.wait()
        assert [tensor.item() for tensor in tensors] == list(range(50))


@several
def case_batch_isend_irecv(rank, size):
    """Everyone exchanges with everyone; receives first, which must not deadlock."""
    inbox = [torch.zeros(1000) for _ in range(size)]
    others = [peer for peer in range(size) if peer != rank]
    ops = [dist.P2POp(dist.irecv, inbox[peer], peer) for peer in others]
    ops += [dist.P2POp(dist.isend, values(rank, 1000), peer) for peer in others]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for peer in others:
        same(inbox[peer], values(peer, 1000))


@several
def case_strided_message(rank, size):
    if rank == 0:
        dist.send(values(0, 4, 4).t()[1:3], 1)
    elif rank == 1:
        target = torch.zeros(4, 4)
        dist.recv(target[:, ::2].t(), 0)
        expected = torch.zeros(4, 4)
        expected[:, ::2] = values(0, 4, 4).t()[1:3].t()
        same(target, expected)


@several
def case_message_does_not_queue_behind_a_collective(rank, size):
    """Rank 0 enters an all_reduce first; rank 1 does so only after its message came."""
    tensor = values(rank, 3)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        for peer in range(1, size):
            dist.send(torch.ones(1), peer)
    else:
        dist.recv(torch.zeros(1), 0)
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    same(tensor, total(size, 3))


@several
def case_future_of_a_receive(rank, size):
    if rank == 0:
        work = dist.isend(values(0, 3), 1)
        work.get_future().wait()
    elif rank == 1:
        tensor = torch.zeros(3)
        result = dist.irecv(tensor, 0).get_future().then(lambda done: done.value()[0] + 1).wait()
        same(result, values(0, 3) + 1)


@several
def case_polling_completes(rank, size):
    """is_completed() becomes true without wait()."""
    import time

    if rank == 0:
        work = dist.isend(values(0, 200_000), 1)
    elif rank == 1:
        tensor = torch.zeros(200_000)
        work = dist.irecv(tensor, 0)
    else:
        return
    deadline = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < deadline, "is_completed() never became true"
    assert work.is_success()
    if rank == 1:
        same(tensor, values(0, 200_000))


@several
def case_cancelled_receive(rank, size):
    """What is sent afterwards goes to the next receive, and a message that came is kept."""
    if rank == 0:
        given_up, kept = torch.zeros(2), torch.zeros(2)
        work = dist.irecv(given_up)
        assert work.cancel()
        assert not work.cancel()
        for peer in range(1, size):
            dist.send(torch.ones(1), peer)
            assert dist.recv(kept) == peer
            same(kept, values(peer, 2))
        assert not given_up.any()
        work = dist.irecv(kept, 1, tag=1)
        dist.barrier()
        while not work.is_completed():
            pass
        assert not work.cancel()
        same(kept, values(5, 2))
    else:
        dist.recv(torch.ones(1), 0)
        dist.send(values(rank, 2), 0)
        if rank == 1:
            dist.send(values(5, 2), 0, tag=1)
        dist.barrier()


@several
def case_failed_ranks_is_empty_without_failures(rank, size):
    group = dist.group.WORLD
    assert not group.survives_failures
    assert group.failed_ranks() == group.acknowledge_failures() == []


@case(sizes=(2,))
def case_memory_of_an_abandoned_handle(rank, size):
    """Dropping handle and tensor does not free the memory while MPI uses it."""
    count = 50_000  # large enough for a rendezvous, so that the sender's memory is read late
    comm = dist.group.WORLD.comm
    if rank == 0:
        dist.irecv(torch.zeros(count), 1, tag=3)
        assert pending_requests.kept(comm) == 1
        others = [torch.zeros(count) for _ in range(8)]  # where the memory would be used anew
        dist.barrier()
        dist.recv(torch.zeros(1), 1, tag=4)  # sent after it, so the large one has been matched
        dist.barrier()
        for other in others:
            assert not other.any(), "a message came into somebody else's memory"
    else:
        dist.barrier()
        dist.isend(values(rank, count), 0, tag=3)
        others = [torch.zeros(count) for _ in range(8)]
        dist.send(torch.ones(1), 0, tag=4)
        dist.barrier()
        del others
    theirs = torch.zeros(1)
    for _ in range(1000):  # each start lets go of what has ended
        mine = torch.tensor([float(pending_requests.kept(comm))])  # both stop in the same round
        work = dist.isend(mine, 1 - rank)
        dist.recv(theirs, 1 - rank)
        work.wait()
        if mine.item() == theirs.item() == 0:
            break
    dist.barrier()
    assert pending_requests.kept(comm) == 0


@case(sizes=(2,))
def case_message_sent_before_the_group_failed_is_received(rank, size):
    group = dist.new_group()
    if rank == 0:
        for tag in range(2):
            dist.send(torch.full((3,), tag + 1.0), 1, group=group, tag=tag)
    else:
        first, second = torch.zeros(3), torch.zeros(3)
        received = dist.irecv(first, 0, group=group, tag=0)
        dist.recv(second, 0, group=group, tag=1)  # so the first has come, too
        group.abort()
        received.wait()
        same(first, torch.ones(3))
        assert received._source_rank() == 0
    dist.barrier()
    dist.destroy_process_group(group)
