"""Which cores the ranks of this machine may use, and which of them are this rank's part."""

from __future__ import annotations

import contextlib
import functools
import os

from ..core.runtime import MPI
from ..log.peer_boards import board_of


def cores_a_rank() -> float:
    """Return how many cores each rank of this machine has.

    Those that this rank may use are divided among all ranks that may use one of them. Other
    processes do not count.
    """
    cores, sharing, _ = _shared()
    return len(cores) / sharing


def own_cores() -> set[int]:
    """Return this rank's part of the cores that it may use, one of them at least.

    Ranks that may use the same cores divide them evenly.
    """
    cores, sharing, place = _shared()
    first, end = (len(cores) * number // sharing for number in (place, place + 1))
    return set(cores[first : max(end, first + 1)])


@functools.cache
def _shared() -> tuple[list[int], int, int]:
    """Return the cores that this rank may use, how many ranks share them, and its place there."""
    mine = _usable_cores(0)
    me = MPI.COMM_WORLD.Get_rank()
    boards = {rank: board_of(rank) for rank in range(MPI.COMM_WORLD.Get_size())}
    sharing = [
        rank
        for rank, board in boards.items()
        if rank == me or (board is not None and mine & _usable_cores(board.pid))
    ]
    return sorted(mine), len(sharing), sharing.index(me)


def _usable_cores(pid: int) -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):  # a process that has ended, or of another container
            return os.sched_getaffinity(pid)
    return set(range(os.cpu_count() or 1))
