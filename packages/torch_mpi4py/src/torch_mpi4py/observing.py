"""What can be seen of the ranks on this machine, from outside and without their help.

Their event boards say in which communication call each of them is, and their heartbeats whether
they compute, are silent, or have ended their cell. The system says who is alive.
:mod:`.rank_report` makes states and a report of it. Neither MPI nor torch is needed here, so a
notebook's kernel may look at ranks without becoming one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .event_board import Board, Position
from .main_thread import SILENT_S, is_stuck, seen_since
from .rank_report import MOST_PAST, Observation
from .rank_states import operation_of

__all__ = ["RankBoards", "is_alive", "observe"]

_WRITTEN_WITHIN_TRIES = 20  # of a millisecond: a writer may have lost its core in the middle
_FRESH_S = 0.2  # an older heartbeat may be from before the line that runs now


class RankBoards:
    """The boards of a run's ranks, which are files in one directory.

    A rank's number here is its rank at the start of MPI, after which its board is named.

    Args:
        directory: where they are.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._boards: dict[int, Board] = {}

    def board(self, number: int) -> Board | None:
        """The board of a rank, None if it has not made one yet."""
        if number not in self._boards:
            with contextlib.suppress(OSError, ValueError):
                self._boards[number] = Board.open(self.directory / str(number))
        return self._boards.get(number)

    def position(self, number: int) -> Position | None:
        """What a rank showed last, None if it has not shown anything."""
        board = self.board(number)
        return None if board is None else position_of(board)

    def is_busy(self, number: int) -> bool:
        """Whether a rank is running a cell."""
        position = self.position(number)
        return position is not None and position.running

    def is_stuck(self, number: int) -> bool:
        """Whether a rank gives no sign of life because C code keeps the interpreter's lock."""
        position, board = self.position(number), self.board(number)
        if position is None or board is None:
            return False
        silent = time.perf_counter() - position.time
        if silent <= SILENT_S:
            return False
        return is_stuck(silent, *seen_since(board.pid, position.cpu))

    def waits(self, numbers: Iterable[int]) -> dict[int, int | None]:
        """The number of the call in which each rank waits; None for one that does not wait."""
        found: dict[int, int | None] = {}
        for number in numbers:
            position, board = self.position(number), self.board(number)
            calls = []
            if position is not None and board is not None and position.running:
                still_open = board.open_operations()
                calls = [e.number for e in still_open if e.waiting and e.start > position.renewed]
            found[number] = calls[-1] if calls else None
        return found

    def last_movement(self, numbers: Iterable[int]) -> float:
        """When (``time.perf_counter()``) some rank last ended a call of communication, or 0."""
        boards = filter(None, map(self.board, numbers))
        latest = filter(None, (board.latest() for board in boards))
        return max((event.end or 0.0 for event in latest), default=0.0)


def position_of(board: Board) -> Position | None:
    """What a process showed last, also while it is being written."""
    for _ in range(_WRITTEN_WITHIN_TRIES):
        if (position := board.position) is not None:
            return position
        time.sleep(1e-3)
    return None


def observe(
    rank: int,
    board: Board | None,
    numbers: Mapping[int, int],
    *,
    alive: bool | None = None,
    most_past: int = MOST_PAST,
    ask_site: Callable[[], str] | None = None,
) -> Observation:
    """Look at one rank of this machine.

    Args:
        rank: what it is called now.
        board: its board; None if it cannot be read.
        numbers: what the ranks are called now, by what they were called at the start of MPI.
        alive: whether its process lives, if that is known.
        most_past: how many operations that are over to look at, at most.
        ask_site: asks it for the line in which its main thread is, if its heartbeat is not fresh.
    """
    if board is None:
        return Observation(rank, visible=False, alive=alive is not False)
    now, position = time.perf_counter(), position_of(board)
    alive = is_alive(board.pid) if alive is None else alive
    if position is None:
        position = Position(now, 0.0, "", 0, True, "")
    latest = board.latest()
    events = board.events(latest.number - most_past) if latest is not None else []
    past = [e for e in events if e.end is not None and e.start >= position.began]
    past = [e for e in past if e.kind != "section" and numbers.keys() >= set(e.ranks)][-most_past:]
    still_open = [e for e in board.open_operations() if e.start > position.renewed]
    still_open = [e for e in still_open if e.kind != "section" and numbers.keys() >= set(e.ranks)]
    silent = now - position.time
    waits = any(e.waiting for e in still_open)
    computed, asleep, site = 0.0, False, position.site
    if alive and position.running and not waits:
        if silent > SILENT_S:
            computed, asleep = seen_since(board.pid, position.cpu)
        if ask_site is not None and (silent > _FRESH_S or not site):
            site = ask_site() or site
    return Observation(
        rank,
        alive=alive,
        notebook=position.notebook,
        cell=position.cell,
        running=position.running,
        outcome=position.outcome,
        seconds=now - position.began if position.began else None,
        silent=silent,
        computed=computed,
        asleep=asleep,
        site=site,
        # What the rank waits for comes last.
        operations=tuple(
            operation_of(e, now, numbers) for e in sorted(still_open, key=lambda e: bool(e.waiting))
        ),
        past=tuple(operation_of(e, now, numbers) for e in past),
    )


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not collected does not."""
    import psutil

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
