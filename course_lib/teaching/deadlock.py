"""Ends a learner's function in which all ranks wait for each other, long before its deadline."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

from torch_mpi4py import world
from torch_mpi4py.board.observing import Signs, signs_of, waits_in
from torch_mpi4py.faults import deadlines
from torch_mpi4py.log.peer_boards import board_of

_LOOK_EVERY_S = 0.25
_NO_PROGRESS_FOR_S = 2.0


@contextlib.contextmanager
def ended_early(ranks: Sequence[int]) -> Iterator[None]:
    """End this process's calls if each of ``ranks`` waits in one and none makes progress.

    Calls on ``comm`` are spared: there the check waits for ranks that have finished.

    A rank in a call of MPI looks for messages all the time. If each has done so for 0.2 s on a
    core within 2 s, no message is under way, because checks send little. A rank that sleeps while
    it waits for a collective, or for a message, looks at least 10 times a second. Ten looks within
    the 2 s are evidence too. If none of this is visible (another host), the deadline ends the
    calls.

    Args:
        ranks: the ranks that run the code inside, numbered as at the start of MPI.
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
    since, before = 0.0, [Signs(0.0, 0)]
    # All ranks look at the same moments of the clock that they share, and so end it together.
    while not over.wait(_LOOK_EVERY_S - time.perf_counter() % _LOOK_EVERY_S):
        boards = [board for board in map(board_of, ranks) if board is not None]
        if len(boards) < len(ranks):
            return
        signs = [signs_of(board) for board in boards]
        moment = time.perf_counter()
        if (seen := [waits_in(board) for board in boards]) != waits:
            waits, since, before = seen, moment, signs
            continue
        stuck = None not in waits and moment > since + _NO_PROGRESS_FOR_S
        if stuck and all(map(Signs.show_a_core_since, signs, before)):
            deadlines.expire(spared=world())
            return
