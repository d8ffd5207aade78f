"""Writing down an operation takes half a microsecond, never blocks, never fails.

:mod:`torch_mpi4py.event_board` says what a board is, and reads it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import tempfile
import threading
import time
from itertools import count
from pathlib import Path

from .event_board import (
    ANY,
    ARRIVED,
    END,
    END_AT,
    HEADER,
    MAGIC,
    PEER_AT,
    POSITION,
    POSITION_AT,
    RECORD,
    RECORDS,
    RECORDS_AT,
    START,
    START_AT,
    STRINGS_AT,
    STRINGS_BYTES,
    TOTAL,
    VERDICT,
    VERDICT_AT,
    VERDICT_BYTES,
    VERSION,
    WAITED_FROM_AT,
    WAITING,
    WAITING_AT,
    Board,
    Position,
    Verdict,
)

__all__ = ["BoardWriter"]


class BoardWriter:
    """Writes the board of this process; its methods never block and never fail.

    Args:
        rank: rank of this process in the world.
        size: number of ranks in the world.
        path: where the file is to be; None for one that goes with the process.

    Attributes:
        path: where other processes of this machine find it, None if they cannot.
        temporary: whether ``path`` must be removed once the others have opened it.
    """

    def __init__(self, rank: int, size: int, path: Path | None = None) -> None:
        self.temporary = False
        self.path, self._memory = self._allocate(rank, path)
        self.token = secrets.token_bytes(16)
        host = socket.gethostname().encode()[:64]
        HEADER.pack_into(
            self._memory, 0, MAGIC, VERSION, os.getpid(), rank, size, RECORDS, self.token, host
        )
        self._known: dict[str, int] = {"": 0}
        self._used = 8
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._slots = count()
        self._owners = [0] * RECORDS
        self._serial = count(1)
        self._last = 0

    def _allocate(self, rank: int, path: Path | None) -> tuple[str | None, mmap.mmap]:
        try:
            if path is None and hasattr(os, "memfd_create"):
                descriptor = os.memfd_create("torch_mpi4py event board")
                where = f"/proc/{os.getpid()}/fd/{descriptor}"
            elif path is None:
                descriptor, where = tempfile.mkstemp(prefix="course-events-")
                self.temporary = True
            else:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor, scratch = tempfile.mkstemp(prefix=f".{rank}-", dir=path.parent)
                where = str(path)
            os.ftruncate(descriptor, TOTAL)
            if hasattr(os, "posix_fallocate"):  # a full disk must not become a SIGBUS later
                os.posix_fallocate(descriptor, 0, TOTAL)
            memory = mmap.mmap(descriptor, TOTAL)
            if path is not None:
                os.replace(scratch, path)  # readers of an earlier run keep what they have open
                os.close(descriptor)
            return where, memory
        except OSError:  # no room or no permission: only this process can read its board
            return None, mmap.mmap(-1, TOTAL)

    def reader(self) -> Board:
        """Return a reader of this process's own board."""
        return Board(self._memory)

    def string(self, text: str) -> int:
        """Return the place of ``text`` among the strings; 0, the empty one, if they are full."""
        place = self._known.get(text)
        if place is None:
            place = self._add_string(text)
        return place

    def _add_string(self, text: str) -> int:
        coded = text.encode(errors="replace")[:65535]
        with self._lock:
            place = self._used
            if place + 2 + len(coded) > STRINGS_BYTES:
                return 0
            self._used += 2 + len(coded)
        begin = STRINGS_AT + place
        self._memory[begin : begin + 2 + len(coded)] = len(coded).to_bytes(2, "little") + coded
        self._known[text] = place
        return place

    def next_number(self) -> int:
        """Return a number that no event so far has reached."""
        return self._last + 1

    def begin(
        self, kind: int, group: int, site: int, dtype: int, shape: int, peer: int, root: int,
        tag: int, size: int, waiting: int, start: float,
    ) -> tuple[int, int]:  # fmt: skip
        """Write an operation that starts; return what :meth:`end` needs."""
        number = next(self._numbers)
        slot = next(self._slots) % RECORDS
        if self._owners[slot]:
            slot = self._free_slot(slot)
        self._owners[slot] = self._last = number
        offset = RECORDS_AT + slot * RECORD.size
        RECORD.pack_into(
            self._memory, offset, number, kind, group, site, dtype, shape,
            peer, root, tag, size, start, 0.0, 0, waiting, start if waiting == WAITING else 0.0,
            number,
        )  # fmt: skip
        return number, offset

    def _free_slot(self, slot: int) -> int:
        """Pass over operations that are still open; if all are, the oldest gives way."""
        for _ in range(RECORDS):
            slot = next(self._slots) % RECORDS
            if not self._owners[slot]:
                return slot
        return slot

    def end(self, event: tuple[int, int], outcome: int, when: float) -> None:
        """Write that an operation has ended; what has ended already stays as it is."""
        number, offset = event
        slot = (offset - RECORDS_AT) // RECORD.size
        if self._owners[slot] == number:
            self._owners[slot] = 0
            END.pack_into(self._memory, offset + END_AT, when, outcome)

    def is_open(self, event: tuple[int, int]) -> bool:
        """Return whether the operation has not ended."""
        return self._owners[(event[1] - RECORDS_AT) // RECORD.size] == event[0]

    def open_in(self, group: int) -> list[tuple[int, int]]:
        """Return the open operations of a group."""
        found = []
        for slot, number in enumerate(self._owners):
            offset = RECORDS_AT + slot * RECORD.size
            if number and RECORD.unpack_from(self._memory, offset)[2] == group:
                found.append((number, offset))
        return found

    def restart(self, event: tuple[int, int], start: float) -> None:
        """Write when an operation that was queued began in truth."""
        if self.is_open(event):
            START.pack_into(self._memory, event[1] + START_AT, start)

    def arrived(self, event: tuple[int, int], peer: int, tag: int, size: int) -> None:
        """Write what is known of a message only when it has come; call it before the end."""
        if self.is_open(event):
            ARRIVED.pack_into(self._memory, event[1] + PEER_AT, peer, ANY, tag, size)

    def waits(self, event: tuple[int, int], waiting: int) -> None:
        """Write whether the program stands still for an open operation."""
        if self.is_open(event):
            self._memory[event[1] + WAITING_AT] = waiting
            first = event[1] + WAITED_FROM_AT
            if waiting and not any(self._memory[first : first + START.size]):
                START.pack_into(self._memory, first, time.perf_counter())

    def set_position(self, position: Position) -> None:
        """Write where the main thread is."""
        number = next(self._serial)
        POSITION.pack_into(
            self._memory, POSITION_AT, number, position.time, position.cpu, position.began,
            position.renewed, self.string(position.site), position.cell, position.running,
            position.notebook, position.lost, position.outcome.encode(errors="replace"), number,
        )  # fmt: skip

    def set_verdict(self, group: str, text: str) -> Verdict:
        """Write why a group was given up, at most 16 KiB."""
        coded = text.encode(errors="replace")[: VERDICT_BYTES - VERDICT.size]
        number, when = next(self._serial), time.perf_counter()
        place = self.string(group)
        begin = VERDICT_AT + VERDICT.size
        with self._lock:
            VERDICT.pack_into(self._memory, VERDICT_AT, number, when, place, 0, 0)
            self._memory[begin : begin + len(coded)] = coded
            VERDICT.pack_into(self._memory, VERDICT_AT, number, when, place, len(coded), number)
        return Verdict(when, group, text)
