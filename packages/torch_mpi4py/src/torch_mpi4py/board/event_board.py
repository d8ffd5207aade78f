"""The event board: a file in which a rank records its operations, readable at any time.

It is mapped into memory and has a ring of fixed-size records, one for each operation, a region of
strings, and three notes: which process writes it, where that process is in its program, and why it
has given up a group. A reader needs nothing from the writer, so it can also read the board of a
rank that is stuck in C, stopped or dead. It uses only the standard library, so a notebook kernel
can read boards without becoming a rank. Recording an operation takes half a microsecond, never
blocks and never fails.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import board_strings
from .board_strings import BoardStrings

if TYPE_CHECKING:
    import numpy

__all__ = ["ANY", "Board", "BoardWriter", "Event", "Position", "Token", "Verdict"]

ANY = -1
"""A peer or tag that is not fixed, a root that does not exist, a size that is not known."""
WHOLE_GROUPS = ("", "world", "default")
"""Names of groups that hold every rank."""
OTHER_GROUP = "PyTorch's "
"""Precedes the backend in the names of groups that are not ours, e.g. ``PyTorch's gloo``."""

FORMAT = "torch_mpi4py event board 10"
RECORDS = 8192  # a power of two
STRINGS_BYTES = 512 * 1024

# number | kind, group, site, dtype, shape | peer, root, tag | bytes | start, end |
# outcome, waiting | waited from | number again: a record whose two numbers differ is being written.
RECORD = struct.Struct("<Q5I3iqddIB3xdQ")
START = struct.Struct("<d")
END = struct.Struct("<dI")
ARRIVED = struct.Struct("<iiiq")  # peer, root, tag, bytes
_PLACES_AT = (8, 12, 16, 20, 24, 64)  # of a record's strings
PEER_AT, START_AT, END_AT, WAITING_AT, WAITED_FROM_AT = 28, 48, 56, 68, 72
# A note is a list in JSON: number, bytes of text, text, number again.
NOTE = struct.Struct("<QI")
NUMBER = struct.Struct("<Q")
_encoded = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would make one each time
_READ_TRIES = 20  # strings are replaced once in thousands of operations
_FEW = 64  # records that are copied one by one: the whole ring takes milliseconds
_WHOLE_SHARE = 0.9  # of the records, which no thread was writing
_NOTE_TRIES = 20  # of a millisecond: a writer may have lost its core in the middle
_MOST_TEXT, _MOST_REPORT = 256, 16 * 1024  # characters, of up to six bytes each in a note

HEADER_AT, POSITION_AT, VERDICT_AT, STRINGS_AT = 0, 4 * 1024, 8 * 1024, 128 * 1024
RECORDS_AT = STRINGS_AT + STRINGS_BYTES
ARRIVALS_AT = RECORDS_AT + RECORDS * RECORD.size
# For each of this process's communicators, where its ranks meet: see :mod:`.arrivals`.
ARRIVAL_SLOTS, WORDS_A_SLOT = 4096, 4
ASLEEP_AT = 3  # where in a slot its rank counts its looks while it sleeps and waits for others
# The one page that other ranks write, too: see :mod:`.doorbell`. Pages may be of 64 KiB.
BELL_AT = -(ARRIVALS_AT + 8 * WORDS_A_SLOT * ARRIVAL_SLOTS) // 65536 * -65536
_BELL_BYTES = 4096
LOOKS_AT = 3
TOTAL = BELL_AT + _BELL_BYTES

Token = tuple[int, int]
"""An open operation, as :meth:`BoardWriter.begin` hands it out: its number and place."""

