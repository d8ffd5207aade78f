"""A rank that waits for a message sleeps until its partner rings.

A wait inside MPI keeps a core busy, and nothing but a revocation gets the rank out. So it asks MPI
whether the message has come, spins for a moment, and then sleeps in the kernel (a *futex*) on its
*bell*, a word of shared memory that every rank of the host may write. Who has sent a message, or
has received one for whose end the sender may wait, looks whether the partner sleeps, and rings.

1. The sleeper writes into its bell that it sleeps, and then asks MPI once more.
2. Who rings has given its message to MPI before, and then reads the bell.
3. One of the two sees the other, because what each writes is out before it reads on (see
   :data:`_ASKS_FIRST`), and the kernel lets nobody sleep on a word that has changed.

Whoever rings clears the word, so that the next does not ring again, and a sleeper that wakes writes
it anew before it asks MPI: any number of threads may sleep on one bell.

Sleeping is done in slices all the same: MPI moves other messages along only when it is called, and
deaths and deadlines have to be heard of. While the bytes of a long message move, both sides have to
call MPI all the time: so after a ring a rank spins for as long as its message may take.

Ranks of other hosts can't ring. A wait for one of them is left to MPI: see :func:`reaches`.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from . import futex
from .event_board import LOOKS_AT
from .events import GroupName, log
from .peer_boards import bell_of
from .runtime import MPI

_SPIN_SECONDS = 50e-6
_SLICE_SECONDS = 4e-3  # as long as messages under way may stand still
_LONG_SLICE_SECONDS = 20e-3
_SHORT_SLICE_SECONDS = 1e-3  # where bytes are moving, or less time is left than another
_LONG_AFTER_SECONDS = 0.2
_NAP_SECONDS = 20e-6  # of a thread that must not keep the interpreter from the one that computes
# A message that is longer may need both ranks while it moves; at least so fast it does.
LONG_BYTES = 4096
_BYTES_A_SECOND, _LEAST_BYTES_A_SECOND = 5e8, 1e8
_MOVING_SECONDS = 0.1
_LONGEST_SPIN_SECONDS = 0.2

# Places of a bell: somebody sleeps; and waits until a send has ended.
_ASLEEP, _SENDS = 0, 1
# There taking a lock and giving it back is a barrier, which no read passes. Elsewhere a rank rings
# without asking, which takes a system call each time.
_ASKS_FIRST = platform.machine() in {"x86_64", "AMD64"}
_barrier = threading.Lock()

_Found = TypeVar("_Found")


class _Bell(NamedTuple):
    """The words of a rank's bell, and their address."""

    words: memoryview
    address: int


_own = _Bell(log.bell, futex.address_of(log.bell))
_known: dict[int, tuple[GroupName, list[_Bell | None]]] = {}  # by a communicator's handle


def _bells_of(comm: MPI.Comm) -> list[_Bell | None]:
    """Return the bells of the ranks of ``comm``, None for those of other hosts."""
    group = log.group_of(comm)
    known = _known.get(comm.handle)
    if known is None or known[0] is not group:  # another may have had the handle
        words = map(bell_of, group.ranks)
        bells = [None if one is None else _Bell(one, futex.address_of(one)) for one in words]
        known = _known[comm.handle] = group, bells
    return known[1]


def reaches(comm: MPI.Comm, rank: int) -> bool:
    """Return whether rank ``rank`` of ``comm``, or each if it is any source, rings this one."""
    bells = _bells_of(comm)
    if rank == MPI.ANY_SOURCE:
        return None not in bells
    return 0 <= rank < len(bells) and bells[rank] is not None


# --- ringing ------------------------------------------------------------------------------------


def ring(comm: MPI.Comm, rank: int) -> None:
    """Wake rank ``rank`` of ``comm``, to which a message has been sent, if it sleeps."""
    bells = _bells_of(comm)
    if 0 <= rank < len(bells):
        bell = bells[rank]
        with _barrier:
            pass
        if bell is not None and (bell.words[_ASLEEP] or not _ASKS_FIRST):
            _wake(bell)


