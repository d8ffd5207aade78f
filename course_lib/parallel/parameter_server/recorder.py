"""Notes are taken while the run goes on, and put on one clock afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from .clocks import Clocks
from .record import Event, Gradient, Record, Update

__all__ = ["Recorder"]


@dataclass
class _Note:
    event: Event
    sent_by: int | None = None  # whose clock, None: the server's
    received_by: int | None = None


class Recorder:
    """Fills a :class:`Record`; see there for what the fields mean."""

    def __init__(self, record: Record, clocks: Clocks) -> None:
        self.record = record
        self._clocks = clocks
        self._start = time.perf_counter()
        self._notes: list[_Note] = []
        self._open: dict[int, _Note] = {}

    def now(self) -> float:
        """Return seconds since the start."""
        return time.perf_counter() - self._start

    def since_start(self, clock: float) -> float:
        """Return a reading of this process's clock as seconds since the start."""
        return clock - self._start

    def heard(self, kind: str, worker: int, sent: float, **what: int) -> None:
        """Note a message from a worker, taken up now; ``sent`` is on the worker's clock."""
        server = self.record.server
        event = Event(kind, worker, server, sent, self.now(), **what)
        self._notes.append(_Note(event, sent_by=worker))

    def told(self, kind: str, worker: int, sent: float, **what: int) -> None:
        """Note a message to a worker; it will say later when it got it."""
        event = Event(kind, self.record.server, worker, sent, self.now(), **what)
        note = _Note(event)
        self._notes.append(note)
        self._open[worker] = note

    def got(self, worker: int, received: float) -> None:
        """Note when, on its own clock, the worker had what it was told last."""
        note = self._open.pop(worker, None)
        if note is not None:
            note.event = replace(note.event, received=received)
            note.received_by = worker

    def happened(self, kind: str, rank: int, began: float, **what: int) -> None:
        """Note something that happened at one rank and ends now."""
        self._notes.append(_Note(Event(kind, rank, rank, began, self.now(), **what)))

    def finish(self) -> None:
        """Move every time of a worker's clock to the server's."""
        record = self.record
        record.seconds = self.now()
        record.events = [
            replace(
                note.event,
                sent=self._move(note.event.sent, note.sent_by),
                received=self._move(note.event.received, note.received_by),
            )
            for note in self._notes
        ]
        record.dropped = [self._moved(gradient) for gradient in record.dropped]
        record.updates = [self._moved_update(update) for update in record.updates]

    def _moved_update(self, update: Update) -> Update:
        return replace(update, gradients=tuple(map(self._moved, update.gradients)))

    def _moved(self, gradient: Gradient) -> Gradient:
        return replace(gradient, sent=self._move(gradient.sent, gradient.worker))

    def _move(self, seconds: float, worker: int | None) -> float:
        if worker is None:
            return seconds
        return self._clocks.on_ours(worker, seconds) - self._start
