"""Lets every rank read the boards of all ranks on its machine, including the dead.

In a cluster they are files in one directory. Each host has its own, or several hosts share one: a
file of another host is left alone, since no memory is shared with it. In a program started by
mpiexec they are memory without a name: the ranks tell each other where it is, map it, and nothing
is left behind, however they end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ..board.event_board import Board
from ..core.runtime import MPI
from .events import log

_LOCK_SECONDS = 5.0  # a report takes milliseconds, on a machine that does not stall in its middle

Address = tuple[int, str, str, str]
"""A board's rank, host, file ("" if none) and the token inside it."""

directory = os.environ.get("TORCH_MPI4PY_EVENTS_DIR")
"""Where all boards are; None if the ranks have to tell each other where each is."""
_boards: dict[int, Board | None] = {MPI.COMM_WORLD.Get_rank(): log.reader}
_bells: dict[int, memoryview] = {MPI.COMM_WORLD.Get_rank(): log.bell}
_lock_file = -1


def address() -> Address:
    """Return where this rank's board is, for :func:`exchange`."""
    return MPI.COMM_WORLD.Get_rank(), socket.gethostname(), log.path or "", log.token


def exchange(addresses: list[Address]) -> None:
    """Open the boards of the ranks whose :func:`address` is given, as far as they are here."""
    global _lock_file
    here = [one for one in sorted(addresses) if one[1] == socket.gethostname() and one[2]]
    for rank, _, path, token in here:
        if (known := _boards.get(rank)) is None or known.token != token:
            with contextlib.suppress(OSError, ValueError):  # as good as on another host
                board = Board.open(path)
                if board.token == token:
                    _boards[rank] = board
                    _bells[rank] = Board.open_bell(path)
    if _lock_file < 0 and here:
        with contextlib.suppress(OSError):
            _lock_file = os.open(here[0][2], os.O_RDONLY | os.O_CLOEXEC)


def forget_path() -> None:
    """Remove the file of this rank's board, which all others have opened by now."""
    if log.temporary and log.path is not None:
        Path(log.path).unlink(missing_ok=True)
        log.temporary = False


def board_of(rank: int) -> Board | None:
    """Return the board of world rank ``rank``, None if it runs on another host."""
    if rank not in _boards and directory is not None:
        with contextlib.suppress(OSError, ValueError):
            path = Path(directory) / str(rank)
            board = Board.open(path)
            if board.host == log.reader.host:
                _boards[rank], _bells[rank] = board, Board.open_bell(path)
            else:  # several hosts see the directory, but share no memory
                _boards[rank] = None
    return _boards.get(rank)


def bell_of(rank: int) -> memoryview | None:
    """Return the words by which world rank ``rank`` is woken, None if it runs on another host."""
    board_of(rank)
    return _bells.get(rank)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let only one rank of this machine be in the block, but never wait for long."""
    global _lock_file
    if _lock_file < 0 and directory is not None:
        _lock_file = os.open(Path(directory) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    held = _lock_file >= 0 and _take_lock()
    try:
        yield
    finally:
        if held:
            fcntl.flock(_lock_file, fcntl.LOCK_UN)


def _take_lock() -> bool:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(_lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # a rank that was stopped in the block must not stop the others
            if time.monotonic() > deadline:
                return False
            time.sleep(1e-3)
        else:
            return True
