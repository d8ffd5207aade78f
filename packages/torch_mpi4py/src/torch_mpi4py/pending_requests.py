"""MPI's memory outlives a handle that was thrown away.

Whoever drops the handle of a send or receive under way may drop the tensor with it, and MPI
would read or write memory that is somebody else's by then. So request and memory are kept here
until the operation has ended.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

from .runtime import MPI

_kept: dict[int, tuple[MPI.Request, Any]] = {}
_number = itertools.count()
_lock = threading.RLock()  # a collection of garbage may come at any time, in here as well


def keep(request: MPI.Request, memory: Any) -> None:
    """Keep ``memory`` until ``request`` has ended."""
    _kept[next(_number)] = request, memory


def kept() -> int:
    """Return how many operations are kept."""
    return len(_kept)


def let_go() -> None:
    """Let go of what has ended; cheap where nothing is kept."""
    if not _kept or not _lock.acquire(blocking=False):
        return
    try:
        for number, (request, _) in _kept.copy().items():
            if _has_ended(request):
                del _kept[number]
    finally:
        _lock.release()


def _has_ended(request: MPI.Request) -> bool:
    try:
        return request.Test()
    except MPI.Exception:  # nobody is left to be told; a request still active goes on
        return not request