NOT_WAITING, WAITING, NEVER_WAITS = 0, 1, 2
_WAITING_VALUES = (False, True, None)
_NO_COLLECTIVES = ("section", "probe", "mprobe")
# Both spellings name one collective.
_SAME = {"allreduce": "all_reduce", "bcast": "broadcast", "allgather": "all_gather"}


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
        outcome: "" while open, "ok", "dropped" (never waited for), or the error's class name.
        waiting: whether the program is blocked by it; None for a section.
        ranks: world ranks of the group, in the group's order.
        waited_from: when the program was first blocked by it: at its start if it is a blocking
            call, otherwise later or never (None).
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
    def needs_send(self) -> bool:
        """Whether it ends when a message comes, which a probe does, too."""
        return self.kind.lower().endswith(("recv", "probe"))

    @property
    def collective(self) -> bool:
        """Whether all ranks of the group take part in it."""
        return not (self.sends or self.receives or self.kind.lower() in _NO_COLLECTIVES)

    @property
    def name(self) -> str:
        """The kind, equal for calls that match each other."""
        plain = self.kind.removeprefix("I").lower() if self.collective else self.kind.lower()
        return _SAME.get(plain, plain)

    @property
    def world_peer(self) -> int:
        """The other rank, as numbered in the world; -1 if any or none."""
        return self._in_world(self.peer)

    @property
    def seconds(self) -> float:
        """How long it has been under way, if it has an end."""
        return 0.0 if self.end is None else self.end - self.start

    def _in_world(self, rank: int) -> int:
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else ANY

    def seen_at(self, now: float, numbers: Mapping[int, int]) -> Event:
        """Return it as it was at a moment, where it ends if it is open.

        Args:
            now: the moment, in seconds of ``time.perf_counter()``.
            numbers: the new numbers of the ranks since some have died, by their first numbers.
        """
        ranks = tuple(numbers.get(rank, rank) for rank in self.ranks)
        # It may have begun while the board was being read, after that moment.
        return self._replace(ranks=ranks, end=self.end or max(now, self.start))

    def text(self) -> str:
        """Return ``recv from rank 0, tag 0, (3,) float32``, its ranks as ranks of the world."""
        words, peer, root = self.kind, self.world_peer, self._in_world(self.root)
        if self.sends:
            words += f" to rank {peer}"
        elif self.needs_send:
            words += " from any rank" if peer == ANY else f" from rank {peer}"
        parts = [words]
        if root != ANY:
            parts.append(f"root {root}")
        if self.tag != ANY and not self.collective:
            parts.append(f"tag {self.tag}")
        tensor = " ".join(part for part in (self.shape, self.dtype) if part)
        if tensor:
            parts.append(tensor)
        if self.group not in WHOLE_GROUPS:
            parts.append(f"in {self.group}")
        return ", ".join(parts)


class Position(NamedTuple):
    """The last reported position of a process, which reports about ten times a second.

    Times are seconds of ``time.perf_counter()``.

    Attributes:
        time: when that was.
        cpu: seconds for which the main thread had run on a core, 0 if unknown.
        site: line of the program in which the main thread was.
        cell: number of the latest cell, 0 outside notebooks and where cells are not counted.
        running: whether a cell or a program was running.
        outcome: how the latest cell or the program ended: "" if well, or the error.
        began: when the latest cell or the program began, 0 if none has.
        renewed: when communication was last renewed; what was open before is over.
        lost: what the latest cell has lost, in flags defined by the program that runs cells.
        notebook: whether the process runs cells, so that it does not end by itself.
        run: which run of a cell the latest is, the same on all ranks that were asked for it
            together; empty if not known.
        at_breakpoint: whether the main thread is stopped at a breakpoint, where a user may
            look into it.
        interrupts: how many have reached the Python code of the latest cell; one that comes while
            it handles another does not count. It is -1 if the cell has replaced the handler.
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
    run: str = ""
    at_breakpoint: bool = False
    interrupts: int = 0


class Verdict(NamedTuple):
    """Why a group was given up, as one rank found it.

    Attributes:
        time: seconds of ``time.perf_counter()``.
        group: name of the group.
        text: the report.
        dead: the ranks of the group that had died, as numbered in the world.
    """

    time: float
    group: str
    text: str
    dead: Sequence[int] = ()


def group_text(name: str, ranks: Sequence[int]) -> str:
    """Return a group's name and world ranks as one string, runs of ranks shortened."""
    runs = groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])
    lists = [[rank for _, rank in run] for _, run in runs]
    return json.dumps([name, [(run[0], run[-1] + 1) for run in lists]])


