"""What can be seen of the ranks on this machine, from outside and without their help.

Their event boards show which communication call each of them is in, and their heartbeats whether
they compute, are silent, or have ended their cell. The system knows which are alive. Neither MPI
nor torch is needed here, so a notebook's kernel may look at ranks without becoming one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from .event_board import ASLEEP_AT, LOOKS_AT, WORDS_A_SLOT, Board, Event, Position
from .main_thread import SILENT_S, keeps_the_lock, seen_since
from .rank_states import MOST_PAST, RankState

_FRESH_S = 0.2  # an older heartbeat may be from before the line that runs now
_HAS_RUN_FOR_S = 0.2
_HAS_LOOKED = 10  # times


class Signs(NamedTuple):
    """What a waiting rank has done with the cores that it got.

    One in a call of MPI looks for messages all the time; one that sleeps while it waits for a
    collective, or for a message, looks at least 10 times a second.

    Attributes:
        ran: seconds for which its main thread has run on a core, by its latest heartbeat.
        looks: how often it has looked for other ranks while asleep.
    """

    ran: float
    looks: int

    def show_a_core_since(self, before: Signs) -> bool:
        """Whether it had a core since ``before``, so that it waits for others and not for that."""
        return self.ran - before.ran > _HAS_RUN_FOR_S or self.looks - before.looks >= _HAS_LOOKED


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
        return None if board is None else board.position

    def is_busy(self, number: int) -> bool:
        """Whether a rank is running a cell."""
        position = self.position(number)
        return position is not None and position.running

    def keeps_the_lock(self, number: int) -> bool:
        """Whether a rank gives no sign of life because C code keeps the interpreter's lock.

        A rank that waits in a call has given the lock back. If it is silent, the machine has no
        core for its watcher, which is about to free it.
        """
        position, board = self.position(number), self.board(number)
        if position is None or board is None:
            return False
        return keeps_the_lock(*_signs(board, position)) and waits_in(board) is None

    def waits(self, numbers: Iterable[int]) -> dict[int, int | None]:
        """The number of the call in which each rank waits; None for one that does not wait."""
        boards = {number: self.board(number) for number in numbers}
        return {n: None if board is None else waits_in(board) for n, board in boards.items()}

    def state(
        self,
        rank: int,
        number: int,
        numbers: Mapping[int, int],
        *,
        alive: bool,
        ask_site: Callable[[], str],
    ) -> RankState:
        """Look at a rank, as :func:`observe` does."""
        return observe(rank, self.board(number), numbers, alive=alive, ask_site=ask_site)


def waits_in(board: Board) -> int | None:
    """The number of the call in which a rank waits, None if it does not wait."""
    position = board.position
    if position is None or not position.running:
        return None
    waiting = [e for e in board.open_operations() if e.waiting and e.start > position.renewed]
    return waiting[-1].number if waiting else None


def signs_of(board: Board) -> Signs:
    """Return what shows whether a waiting rank had a core."""
    position = board.position
    return Signs(position.cpu if position else 0.0, looks_asleep(board))


def looks_asleep(board: Board) -> int:
    """Return how often a sleeping rank has looked for the others; 0 if it isn't asleep.

    At each look it had a core, and the ranks it waits for had not come.
    """
    return sum(board.arrivals[ASLEEP_AT::WORDS_A_SLOT]) + board.bell[LOOKS_AT]


def observe(
    rank: int,
    board: Board | None,
    numbers: Mapping[int, int],
    *,
    alive: bool | None = None,
    most_past: int = MOST_PAST,
    ask_site: Callable[[], str] | None = None,
) -> RankState:
    """Look at one rank of this machine.

    Args:
        rank: its number now.
        board: its board; None if it cannot be read.
        numbers: the numbers of the ranks now, by their numbers at the start of MPI.
        alive: whether its process lives, if that is known.
        most_past: how many operations that are over to look at, at most.
        ask_site: asks it for the line in which its main thread computes, if its heartbeat is not
            fresh.
    """
    if board is None:
        return RankState(rank, visible=False, alive=alive is not False)
    now = time.perf_counter()
    position = board.position or Position(now, 0.0, "", 0, True, "")
    alive = is_alive(board.pid) if alive is None else alive
    # Read first: what ends between the two reads is in both, and not in neither.
    still_open = _calls(board.open_operations(), position.renewed, now, numbers)
    opened = {event.number for event in still_open}
    latest = board.latest()
    events = board.events(latest.number - most_past) if latest is not None else []
    ended = [event for event in events if event.end is not None and event.number not in opened]
    past = _calls(ended, position.began, now, numbers)
    still_open.sort(key=lambda event: bool(event.waiting))  # the awaited one last
    silent, computed, asleep = _signs(board, position)
    site = position.site
    waits = position.at_breakpoint or (still_open and still_open[-1].waiting)
    computes = alive and position.running and not waits
    if computes and ask_site is not None and (silent > _FRESH_S or not site):
        site = ask_site() or site
    return RankState(
        rank,
        alive=alive,
        notebook=position.notebook,
        cell=position.cell,
        run=position.run,
        running=position.running,
        outcome=position.outcome,
        seconds=now - position.began if position.began else None,
        silent=silent,
        computed=computed,
        asleep=asleep,
        at_breakpoint=position.at_breakpoint,
        site=site,
        operations=tuple(still_open),
        past=tuple(past[-most_past:]),
    )


def _signs(board: Board, position: Position) -> tuple[float, float, bool]:
    """Return the arguments of :func:`~.main_thread.keeps_the_lock`."""
    silent = time.perf_counter() - position.time
    return silent, *(seen_since(board.pid, position.cpu) if silent > SILENT_S else (0.0, False))


def _calls(
    events: list[Event], since: float, now: float, numbers: Mapping[int, int]
) -> list[Event]:
    """Return the calls of communication that began after ``since`` among ranks that live."""
    calls = [event for event in events if event.kind != "section" and event.start > since]
    return [event.seen_at(now, numbers) for event in calls if numbers.keys() >= set(event.ranks)]


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not collected does not."""
    import psutil

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
