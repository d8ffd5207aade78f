"""What a rank does stands in a file that others can read, even when it is stuck.

Each process writes its operations into a board: a mapped file with a ring of records of one
size, a region of strings, a place for its position in the program and one for a verdict. A
reader needs nothing from the writer, so it also reads the board of a rank that is stuck in C,
stopped or dead. Standard library only: a notebook kernel reads boards without becoming a rank.
Writing down an operation takes half a microsecond, never blocks and never fails.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import struct
import tempfile
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["ANY", "Board", "BoardWriter", "Event", "Position", "Token", "Verdict"]

ANY = -1
"""A peer or tag that is not fixed, a root that does not exist, a size that is not known."""

MAGIC = b"rbrboard"
VERSION = 4
RECORDS = 8192  # a power of two
STRINGS_BYTES = 256 * 1024
VERDICT_BYTES = 16 * 1024

# magic, version, pid, rank, size, records, token, host
HEADER = struct.Struct("<8sIIIII16s64s")
# number | kind, group, site, dtype, shape | peer, root, tag | bytes | start, end |
# outcome, waiting | waited from | number again: a record whose two numbers differ is being written.
RECORD = struct.Struct("<Q5I3iqddIB3xdQ")
START = struct.Struct("<d")
END = struct.Struct("<dI")
ARRIVED = struct.Struct("<iiiq")  # peer, root, tag, bytes
# number | time, cpu, began, renewed | site, cell, running, notebook, lost | outcome | number
POSITION = struct.Struct("<QddddIIBBH256sQ")
VERDICT = struct.Struct("<QdIIQ")  # number, time, group, bytes of text, number

START_AT, END_AT, WAITING_AT, WAITED_FROM_AT = 48, 56, 68, 72
PEER_AT = 28
POSITION_AT = 256
VERDICT_AT = 1024
STRINGS_AT = VERDICT_AT + VERDICT_BYTES
RECORDS_AT = STRINGS_AT + STRINGS_BYTES
TOTAL = RECORDS_AT + RECORDS * RECORD.size

Token = tuple[int, int]
"""An open operation, as :meth:`BoardWriter.begin` hands it out: its number and place."""

NOT_WAITING, WAITING, NEVER_WAITS = 0, 1, 2
_WAITING_VALUES = (False, True, None)


class Event(NamedTuple):
    """One operation of one rank.

    Attributes:
        number: 1, 2, ... in the order of the calls of this process.
        kind: "send", "recv", "all_reduce", ... for torch.distributed; mpi4py's own names
            ("Send", "irecv", "Allreduce") for calls of the library's ``comm``, of which
            ``Sendrecv`` makes two events, "Sendrecv: send" and "Sendrecv: recv"; "section".
        group: name of the process group or communicator.
        peer: the other rank, as numbered in the group; -1 if any or none.
        root: root of a collective, as numbered in the group; -1 if none.
        tag: tag of a message; -1 if any or none.
        bytes: size of the message; in a collective what this rank hands over to the MPI
            library; -1 if not known.
        dtype: e.g. "float32"; "pickle" for Python objects.
        shape: e.g. "(3, 4)" of a message, "SUM of 12" of a collective; a section's name.
        start: seconds of ``time.perf_counter()``.
        end: the same, None while it is open.
        site: the line of the caller: "cell 7, line 3" or "program.py:12".
        outcome: "" while open, "ok", "dropped" (nobody waited), or the error's class name.
        waiting: whether the program stands still for it; None for a section.
        ranks: world ranks of the group, in the group's order.
        waited_from: when the program first stood still for it: at its start if it blocks, later
            or never (None) if it does not.
    """

    number: int
    kind: str
    group: str
    peer: int
    root: int
    tag: int
    bytes: int
    dtype: str
    shape: str
    start: float
    end: float | None
    site: str
    outcome: str
    waiting: bool | None
    ranks: tuple[int, ...] = ()
    waited_from: float | None = None

    @property
    def sends(self) -> bool:
        """Whether it is one message sent."""
        return "send" in self.kind.lower() and not self.kind.endswith("recv")

    @property
    def receives(self) -> bool:
        """Whether it is one message received."""
        return self.kind.lower().endswith("recv")

    @property
    def collective(self) -> bool:
        """Whether all ranks of the group take part in it."""
        return not (self.sends or self.receives or self.kind.lower() in _NEITHER)

    @property
    def world_peer(self) -> int:
        """The other rank, as numbered in the world; -1 if any or none."""
        return self.ranks[self.peer] if 0 <= self.peer < len(self.ranks) else ANY


_NEITHER = {"section", "probe", "mprobe"}


class Position(NamedTuple):
    """Where a process was when it last had a moment to say so, about ten times a second.

    Times are seconds of ``time.perf_counter()``.

    Attributes:
        time: when that was.
        cpu: seconds for which the main thread had run on a core, 0 if nobody knows.
        site: line of the program in which the main thread was.
        cell: number of the latest cell, 0 outside of notebooks and where cells are not counted.
        running: whether a cell or a program was running.
        outcome: how the latest cell or the program ended: "" if well, or the error.
        began: when the latest cell or the program began, 0 if none has.
        renewed: when communication was last made anew; what was open before is over.
        lost: what the latest cell has lost, in flags of whoever runs cells.
        notebook: whether the process runs cells, so that it does not end by itself.
    """

    time: float
    cpu: float
    site: str
    cell: int
    running: bool
    outcome: str
    began: float = 0.0
    renewed: float = 0.0
    lost: int = 0
    notebook: bool = False


class Verdict(NamedTuple):
    """Why a group was given up, as one rank found it.

    Attributes:
        time: seconds of ``time.perf_counter()``.
        group: name of the group.
        text: the report.
    """

    time: float
    group: str
    text: str


def group_text(name: str, ranks: tuple[int, ...]) -> str:
    """Return a group's name and world ranks as one string, runs of ranks shortened."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return name + "\n" + ",".join(f"{low}-{high}" for low, high in runs)


