"""Measure how far the ranks' clocks are apart, by round trips of messages.

Rank 0 records when it asks, another rank when it is asked, and rank 0 when the answer comes. If
both ways took equally long, the other clock was read in the middle. They may not, but the error is
at most half of the round trip, so the quickest of many exchanges counts (F. Cristian,
"Probabilistic clock synchronization", 1989). Ranks on one machine share a clock, which checks the
estimate: it should be 0 within the residual.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy

from ..comm.guarded_comm import GuardedComm, world
from ..core.runtime import MPI
from ..faults import deadlines

_TAG = 32001


class ClockOffset(NamedTuple):
    """How a rank's ``time.perf_counter()`` relates to rank 0's.

    Attributes:
        offset: seconds to subtract from the rank's times to get rank 0's.
        residual: seconds by which ``offset`` may be wrong at most.
    """

    offset: float
    residual: float


def clock_offsets(comm: GuardedComm | None = None, rounds: int = 30) -> list[ClockOffset]:
    """Return the clock offset of every rank; all ranks must call this.

    The messages appear in no log, and no emulated link delays them.

    Args:
        comm: communicator, :func:`torch_mpi4py.world` if None.
        rounds: messages there and back for each rank.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    comm = world() if comm is None else comm
    return deadlines.call(comm, "clock_offsets", comm.timeout, _measure, comm, rounds)


def _measure(comm: MPI.Intracomm, rounds: int) -> list[ClockOffset]:
    rank, size = comm.Get_rank(), comm.Get_size()
    table = numpy.zeros((size, 2))
    for other in range(1, size):
        if rank == 0:
            table[other] = _ask(comm, other, rounds)
        elif rank == other:
            _answer(comm, rounds)
    MPI.Intracomm.Bcast(comm, table, 0)
    return [ClockOffset(*row) for row in table.tolist()]


def _ask(comm: MPI.Intracomm, other: int, rounds: int) -> tuple[float, float]:
    theirs = numpy.zeros(1)
    best = (0.0, float("inf"))
    for _ in range(rounds):
        asked = time.perf_counter()
        MPI.Intracomm.Send(comm, theirs, other, _TAG)
        MPI.Intracomm.Recv(comm, theirs, other, _TAG)
        told = time.perf_counter()
        residual = (told - asked) / 2
        if residual < best[1]:
            best = (theirs[0] - (asked + told) / 2, residual)
    return best


def _answer(comm: MPI.Intracomm, rounds: int) -> None:
    mine = numpy.zeros(1)
    for _ in range(rounds):
        MPI.Intracomm.Recv(comm, mine, 0, _TAG)
        mine[0] = time.perf_counter()
        MPI.Intracomm.Send(comm, mine, 0, _TAG)
