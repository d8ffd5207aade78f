"""The ranks of ``comm`` meet by messages, asleep, where not all are on one host.

On one host they do the same where a rank has no free slot.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy
from torch_mpi4py import MPI, CommunicationError, renew_world, world
from torch_mpi4py.comm import comm_arrivals
from torch_mpi4py.comm.comm_arrivals import RemoteCommArrivals
from torch_mpi4py.comm.guarded_comm import GuardedComm
from torch_mpi4py.faults import deadlines
from torch_mpi4py.log.peer_boards import board_of

from tests.ranks import case
from tests.torch_mpi4py.cases.doorbell import NOT_TAKEN, waits
from tests.torch_mpi4py.cases.meeting import FREED, SLACK, no_free_slot
from tests.torch_mpi4py.helpers import raises

A_MOMENT = 0.3
A_LONG_TIME = 100.0


@contextmanager
def comm_without_slots(rank: int) -> Iterator[GuardedComm]:
    """Make a duplicate of the world whose ranks meet by messages."""
    with no_free_slot(here=rank == 0):
        comm = world().Dup()
    assert isinstance(comm.arrivals, RemoteCommArrivals)
    yield comm
    comm.Free()


@case(sizes=(2, 4))
def case_only_ranks_of_one_host_share_memory(rank: int, size: int) -> None:
    """Also where all hosts see the folder of the boards."""
    hosts = world().allgather(socket.gethostname())
    here = [host == hosts[rank] for host in hosts]
    assert [board_of(other) is not None for other in range(size)] == here
    assert [world().bells.rings(other) for other in range(size)] == here


@case(sizes=(2, 4), seconds=90)
def case_a_rank_that_waits_in_a_collective_sleeps(rank: int, size: int) -> None:
    ones, sums = numpy.ones(3), numpy.zeros(3)
    with comm_without_slots(rank) as comm:
        for name, call in {
            "barrier": comm.barrier,
            "Allreduce": lambda: comm.Allreduce(ones, sums),
            "bcast": lambda: comm.bcast("late" if rank == 0 else None),
            "scatter": lambda: comm.scatter(range(size) if rank == 0 else None),
            "Dup": lambda: comm.Dup().Free(),
        }.items():
            waits(rank, size, name, call, call)
        assert (sums == size).all()


@case(sizes=(2, 3), seconds=60)
def case_a_collective_that_a_rank_never_calls_ends_at_its_deadline(rank: int, size: int) -> None:
    """Under any MPI the ranks are free afterwards, none is left in MPI, and all go on."""
    before = deadlines.has_abandoned_a_thread()
    for call in (
        lambda comm: comm.Barrier(),
        lambda comm: comm.bcast("never", root=0),
        lambda comm: comm.allreduce(1),
    ):
        with no_free_slot(here=rank == 0):
            comm = world().Dup()
        comm.timeout = A_MOMENT
        if rank:
            with raises(FREED, within=A_MOMENT + SLACK):
                call(comm)
            with raises(CommunicationError, within=A_MOMENT + SLACK):
                call(comm)
        world().barrier()
    assert deadlines.has_abandoned_a_thread() == before
    with comm_without_slots(rank) as comm:
        assert comm.allreduce(rank) == sum(range(size))
    assert renew_world().allgather(rank) == list(range(size))


@case(sizes=(2, 3), seconds=60)
def case_a_call_that_is_refused_leaves_the_ranks_in_step(rank: int, size: int) -> None:
    with comm_without_slots(rank) as comm:
        for _ in range(3):
            if rank == size - 1:  # mpi4py refuses the first and the last before the ranks meet
                with raises(TypeError):
                    comm.Allreduce()
                with raises(TypeError):
                    comm.Allreduce(threading.Lock(), numpy.zeros(1))
                with raises(TypeError):
                    comm.Iallreduce()
            total = numpy.zeros(1)
            comm.Allreduce(numpy.ones(1), total)
            assert total[0] == size
            assert comm.bcast(rank, root=size - 1) == size - 1
        assert comm.allreduce(rank, MPI.MAX) == size - 1


@case(sizes=(2, 3), seconds=60)
def case_meetings_and_messages_of_the_program_do_not_mix(rank: int, size: int) -> None:
    """Also messages of any source and tag, and long ones that are under way meanwhile."""
    before, after = (rank - 1) % size, (rank + 1) % size
    data, into = numpy.full(NOT_TAKEN, float(rank)), numpy.zeros(NOT_TAKEN)
    with comm_without_slots(rank) as comm:
        for number in range(50):
            receive, send = comm.Irecv(into), comm.Isend(data, after, number)
            assert comm.allreduce(1) == size
            receive.Wait()
            send.Wait()
            assert (into == before).all()


@case(sizes=(2, 3), seconds=90)
def case_ranks_meet_seldom_while_their_collectives_are_quick(rank: int, size: int) -> None:
    one, total = numpy.ones(1), numpy.zeros(1)
    many = 10 * comm_arrivals._UNMET
    with comm_without_slots(rank) as comm:
        meeting = comm.arrivals
        assert isinstance(meeting, RemoteCommArrivals)

        def meetings_of_many(quick_seconds: float) -> int:
            before = meeting._meetings
            with mock.patch.object(comm_arrivals, "_QUICK_SECONDS", quick_seconds):
                for number in range(many):
                    if rank == 0 and number % 7 == 0:
                        with raises(TypeError):
                            comm.Allreduce(threading.Lock(), total)
                    comm.Allreduce(one, total)
                    assert total[0] == size
            made = meeting._meetings - before
            assert world().allgather(made) == [made] * size
            return made

        assert meetings_of_many(0.0) == many
        assert meetings_of_many(A_LONG_TIME) < comm_arrivals._QUICK_MEETINGS + many / 10
        assert meetings_of_many(0.0) > many - 2 * comm_arrivals._UNMET
        waits(rank, size, "Barrier", comm.Barrier, comm.Barrier)
