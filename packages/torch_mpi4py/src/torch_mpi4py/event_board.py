"""What a rank does stands in a file that others can read, even when it is stuck.

Each process writes its operations into a board: a mapped file with a ring of records of one
size, a region of strings, a place for its position in the program and one for a verdict. A
reader needs nothing from the writer, so it also reads the board of a rank that is stuck in C,
stopped or dead. Standard library only: a notebook kernel reads boards without becoming a rank.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

__all__ = ["ANY", "Board", "Event", "Position", "Verdict"]

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

    def at(self, event: tuple[int, int]) -> Event:
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

    def _column(self, format: str, offset: int) -> list:
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

    def _stable(self, layout: struct.Struct, offset: int) -> tuple | None:
        """Return the fields of a record that nobody is writing, None if there is none."""
        for _ in range(3):
            once = self._memory[offset : offset + layout.size]
            again = self._memory[offset : offset + layout.size]
            fields = layout.unpack(once)
            if once == again and fields[0] == fields[-1]:
                return fields if fields[0] else None
        return None

    def _event(self, fields: tuple) -> Event:
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
