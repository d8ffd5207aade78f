"""One collective on its way, which any thread may run and any may wait for."""

from __future__ import annotations

from _thread import RLock, allocate_lock
from collections.abc import Callable
from typing import Any

from . import link_emulation
from .call_check import Call
from .errors import RevokedError
from .events import Token, log
from .runtime import MPI

__all__ = ["Task", "stopped"]


class Task:
    """One collective on its way: what to run, and how it ended.

    Attributes:
        call: what all ranks must agree on.
        run: does the MPI calls, given the communicator.
        seconds: time allowed from the moment it starts.
        result: the tensors a future of this task holds.
        error: why it failed, None while it has not.
        done: whether it has ended, well or not.
        link: the emulated link it was called under, None on the real one.
        event: its entry in the event log.
    """

    __slots__ = (
        *("_baton", "_ending", "call", "done", "error", "event", "link", "on_done", "result"),
        *("run", "seconds"),
    )

    def __init__(
        self,
        call: Call,
        run: Callable[[MPI.Intracomm], None],
        seconds: float,
        result: list[Any],
        link: link_emulation.Link | None = None,
    ) -> None:
        self.call = call
        self.run = run
        self.seconds = seconds
        self.result = result
        self.error: BaseException | None = None
        self.done = False
        self.link = link
        self.event: Token | None = None
        self.on_done: list[Callable[[], None]] = []
        self._baton = None
        # The watcher may give a call up in the moment in which it comes back after all. A thread
        # may enter again: an interrupt in the middle of the end is the error of a second one.
        self._ending = RLock()

    def prepare_to_wait(self) -> None:
        """Make the task waitable from another thread."""
        self._baton = allocate_lock()
        self._baton.acquire()

    def finish(self, error: BaseException | None) -> None:
        """Record the end once; later calls change nothing."""
        with self._ending:
            if self.done:
                return
            self.error = error
            log.end(self.event, error)
            self.done = True
            if self._baton is not None:
                self._baton.release()
        while self.on_done:
            self.on_done.pop()()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until the task has ended, at most ``seconds`` (-1: as long as it takes)."""
        if not self.done and self._baton.acquire(timeout=seconds):
            self._baton.release()  # pass the baton on to the next who waits
        return self.done


def stopped(call: Call, failure: Exception) -> RevokedError:
    """Return the error of a collective that was not run, because its group had failed."""
    return RevokedError(f"{call.name}: not run, because the group failed before: {failure}")