def _group_from(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, runs = text.partition("\n")
    ranks: list[int] = []
    for run in filter(None, runs.split(",")):
        low, high = run.split("-")
        ranks.extend(range(int(low), int(high) + 1))
    return name, tuple(ranks)


class Board:
    """Reads the board of one process, living or dead.

    Attributes:
        pid: the process that writes it.
        rank: its rank in the world.
        world_size: number of ranks in the world.
        host: the machine on which it runs.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        fields = HEADER.unpack_from(memory)
        magic, version, self.pid, self.rank, self.world_size, records, token, host = fields
        if magic != MAGIC or version != VERSION or records != RECORDS:
            raise ValueError("this file is not an event board of this version")
        self.token = token.hex()
        self.host = host.rstrip(b"\0").decode(errors="replace")
        self._memory = memory
        self._strings: dict[int, str] = {0: ""}
        self._groups: dict[int, tuple[str, tuple[int, ...]]] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Board:
        """Open the board in file ``path``.

        Raises:
            OSError: if there is no such file.
            ValueError: if it is not a board.
        """
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if os.fstat(descriptor).st_size < TOTAL:
                raise ValueError(f"{path} is too small for an event board")
            return cls(mmap.mmap(descriptor, TOTAL, mmap.MAP_SHARED, mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def events(self, since: int = 0) -> list[Event]:
        """Return the events that the ring still holds, from number ``since``, in order."""
        numbers = self._column("Q", 0)
        wanted = [slot for slot, number in enumerate(numbers) if number and number >= since]
        return self._read(wanted)

    def at(self, event: Token) -> Event:
        """Return the event that :meth:`BoardWriter.begin` made, read by its own process."""
        return self._event(RECORD.unpack_from(self._memory, event[1]))

    def open_operations(self) -> list[Event]:
        """Return the operations that have not ended, in order; they never leave the ring."""
        ends, numbers = self._column("d", END_AT), self._column("Q", 0)
        found = self._read([slot for slot, end in enumerate(ends) if end == 0 and numbers[slot]])
        return [event for event in found if event.end is None]  # it may have ended since

    def latest(self) -> Event | None:
        """Return the event that ended last, None if there is none."""
        ends = self._column("d", END_AT)
        slot = ends.index(max(ends))
        found = self._read([slot]) if ends[slot] else []
        return found[0] if found else None

    @property
    def position(self) -> Position | None:
        """Where the process last said it was, None if it never has."""
        fields = self._stable(POSITION, POSITION_AT)
        if fields is None:
            return None
        _, when, cpu, began, renewed, site, cell, running, notebook, lost, outcome, _ = fields
        text = outcome.rstrip(b"\0").decode(errors="replace")
        where = self._string(site)
        return Position(
            when, cpu, where, cell, bool(running), text, began, renewed, lost, bool(notebook)
        )

    @property
    def verdict(self) -> Verdict | None:
        """The latest report this process wrote, None if it has written none."""
        fields = self._stable(VERDICT, VERDICT_AT)
        if fields is None:
            return None
        _, when, group, length, _ = fields
        begin = VERDICT_AT + VERDICT.size
        text = self._memory[begin : begin + length].decode(errors="replace")
        if self._stable(VERDICT, VERDICT_AT) != fields:
            return None
        return Verdict(when, self._string(group), text)

    def _column(self, format: Literal["d", "Q"], offset: int) -> list[Any]:
        with memoryview(self._memory) as whole:
            table = whole[RECORDS_AT:TOTAL].cast(format)
            return table[offset // 8 :: RECORD.size // 8].tolist()

    def _read(self, slots: list[int]) -> list[Event]:
        found = []
        for slot in slots:
            fields = self._stable(RECORD, RECORDS_AT + slot * RECORD.size)
            if fields is not None:
                found.append(self._event(fields))
        return sorted(found)

    def _stable(self, layout: struct.Struct, offset: int) -> tuple[Any, ...] | None:
        """Return the fields of a record that nobody is writing, None if there is none."""
        for _ in range(3):
            once = self._memory[offset : offset + layout.size]
            again = self._memory[offset : offset + layout.size]
            fields = layout.unpack(once)
            if once == again and fields[0] == fields[-1]:
                return fields if fields[0] else None
        return None

    def _event(self, fields: tuple[Any, ...]) -> Event:
        number, kind, group, site, dtype, shape = fields[:6]
        peer, root, tag, size, start, end, outcome, waiting, waited_from, _ = fields[6:]
        name, ranks = self._group(group)
        return Event(
            number,
            self._string(kind),
            name,
            peer,
            root,
            tag,
            size,
            self._string(dtype),
            self._string(shape),
            start,
            end or None,
            self._string(site),
            self._string(outcome),
            _WAITING_VALUES[waiting],
            ranks,
            waited_from or None,
        )

    def _group(self, offset: int) -> tuple[str, tuple[int, ...]]:
        if offset not in self._groups:
            self._groups[offset] = _group_from(self._string(offset))
        return self._groups[offset]

    def _string(self, offset: int) -> str:
        text = self._strings.get(offset)
        if text is None:
            begin = STRINGS_AT + offset
            length = int.from_bytes(self._memory[begin : begin + 2], "little")
            text = self._memory[begin + 2 : begin + 2 + length].decode(errors="replace")
            self._strings[offset] = text
        return text


class BoardWriter:
    """Writes the board of this process; its methods never block and never fail.

    Args:
        rank: rank of this process in the world.
        size: number of ranks in the world.
        path: where the file is to be; None for one that goes with the process.

    Attributes:
        path: where other processes of this machine find it, None if they cannot.
        temporary: whether ``path`` must be removed once the others have opened it.
        enabled: whether operations are recorded.
        reader: reads this board in its own process.
    """

    def __init__(self, rank: int, size: int, path: Path | None = None) -> None:
        self.temporary = False
        self.path, self._memory = self._allocate(rank, path)
        self.token = secrets.token_bytes(16)
        host = socket.gethostname().encode()[:64]
        HEADER.pack_into(
            self._memory, 0, MAGIC, VERSION, os.getpid(), rank, size, RECORDS, self.token, host
        )
        self._lock = threading.Lock()
        self._used = 8  # of the region of strings, under the lock
        # Where each string is. Two threads may add the same one, to two places: both are right.
        self._known: dict[str, int] = {"": 0}
        # Counters, which any thread may advance: no two get the same number or slot.
        self._numbers = count(1)
        self._slots = count()
        self._serial = count(1)
        # The number of the operation that is open in each slot, 0 if none is. Who begins it writes
        # its number, and who ends it the 0.
        self._owners = [0] * RECORDS
        self.enabled = True
        self.reader = Board(self._memory)
        self._last = 0  # the latest number, roughly: any thread writes it

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
        self,
        kind: int,
        group: int,
        waiting: int,
        site: int,
        dtype: int = 0,
        shape: int = 0,
        peer: int = ANY,
        root: int = ANY,
        tag: int = ANY,
        size: int = ANY,
        start: float = 0.0,
    ) -> Token | None:
        """Write that an operation starts, now or at ``start``; all texts are given by their places.

        Returns:
            What the other methods need, None if nothing is recorded.
        """
        if not self.enabled:
            return None
        number = next(self._numbers)
        slot = next(self._slots) % RECORDS
        if self._owners[slot]:
            slot = self._free_slot(slot)
        self._owners[slot] = self._last = number
        offset = RECORDS_AT + slot * RECORD.size
        start = start or time.perf_counter()
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

    def close(self, token: Token, outcome: int, when: float) -> None:
        """Write that an operation has ended; what has ended already stays as it is."""
        number, offset = token
        slot = (offset - RECORDS_AT) // RECORD.size
        if self._owners[slot] == number:
            self._owners[slot] = 0
            END.pack_into(self._memory, offset + END_AT, when, outcome)

    def is_open(self, token: Token | None) -> bool:
        """Return whether this is an operation that has not ended."""
        if token is None:
            return False
        return self._owners[(token[1] - RECORDS_AT) // RECORD.size] == token[0]

    def open_in(self, group: int) -> list[Token]:
        """Return the open operations of a group."""
        found = []
        for slot, number in enumerate(self._owners):
            offset = RECORDS_AT + slot * RECORD.size
            if number and RECORD.unpack_from(self._memory, offset)[2] == group:
                found.append((number, offset))
        return found

    def restart(self, token: Token | None, start: float) -> None:
        """Write when an operation that was queued began in truth."""
        if token is not None and self.is_open(token):
            START.pack_into(self._memory, token[1] + START_AT, start)

    def arrived(self, token: Token | None, peer: int, tag: int, size: int) -> None:
        """Write what is known of a message only when it has come; call it before the end."""
        if token is not None and self.is_open(token):
            ARRIVED.pack_into(self._memory, token[1] + PEER_AT, peer, ANY, tag, size)

    def waits(self, token: Token | None, waiting: bool) -> None:
        """Write whether the program stands still for an open operation."""
        if token is not None and self.is_open(token):
            self._memory[token[1] + WAITING_AT] = waiting
            first = token[1] + WAITED_FROM_AT
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
