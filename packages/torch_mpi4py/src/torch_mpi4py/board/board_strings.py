"""The texts on an event board (lines of programs, names, shapes), in a region of bounded size.

A text is written once, and records refer to it by its place. A long-running program needs more
texts than the region holds: new cells, new sizes, new groups. So texts that no record on the board
refers to any more make room for new ones. Readers in other processes cache what they have read; the
region begins with a number that changes whenever a place may get another text.

Using a place takes no lock, so a thread may be about to write down one that no record refers to
yet. Therefore a sweep spares texts added since the last sweep, and the ones that it takes off the
list are overwritten only after the next sweep, if there is still no record of them. Standard
library only.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable

_GENERATION = struct.Struct("<Q")
_LENGTH_BYTES, _MOST_BYTES = 2, 65535
_SWEEP_SHARE = 16  # that part of the region may fill up between two sweeps
_LEAST_ROOM = 16  # bytes: shorter gaps hold next to nothing


class BoardStrings:
    """Writes the texts of one board; any thread may call it.

    Args:
        memory: the board.
        begin: where the region begins.
        size: its length in bytes.
        in_use: returns all places that records and names in use refer to.
        forget_places: called before that: drop all other copies of places.

    Attributes:
        known: the places by their texts.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        begin: int,
        size: int,
        in_use: Callable[[], set[int]],
        forget_places: Callable[[], None],
    ) -> None:
        self.known: dict[str, int] = {"": 0}
        self._memory, self._begin, self._size = memory, begin, size
        self._in_use, self._forget_places = in_use, forget_places
        self._lock = threading.RLock()  # a signal's handler may come here again
        self._sweeps = False
        self._generation = 0
        self._kept: set[int] = {0}  # for as long as the board
        self._ends: dict[int, int] = {}  # of all texts, by their places
        self._young: set[int] = set()
        self._dying: set[int] = set()  # no longer known, but their text has not been overwritten
        self._gaps = [(_GENERATION.size, size)]  # the last one is filled first
        self._filled = 0  # bytes since the last sweep

    def move(self, memory: mmap.mmap) -> None:
        """Continue in other memory that holds a copy; no other thread may be running."""
        self._memory, self._lock, self._sweeps = memory, threading.RLock(), False

    def keep(self, text: str) -> int:
        """Return the place of a text that stays; 0, that of the empty text, without room."""
        place = self.known.get(text)
        if place is None:
            place = self.add(text)
        self._kept.add(place)
        return place

    def add(self, text: str) -> int:
        """Return the place of a text that is not known, 0 without room."""
        coded = text.encode(errors="replace")[:_MOST_BYTES]
        length = _LENGTH_BYTES + len(coded)
        with self._lock:
            if self._sweeps:
                return 0
            if self._filled > self._size // _SWEEP_SHARE:
                self._sweep()
            place = self._room_for(length)
            if place == 0:
                return 0
            begin = self._begin + place
            entry = len(coded).to_bytes(_LENGTH_BYTES, "little") + coded
            self._memory[begin : begin + length] = entry
            self._ends[place] = place + length
            self._young.add(place)
            self.known[text] = place
            return place

    def _room_for(self, length: int) -> int:
        self._filled += length  # without room as well: then the next sweep comes sooner
        for index in range(len(self._gaps) - 1, -1, -1):
            begin, end = self._gaps[index]
            if begin + length <= end:
                self._gaps[index] = begin + length, end
                del self._gaps[index + 1 :]  # too short even for this one: left to the next sweep
                return begin
        return 0

    def _sweep(self) -> None:
        self._sweeps = True
        try:
            self._forget_places()
            used = self._in_use() | self._kept
            freed = self._dying - used
            for place in freed:
                self._ends.pop(place, None)
            self._dying -= freed
            spared = used | self._young
            for text, place in list(self.known.items()):
                if place not in spared:
                    del self.known[text]
                    self._dying.add(place)
            self._young.clear()
            self._filled = 0
            if freed:
                self._generation += 1
                _GENERATION.pack_into(self._memory, self._begin, self._generation)
                self._gaps = self._find_gaps()
        finally:
            self._sweeps = False

    def _find_gaps(self) -> list[tuple[int, int]]:
        gaps, free_from = [], _GENERATION.size
        for place, end in sorted(self._ends.items()):
            if place >= free_from + _LEAST_ROOM:
                gaps.append((free_from, place))
            free_from = end
        gaps.append((free_from, self._size))
        return gaps


def generation(memory: mmap.mmap, begin: int) -> int:
    """Return the number that changes when places get other texts."""
    return _GENERATION.unpack_from(memory, begin)[0]


def text_at(texts: memoryview, place: int) -> str:
    """Return the text at ``place`` of the region ``texts``."""
    begin = place + _LENGTH_BYTES
    length = int.from_bytes(texts[place:begin], "little")
    return bytes(texts[begin : begin + length]).decode(errors="replace")