def ring_sender(comm: MPI.Comm, rank: int, size: int = 0) -> None:
    """Wake rank ``rank`` of ``comm``, or any, if it sleeps until a message is received here.

    Args:
        size: bytes of a receive that has just begun, which the sender may have to help with.
    """
    bells = _bells_of(comm)
    if rank != MPI.ANY_SOURCE:
        bells = bells[rank : rank + 1] if rank >= 0 else []
    with _barrier:
        pass
    for bell in bells:
        if bell is None or not (bell.words[_ASLEEP] or not _ASKS_FIRST):
            continue
        if bell.words[_SENDS] or size > LONG_BYTES:
            _wake(bell)


def _wake(bell: _Bell) -> None:
    bell.words[_ASLEEP] = 0
    futex.wake(bell.address)


# --- waiting ------------------------------------------------------------------------------------


def wait(
    look: Callable[[], _Found],
    go_on: Callable[[], float | None],
    comm: MPI.Comm,
    peer: int,
    size: int = 0,
    sends: bool = False,
    under_way: bool = False,
) -> _Found:
    """Return what ``look()`` returns once that is true; sleep until then.

    Args:
        look: asks MPI, and does not wait.
        go_on: called before each sleep; raises if the wait is to end, and may return for how many
            seconds it is allowed.
        peer: the rank of ``comm``, or any source, that will ring.
        size: bytes of the message, as far as they are known.
        sends: whether the wait is for the end of a send.
        under_way: whether the message has come, and its bytes are moving.
    """
    found = look()
    if found:
        return found
    if size <= LONG_BYTES:
        size = 0
    if size or threading.current_thread() is threading.main_thread():
        found = _spin(look, size)
    return found or _sleep(look, go_on, comm, peer, size, sends, under_way)


def _spin(look: Callable[[], _Found], size: int) -> _Found:
    """Ask MPI for a moment, or as long as a message of ``size`` bytes may be moving."""
    computes_elsewhere = threading.current_thread() is not threading.main_thread()
    until = time.perf_counter() + _SPIN_SECONDS + min(size / _BYTES_A_SECOND, _LONGEST_SPIN_SECONDS)
    while True:
        if computes_elsewhere:
            time.sleep(_NAP_SECONDS)
        else:
            os.sched_yield()
        found = look()
        if found or time.perf_counter() > until:
            return found


def _moving_seconds(size: int) -> float:
    """Return how long a message may go on moving after a sign of life, on a busy machine."""
    return _MOVING_SECONDS + size / _LEAST_BYTES_A_SECOND if size else 0.0


def _sleep(
    look: Callable[[], _Found],
    go_on: Callable[[], float | None],
    comm: MPI.Comm,
    peer: int,
    size: int,
    sends: bool,
    under_way: bool,
) -> _Found:
    began = time.perf_counter()
    moves_until = began + _moving_seconds(size)
    try:
        while True:
            _own.words[LOOKS_AT] += 1
            _own.words[_SENDS] = sends
            _own.words[_ASLEEP] = 1
            with _barrier:
                pass
            found = look() or look()  # Open MPI's probe takes messages in after it has looked
            if found:
                return found
            left = go_on()
            now = time.perf_counter()
            moves = under_way or now < moves_until
            if moves and not sends:
                ring_sender(comm, peer)
            seconds = _LONG_SLICE_SECONDS if now > began + _LONG_AFTER_SECONDS else _SLICE_SECONDS
            if moves or (left is not None and left < seconds):
                seconds = _SHORT_SLICE_SECONDS
            futex.sleep(_own.address, 1, seconds)
            if not _own.words[_ASLEEP]:  # somebody has rung
                found = look() or look()
                if found:
                    return found
                moves_until = time.perf_counter() + _moving_seconds(size)
                if not sends:  # who waits for a send does not ring: two would go on for ever
                    ring_sender(comm, peer)
                found = _spin(look, size)
                if found:
                    return found
    finally:
        _own.words[_SENDS] = 0
