"""Ends a learner's function in which all ranks wait for each other, long before its deadline."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch_mpi4py import deadlines, world
from torch_mpi4py.event_board import Board
from torch_mpi4py.observing import looks_asleep, waits_in
from torch_mpi4py.peer_boards import board_of

_LOOK_EVERY_S = 0.25
_NOBODY_MOVED_FOR_S = 2.0
_HAS_RUN_FOR_S = 0.2
_HAS_LOOKED = 10  # times


class _Signs(NamedTuple):
    """How long a rank's main thread has run, and how often the rank has looked for others."""

    ran: float
    looks: int


def _signs(board: Board) -> _Signs:
    position = board.position
    return _Signs(position.cpu if position else 0.0, looks_asleep(board))


def _had_a_core(before: _Signs, now: _Signs) -> bool:
    return now.ran - before.ran > _HAS_RUN_FOR_S or now.looks - before.looks >= _HAS_LOOKED


@contextlib.contextmanager
def ended_early(ranks: Sequence[int]) -> Iterator[None]:
    """End this process's calls if each of ``ranks`` waits in one, and none gets any further.

    Those on ``comm`` go on: there the check waits for ranks that have come to the end.

    A rank in a call of MPI looks for messages all the time. If each has done so for 0.2 s on a
    core, spread over 2 s, then none is under way, for checks send little. A rank that sleeps until
    others come to its collective, or its message comes, looks for them 50 times a second; ten such
    looks in the 2 s do as well. Where this can't be seen (another host), the deadline ends it.

    Args:
        ranks: those that the code inside runs on, by their numbers at the start of MPI.
    """
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(over, ranks), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(over: threading.Event, ranks: Sequence[int]) -> None:
    waits: list[int | None] = []
    since, before = 0.0, [_Signs(0.0, 0)]
    # All ranks look at the same moments of the clock that they share, and so end it together.
    while not over.wait(_LOOK_EVERY_S - time.perf_counter() % _LOOK_EVERY_S):
        boards = [board for board in map(board_of, ranks) if board is not None]
        if len(boards) < len(ranks):
            return
        signs = [_signs(board) for board in boards]
        moment = time.perf_counter()
        if (seen := [waits_in(board) for board in boards]) != waits:
            waits, since, before = seen, moment, signs
            continue
        in_vain = None not in waits and moment > since + _NOBODY_MOVED_FOR_S
        if in_vain and all(map(_had_a_core, before, signs)):
            deadlines.expire(spared=world())
            return
