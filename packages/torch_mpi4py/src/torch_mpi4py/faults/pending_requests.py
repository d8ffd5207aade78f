"""Keeps the memory of an open MPI request whose handle was discarded.

A program that drops the handle of an open send or receive may drop the tensor with it, and MPI
would then read or write memory that has been reused. So request and memory are kept here until the
operation has ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

from ..core.runtime import MPI

# Each start of a message adds at most one and looks at a few, so a start takes no longer even if
# thousands are kept.
_LOOKS = 4
_kept: deque[tuple[MPI.Request, Any, MPI.Comm | None]] = deque()
_lock = threading.Lock()  # non-blocking: a signal handler may re-enter here


def keep(request: MPI.Request, memory: Any, comm: MPI.Comm | None = None) -> None:
    """Keep ``memory``, and ``comm`` if it is given, until ``request`` has ended."""
    _kept.append((request, memory, comm))


def give_up(request: MPI.Request, memory: Any, withdraw: bool) -> None:
    """Wait no longer for ``request``; keep ``memory`` if MPI may still use it.

    Args:
        withdraw: whether to cancel it: a receive, unless a probe has found its message.
    """
    if request and withdraw:
        with contextlib.suppress(MPI.Exception):  # a rank has died, or revoked the communicator
            request.Cancel()
    if request and not has_ended(request):
        keep(request, memory)


def kept(comm: MPI.Comm | None = None) -> int:
    """Return how many operations are kept; only those on ``comm`` if it is given."""
    if comm is None:
        return len(_kept)
    return sum(each is comm for _, _, each in list(_kept))


def let_go() -> None:
    """Release ended operations among those checked longest ago; cheap if none are kept."""
    if not _kept or not _lock.acquire(blocking=False):
        return
    try:
        for _ in range(min(_LOOKS, len(_kept))):
            if has_ended(_kept[0][0]):
                _kept.popleft()
            else:
                _kept.rotate(-1)
    finally:
        _lock.release()


def has_ended(request: MPI.Request) -> bool:
    """Return whether MPI uses the memory of ``request`` no more."""
    try:
        if isinstance(request, MPI.Request):  # by MPI's own method, for ours says what was given up
            return MPI.Request.Test(request)
        return request.Test()
    except MPI.Exception:  # no caller is left to tell; a request that is still active goes on
        return not request
