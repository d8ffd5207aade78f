"""Lets messages under way progress while their rank computes.

MPI moves most messages only while both ranks are in one of its calls. So ``isend``, a second of
computing and ``wait`` would delay the receiver by that second. A thread here calls MPI briefly,
milliseconds after a message has begun, then less often, until the message has ended.

If every core has a rank, waking a thread costs a computing or waiting rank up to 0.4 ms. So it is
not woken for ``dist.send`` and ``dist.recv``, which wait at once; and new messages stop waking it
once it has found several times that the rank was in MPI anyway.

Without the thread, a pipeline of sleeping stages had a bubble of 47% instead of 27%. Waking it for
each message cost a ring of ``isend`` and ``recv``, two ranks on two cores, 40%; now it costs 0 to
20%. mpi4py's own ``comm.isend`` is unchanged.
"""

from __future__ import annotations

import inspect
import queue
import sys
import threading
import weakref
from collections import deque
from types import FrameType

import torch.distributed as dist

from ..core.runtime import MPI
from ..faults import deadlines
from ..faults.deaths import has_ulfm

_SHORTEST_SECONDS = 1e-3
_LONGEST_SECONDS = 4e-3
_OFTEN = 4  # looks in a row, after which it looks less often
_QUIET = 20  # looks in a row without a message, after which it sleeps until there is one
_JOIN_SECONDS = 5.0
# ``dist.send`` calls ``dist.isend``, which calls the group; between them is at most one wrapper.
_FRAMES = 3
_WAIT_AT_ONCE = {inspect.unwrap(function).__code__ for function in (dist.send, dist.recv)}

_open: deque[weakref.ref[dist.Work]] = deque()
_MOST_ENDED = 64  # behind an open one: only where there may be as many are all looked at
_sweep_at = _MOST_ENDED
_begun: queue.SimpleQueue[None] = queue.SimpleQueue()
_looks = False  # whether it will look without being woken, at a time that is soon enough
_over = False
_start_lock = threading.Lock()
_thread: threading.Thread | None = None


def follow(work: dist.Work) -> None:
    """Let ``work``, a send or receive that has begun, progress until it has ended.

    To be called by the method of a group, and that by PyTorch's function.
    """
    global _looks, _thread
    frame: FrameType | None = sys._getframe(1).f_back  # None if C++ has called the group
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code in _WAIT_AT_ONCE:
            return
        frame = frame.f_back
    _open.append(weakref.ref(work))
    if _looks:
        return
    _looks = True
    if _thread is None:
        with _start_lock:
            if _thread is None and not _over:
                _thread = threading.Thread(target=_run, name="torch_mpi4py messages", daemon=True)
                _thread.start()
    _begun.put(None)


def under_way() -> list[dist.Work]:
    """Return those that have not ended and whose handles still exist."""
    works = [reference() for reference in list(_open)]
    return [work for work in works if work is not None and not work.is_completed()]


def end() -> None:
    """Stop moving messages: MPI ends."""
    global _over
    _over = True
    _begun.put(None)
    if _thread is not None:
        _thread.join(_JOIN_SECONDS)


def _run() -> None:
    global _looks
    pause: float | None = None
    moved = unmoved = quiet = 0  # looks in a row
    before = None
    while not _over:
        try:
            _begun.get(timeout=pause)
            pause, moved, unmoved, quiet = _SHORTEST_SECONDS, 0, 0, 0
            continue
        except queue.Empty:
            if _over or MPI.Is_finalized():
                return
        first = _first_open()
        # One that was there the last time as well, and that no thread waits for, has to be moved.
        if first is not None and first is before and not _is_in_mpi():
            _call_mpi()
            moved, unmoved = moved + 1, 0
        else:
            moved, unmoved = 0, unmoved + 1
        before = first
        quiet = 0 if first is not None else quiet + 1
        pause = _SHORTEST_SECONDS if max(moved, unmoved) <= _OFTEN else _LONGEST_SECONDS
        # New messages don't wake it where the last ones needed no help.
        _looks = quiet < _QUIET and moved <= _OFTEN
        # Read after the flag: a thread that found the flag set has put its message here before.
        if quiet >= _QUIET and not _open:
            pause = None


def _is_in_mpi() -> bool:
    return not all(operation.outside_mpi for operation in deadlines.under_way())


def _call_mpi() -> None:
    """Call MPI for a moment, in which it moves all that is under way."""
    # MPICH moves nothing of other ranks in a call on ``COMM_SELF``; Open MPI moves everything, and
    # a call on ``COMM_WORLD`` would raise there once a rank has died.
    comm = MPI.COMM_SELF if has_ulfm() else MPI.COMM_WORLD
    comm.Iprobe()


def _first_open() -> weakref.ref[dist.Work] | None:
    global _sweep_at
    if len(_open) >= _sweep_at:  # so that each is looked at a few times in all
        for _ in range(len(_open)):
            reference = _open.popleft()
            if _is_open(reference):
                _open.append(reference)
        _sweep_at = 2 * len(_open) + _MOST_ENDED
    while _open:
        if _is_open(_open[0]):
            return _open[0]
        _open.popleft()
    return None


def _is_open(reference: weakref.ref[dist.Work]) -> bool:
    work = reference()
    return work is not None and not work.done