class Board:
    """Reads the board of one process, living or dead.

    Attributes:
        pid: the process that writes it.
        rank: its rank in the world.
        world_size: number of ranks in the world.
        host: the machine on which it runs.
        arrivals: the words by which its ranks meet others, each of 64 bits.
        bell: the words by which others wake it; at ``LOOKS_AT`` it counts how often it has looked
            for its message while asleep; 0 if it is awake.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        known, *who = self._note(HEADER_AT) or [""]
        if known != FORMAT:
            raise ValueError("this file is not an event board of this version")
        self.pid, self.rank, self.world_size, self.token, self.host = who
        self._strings: dict[int, str] = {0: ""}
        self._groups: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._generation = 0  # of the strings known here
        self.arrivals = memoryview(memory)[ARRIVALS_AT:BELL_AT].cast("Q")
        self.bell = memoryview(memory)[BELL_AT:TOTAL].cast("Q")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Board:
        """Open the board in file ``path``.

        Raises:
            OSError: if there is no such file.
            ValueError: if it is not a board.
        """
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < TOTAL:
                raise ValueError(f"{path} is too small for an event board")
            return cls(mmap.mmap(file.fileno(), TOTAL, mmap.MAP_SHARED, mmap.PROT_READ))

    @staticmethod
    def open_bell(path: str | os.PathLike[str]) -> memoryview:
        """Return the words of the board in file ``path`` that every rank may write.

        Raises:
            OSError: if there is no such file, or it may not be written.
        """
        with open(path, "r+b") as file:
            return memoryview(mmap.mmap(file.fileno(), _BELL_BYTES, offset=BELL_AT)).cast("Q")

    def events(self, since: int = 0) -> list[Event]:
        """Return the events that the ring still holds, from number ``since``, in order."""
        numbers = self._column("Q", 0)
        return self._read(((numbers > 0) & (numbers >= since)).nonzero()[0].tolist())

    def at(self, event: Token) -> Event:
        """Return the event that :meth:`BoardWriter.begin` made, read by its own process."""
        self._forget_replaced_strings()
        with memoryview(self._memory) as whole, whole[STRINGS_AT:RECORDS_AT] as texts:
            return self._event(RECORD.unpack_from(self._memory, event[1]), texts)

    def open_operations(self) -> list[Event]:
        """Return the operations that have not ended, in order; they never leave the ring."""
        ends, numbers = self._column("d", END_AT), self._column("Q", 0)
        found = self._read(((ends == 0) & (numbers > 0)).nonzero()[0].tolist())
        return [event for event in found if event.end is None]  # it may have ended since

    def latest(self) -> Event | None:
        """Return the event that ended last, None if there is none."""
        ends = self._column("d", END_AT)
        slot = int(ends.argmax())
        found = self._read([slot]) if ends[slot] else []
        return found[0] if found else None

    @property
    def latest_end(self) -> float:
        """When an event last ended, 0 if none has; takes a hundredth of :meth:`latest`'s time."""
        return float(self._column("d", END_AT).max())

    @property
    def position(self) -> Position | None:
        """Where the process last said it was, None if it never has."""
        note = self._note(POSITION_AT)
        return None if note is None else Position(*note)

    @property
    def verdict(self) -> Verdict | None:
        """The latest report this process wrote, None if it has written none."""
        note = self._note(VERDICT_AT)
        return None if note is None else Verdict(*note)

    def _note(self, begin: int) -> list[Any] | None:
        """Return the contents of a note, None if it was not written, or only in part."""
        for _ in range(_NOTE_TRIES):
            number, length = NOTE.unpack_from(self._memory, begin)
            if number == 0:
                return None
            end = begin + NOTE.size + length + NUMBER.size
            once, again = self._memory[begin:end], self._memory[begin:end]
            if once == again and once[-NUMBER.size :] == once[: NUMBER.size]:
                return json.loads(once[NOTE.size : -NUMBER.size])
            time.sleep(1e-3)
        return None

    def places_in_use(self) -> set[int]:
        """Return the places of the strings that the records name."""
        return set(chain.from_iterable(self._column("I", at).tolist() for at in _PLACES_AT))

    def _column(self, format: Literal["d", "Q", "I"], offset: int) -> numpy.ndarray:
        """Return a copy of one field of all records."""
        import numpy  # not for processes that only look at a position

        with memoryview(self._memory) as whole:
            table = numpy.frombuffer(whole[RECORDS_AT:ARRIVALS_AT], format)
            return table[offset // table.itemsize :: RECORD.size // table.itemsize].copy()

    def _read(self, slots: list[int]) -> list[Event]:
        """Return the events in these slots, in order, without those that are being written."""
        if not slots:
            return []
        for _ in range(_READ_TRIES):
            self._forget_replaced_strings()
            # Copies take a moment, reading them much longer. The texts come last: those that the
            # records name were there before. (With 50 ms between reading the records and their
            # texts, those of a fast writer were others in 1 run of 3 on a busy machine.)
            twice = self._copied_twice(slots)
            texts = memoryview(self._memory[STRINGS_AT:RECORDS_AT])
            whole = [RECORD.unpack(once) for once, again in twice if once == again]
            # Where this process lost its core between the copies, most records have changed.
            if not self._forget_replaced_strings() and len(whole) >= len(slots) * _WHOLE_SHARE:
                break
        return sorted(self._event(fields, texts) for fields in whole if fields[0] == fields[-1] > 0)

    def _copied_twice(self, slots: list[int]) -> Iterable[tuple[bytes, bytes]]:
        """Return the records in these slots, each as it was at two moments."""
        memory = self._memory
        if len(slots) > _FEW:
            ring, later = (memory[RECORDS_AT:ARRIVALS_AT] for _ in range(2))
            parts = (slice(slot * RECORD.size, (slot + 1) * RECORD.size) for slot in slots)
            return ((ring[part], later[part]) for part in parts)
        begins = (RECORDS_AT + slot * RECORD.size for slot in slots)
        parts = (slice(begin, begin + RECORD.size) for begin in begins)
        return [(memory[part], memory[part]) for part in parts]

    def _forget_replaced_strings(self) -> bool:
        """Forget what was read if any string was replaced since; return whether one was."""
        generation = board_strings.generation(self._memory, STRINGS_AT)
        if generation == self._generation:
            return False
        self._strings, self._groups = {0: ""}, {}
        self._generation = generation
        return True

    def _event(self, fields: tuple[Any, ...], texts: memoryview) -> Event:
        number, kind, group, site, dtype, shape, peer, root, tag, size = fields[:10]
        start, end, outcome, waiting, waited_from, _ = fields[10:]
        kind, dtype, shape, site, outcome = (
            self._string(place, texts) for place in (kind, dtype, shape, site, outcome)
        )
        group, ranks = self._group(group, texts)
        waits, end, waited_from = _WAITING_VALUES[waiting], end or None, waited_from or None
        told = (dtype, shape, start, end, site, outcome, waits, ranks, waited_from)
        return Event._make((number, kind, group, peer, root, tag, size, *told))

    def _group(self, offset: int, texts: memoryview) -> tuple[str, tuple[int, ...]]:
        if offset not in self._groups:
            text = self._string(offset, texts)
            name, runs = json.loads(text) if text else ("", ())
            self._groups[offset] = name, tuple(rank for run in runs for rank in range(*run))
        return self._groups[offset]

    def _string(self, offset: int, texts: memoryview) -> str:
        text = self._strings.get(offset)
        if text is None:
            text = self._strings[offset] = board_strings.text_at(texts, offset)
        return text


class BoardWriter:
    """Writes the board of this process; its methods never block and never fail.

    Args:
        rank: rank of this process in the world.
        size: number of ranks in the world.
        path: where the file is to be; None for memory that vanishes with the process.

    Attributes:
        path: where other processes of this machine find it, None if they cannot.
        temporary: whether ``path`` must be removed once the others have opened it.
        enabled: whether operations are recorded.
        latest_number: that of the latest event, roughly: any thread writes it.
        listeners: called with each event when it ends, by the thread on which it does; for
            readers that must not miss one when the ring buffer wraps round.
        reader: reads this board in its own process.
        arrivals: the words by which its ranks meet others, each of 64 bits.
        bell: the words by which others wake it, and that they may write.
    """

    def __init__(self, rank: int, size: int, path: Path | None = None) -> None:
        self.temporary = False
        self.path, self._memory = self._allocate(rank, path)
        self.token = secrets.token_hex(16)
        self._serial = count(1)
        self._write_note(
            HEADER_AT, [FORMAT, os.getpid(), rank, size, self.token, socket.gethostname()]
        )
        self.reader = Board(self._memory)
        self.arrivals = self.reader.arrivals
        self.bell = self.reader.bell
        # Two threads may add the same string, to two places: both are right.
        self._strings = BoardStrings(
            self._memory, STRINGS_AT, STRINGS_BYTES, self._places_in_use, self._forget_places
        )
        self._known = self._strings.known
        # Now, because strings are added under the lock, and a handle may be dropped by a collection
        # of garbage at any time.
        for outcome in ("ok", "dropped"):
            self.string(outcome)
        # Any thread may advance it: no two get the same number.
        self._numbers = count(1)
        # The places of the open operations, by their numbers. The thread that begins one adds it,
        # and the thread that ends it removes it.
        self._open: dict[int, int] = {}
        # The other places; what has ended longest ago is overwritten first.
        self._ended = deque(range(RECORDS_AT, ARRIVALS_AT, RECORD.size))
        self.enabled = True
        self.listeners: list[Callable[[Event], None]] = []
        self.latest_number = 0

    def _allocate(self, rank: int, path: Path | None) -> tuple[str | None, mmap.mmap]:
        try:
            with contextlib.ExitStack() as undo:
                if path is None and hasattr(os, "memfd_create"):
                    descriptor = os.memfd_create("torch_mpi4py event board")
                    where = f"/proc/{os.getpid()}/fd/{descriptor}"
                elif path is None:
                    descriptor, where = tempfile.mkstemp(prefix="torch_mpi4py-events-")
                    undo.callback(os.unlink, where)
                    self.temporary = True
                else:
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    descriptor, scratch = tempfile.mkstemp(prefix=f".{rank}-", dir=path.parent)
                    undo.callback(os.unlink, scratch)
                    where = str(path)
                undo.callback(os.close, descriptor)
                os.ftruncate(descriptor, TOTAL)
                if hasattr(os, "posix_fallocate"):  # a full disk must not become a SIGBUS later
                    os.posix_fallocate(descriptor, 0, TOTAL)
                memory = mmap.mmap(descriptor, TOTAL)
                if path is not None:
                    os.replace(scratch, path)  # readers of an earlier run keep what they have open
                undo.pop_all()
            if path is not None:
                os.close(descriptor)
            return where, memory
        except OSError:  # no room or no permission: only this process can read its board
            self.temporary = False
            return None, mmap.mmap(-1, TOTAL)

    def string(self, text: str) -> int:
        """Return the place of ``text`` among the strings for good; 0, the empty one, without room.

        For the few strings that programs have in common; use :meth:`passing_string` for others.
        """
        return self._strings.keep(text)

    def passing_string(self, text: str) -> int:
        """Return the place of ``text`` until no record names it any more; use it at once."""
        return self._known.get(text) or self._strings.add(text)

    def leave_to_parent(self) -> None:
        """In a forked child, go on in a copy: the board itself is the parent's."""
        memory = mmap.mmap(-1, TOTAL)
        memory[:] = self._memory[:]
        self.path, self.temporary, self._memory = None, False, memory
        self.reader = Board(memory)
        self._strings.move(memory)
        self._open.clear()

    def _places_in_use(self) -> set[int]:
        return self.reader.places_in_use()

    def _forget_places(self) -> None:
        """Drop all copies of places of passing strings that are not in use."""

    def begin(
        self,
        kind: int,
        group: int,
        waiting: int,
        site: str,
        dtype: int = 0,
        shape: int = 0,
        peer: int = ANY,
        root: int = ANY,
        tag: int = ANY,
        size: int = ANY,
        start: float = 0.0,
    ) -> Token | None:
        """Write that an operation starts, now or at ``start``.

        All texts but the caller's line are given by their places.

        Returns:
            What the other methods need, None if nothing is recorded.
        """
        if not self.enabled:
            return None
        try:
            place = self._ended.popleft()
        except IndexError:
            place = self._oldest_place()
        self.latest_number = number = next(self._numbers)
        self._open[number] = place
        start = start or time.perf_counter()
        at = self._known.get(site) or self.passing_string(site)
        RECORD.pack_into(
            self._memory, place, number, kind, group, at, dtype, shape, peer, root, tag, size,
            start, 0.0, 0, waiting, start if waiting == WAITING else 0.0, number,
        )  # fmt: skip
        return number, place

    def _oldest_place(self) -> int:
        """Return the place of the oldest open operation, which is overwritten if all are open."""
        while True:
            # Another thread, or a collection of garbage, may change both at any time.
            with contextlib.suppress(StopIteration, RuntimeError, KeyError):
                return self._open.pop(next(iter(self._open)))
            with contextlib.suppress(IndexError):
                return self._ended.popleft()

    def end(
        self,
        token: Token | None,
        error: BaseException | None = None,
        outcome: str = "ok",
        when: float = 0.0,
    ) -> None:
        """Write that an operation has ended, now or at ``when``, with ``error`` if there is one.

        An operation that has already ended is not changed.
        """
        if token is None:
            return
        place = self._open.pop(token[0], None)  # only one thread gets it
        if place is not None:
            text = outcome if error is None else type(error).__name__
            END.pack_into(
                self._memory,
                place + END_AT,
                when or time.perf_counter(),
                self._known.get(text) or self.string(text),
            )
            self._ended.append(place)
            if self.listeners:
                event = self.reader.at(token)
                for listener in self.listeners.copy():
                    listener(event)

    def drop(self, token: Token | None) -> None:
        """Write that an operation can no longer be waited for, if it is open."""
        self.end(token, outcome="dropped")

    def is_open(self, token: Token | None) -> bool:
        """Return whether this is an operation that has not ended."""
        return token is not None and token[0] in self._open

    @property
    def has_one_open(self) -> bool:
        """Whether just one operation is open."""
        return len(self._open) == 1

    def open_in(self, group: int) -> list[Token]:
        """Return the open operations of a group."""
        # A copy: a collection of garbage may end operations in the middle of any loop.
        return [
            one
            for one in self._open.copy().items()
            if RECORD.unpack_from(self._memory, one[1])[2] == group
        ]

    def restart(self, token: Token | None, start: float) -> None:
        """Write when a queued operation really began."""
        if token is not None and self.is_open(token):
            START.pack_into(self._memory, token[1] + START_AT, start)

    def arrived(self, token: Token | None, peer: int, tag: int, size: int) -> None:
        """Write what only a received message tells; call this before the end."""
        if token is not None and self.is_open(token):
            ARRIVED.pack_into(self._memory, token[1] + PEER_AT, peer, ANY, tag, size)

    def waits(self, token: Token | None, waiting: bool) -> None:
        """Write whether the program is blocked by an open operation."""
        if token is not None and self.is_open(token):
            self._memory[token[1] + WAITING_AT] = waiting
            first = token[1] + WAITED_FROM_AT
            if waiting and not any(self._memory[first : first + START.size]):
                START.pack_into(self._memory, first, time.perf_counter())

    def set_position(self, position: Position) -> None:
        """Write where the main thread is."""
        site, outcome = position.site[:_MOST_TEXT], position.outcome[:_MOST_TEXT]
        self._write_note(POSITION_AT, position._replace(site=site, outcome=outcome))

    def set_verdict(self, group: str, text: str, dead: Sequence[int] = ()) -> Verdict:
        """Write why a group was given up, in at most 16,384 characters."""
        verdict = Verdict(time.perf_counter(), group, text[: _MOST_REPORT - len(group)], dead)
        self._write_note(VERDICT_AT, verdict)
        return verdict

    def _write_note(self, begin: int, fields: list[Any] | tuple[Any, ...]) -> None:
        # In one write: a process stopped in the middle would leave it unreadable.
        number = NUMBER.pack(next(self._serial))
        text = _encoded(fields).encode(errors="replace")
        note = number + len(text).to_bytes(4, "little") + text + number
        self._memory[begin : begin + len(note)] = note
