"""About ten times a second a rank writes down where it is, for others to read.

So a report can say of a rank that is in no call of communication in which line it computes, or
that it was in C code, from where it could not write any more.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from .call_site import shell, site_of
from .events import log

__all__ = ["ended", "note", "raised"]

_listening: Any = None
_ended = False
_lock = threading.Lock()  # else the watcher could write over the end what it found before


def note() -> None:
    """Write where the main thread is; the watcher calls this."""
    running_shell = shell()
    if running_shell is None:
        site = site_of(sys._current_frames().get(threading.main_thread().ident))
        with _lock:
            if not _ended:
                log.board.set_position(site, 0, True)
        return
    if running_shell is not _listening:
        _listen(running_shell)
    if _cells.running:
        frame = sys._current_frames().get(threading.main_thread().ident)
        site = site_of(frame)
        with _cells.lock:
            if _cells.running:
                log.board.set_position(site, _cells.number, True)
    else:
        with _cells.lock:
            if not _cells.running:
                log.board.set_position("", _cells.number, False, _cells.outcome)


def raised(error: BaseException) -> None:
    """Write that this program ends by ``error``."""
    global _ended
    text = _text(error)
    with _lock:
        _ended = True
        log.board.set_position("", 0, False, text)


def ended() -> None:
    """Write that this program has come to its end."""
    global _ended
    with _lock:
        if not _ended:
            _ended = True
            log.board.set_position("", 0, False)


class _Cells:
    """Which cell is running; written by the main thread, read by the watcher."""

    def __init__(self) -> None:
        self.number = 0
        self.running = False
        self.outcome = ""
        self.lock = threading.Lock()

    def begin(self, *_: object) -> None:
        with self.lock:
            self.number, self.running, self.outcome = shell().execution_count, True, ""
            log.board.set_position("", self.number, True)

    def end(self, result: Any) -> None:
        error = result.error_before_exec or result.error_in_exec
        with self.lock:
            self.running, self.outcome = False, "" if error is None else _text(error)
            log.board.set_position("", self.number, False, self.outcome)


_cells = _Cells()


def _listen(running_shell: Any) -> None:
    global _listening
    _listening = running_shell
    running_shell.events.register("pre_run_cell", _cells.begin)
    running_shell.events.register("post_run_cell", _cells.end)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]
