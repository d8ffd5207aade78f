"""The ranks of ``comm`` meet before a collective, on one host or several, and sleep meanwhile."""

from __future__ import annotations

import threading

import numpy
from torch_mpi4py import MPI, DeadlineError, RevokedError, world
from torch_mpi4py.faults import deadlines

from tests.ranks import case
from tests.torch_mpi4py.cases.doorbell import waits
from tests.torch_mpi4py.helpers import raises

A_MOMENT = 0.3


@case(sizes=(2, 4), seconds=90)
def case_a_rank_that_waits_in_a_collective_of_comm_sleeps(rank: int, size: int) -> None:
    comm, ones, sums = world(), numpy.ones(3), numpy.zeros(3)
    for name, call in {
        "barrier": comm.barrier,
        "Allreduce": lambda: comm.Allreduce(ones, sums),
        "bcast": lambda: comm.bcast("late" if rank == 0 else None),
        "scatter": lambda: comm.scatter(range(size) if rank == 0 else None),
    }.items():
        waits(rank, size, name, call, call)
    assert (sums == size).all()


@case(sizes=(2, 3), seconds=60)
def case_a_deadline_ends_a_collective_of_comm(rank: int, size: int) -> None:
    for call in (
        lambda comm: comm.Barrier(),
        lambda comm: comm.bcast("never", root=0),
        lambda comm: comm.allreduce(1),
    ):
        comm = world().Dup()
        comm.timeout = A_MOMENT
        if rank:
            with raises((DeadlineError, RevokedError), ""):
                call(comm)
        world().barrier()
        assert not deadlines.has_abandoned_a_thread()
        comm = world().Dup()  # what follows works
        assert comm.allreduce(rank) == sum(range(size))


@case(sizes=(2, 3), seconds=60)
def case_a_call_that_is_refused_leaves_the_ranks_in_step(rank: int, size: int) -> None:
    comm = world().Dup()
    last = rank == size - 1
    for _ in range(3):
        if last:  # mpi4py refuses the arguments at once, and the object once it looks at it
            with raises(TypeError, ""):
                comm.Allreduce()
            with raises(TypeError, ""):
                comm.Allreduce(threading.Lock(), numpy.zeros(1))
            with raises(TypeError, ""):
                comm.Iallreduce()
        total = numpy.zeros(1)
        comm.Allreduce(numpy.ones(1), total)
        assert total[0] == size
        assert comm.bcast(rank, root=size - 1) == size - 1
    assert comm.allreduce(rank, MPI.MAX) == size - 1
