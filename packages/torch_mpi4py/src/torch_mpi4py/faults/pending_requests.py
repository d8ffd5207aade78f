"""MPI's memory outlives a handle that was thrown away.

A program that drops the handle of an open send or receive may drop the tensor with it, and MPI
would then read or write memory that has been reused. So request and memory are kept here until the
operation has ended.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from ..core.runtime import MPI

# Each start of a message adds at most one and looks at a few, so that where thousands are kept a
# start takes no longer.
_LOOKS = 4
_kept: deque[tuple[MPI.Request, Any, MPI.Comm | None]] = deque()
_lock = threading.Lock()  # only tried: a signal's handler may come in here again


def keep(request: MPI.Request, memory: Any, comm: MPI.Comm | None = None) -> None:
    """Keep ``memory``, and ``comm`` if it is given, until ``request`` has ended."""
    _kept.append((request, memory, comm))


def kept(comm: MPI.Comm | None = None) -> int:
    """Return how many operations are kept, of those on ``comm`` if it is given."""
    if comm is None:
        return len(_kept)
    return sum(each is comm for _, _, each in list(_kept))


def let_go() -> None:
    """Let go of what has ended among those looked at longest ago; cheap where nothing is kept."""
    if not _kept or not _lock.acquire(blocking=False):
        return
    try:
        for _ in range(min(_LOOKS, len(_kept))):
            if _has_ended(_kept[0][0]):
                _kept.popleft()
            else:
                _kept.rotate(-1)
    finally:
        _lock.release()


def _has_ended(request: MPI.Request) -> bool:
    try:
        if isinstance(request, MPI.Request):  # by MPI's own method, for ours says what was given up
            return MPI.Request.Test(request)
        return request.Test()
    except MPI.Exception:  # nobody is left to be told; a request still active goes on
        return not request
