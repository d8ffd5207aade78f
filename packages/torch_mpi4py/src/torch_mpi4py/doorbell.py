"""A rank that waits for a message sleeps until its partner rings.

A wait inside MPI keeps a core busy, and nothing but a revocation gets the rank out. So it asks MPI
whether the message has come, spins for a moment, and then sleeps in the kernel on its *bell*, a
few words of shared memory that every rank of the host may write. A rank that has sent a message,
or has taken one whose sender may wait, looks whether its partner sleeps, and rings.

1. The sleeper reads the number of the last ring, writes that it sleeps, and asks MPI once more.
2. The other gives its message to MPI, and then reads whether its partner sleeps.
3. One of the two sees the other, because what each writes is out before it reads on (see
   :data:`.futex.ASKS_FIRST`), and the kernel lets nobody sleep once the number has changed.

No two rings have the same number. Ringing takes back that somebody sleeps, so that the next message
does not ring again, and a sleeper that wakes writes it again before it asks MPI: any number of
threads may sleep on one bell.

Sleeping is done in slices all the same: MPI moves other messages along only when it is called, and
deaths and deadlines have to be heard of. While the bytes of a long message move, both sides have to
call MPI all the time. So a rank spins for as long as its message may take once its partner has sent
something, or asks for help with a message that it receives.

Ranks of other hosts can't ring. A wait for one of them is left to MPI: see :meth:`Bells.reaches`.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from . import deadlines, futex, time_slice
from .event_board import LOOKS_AT
from .events import log
from .futex import ASKS_FIRST, barrier
from .mpi_errors import translate
from .peer_boards import bell_of
from .runtime import MPI

_SHORT_SLICE_SECONDS = 1e-3  # where bytes are moving, or less time is left than another
_NAP_SECONDS = 20e-6  # of a thread that must not keep the interpreter from the one that computes
AT_ONCE_BYTES = 256
"""The send of a longer message may last until its receiver has called MPI."""
# Measured: in Open MPI 5.0.11 with fault tolerance 200 bytes are gone at once, 300 are not.
LONG_BYTES = 4096
"""A longer message may need both ranks while it moves."""
_BYTES_A_SECOND, _LEAST_BYTES_A_SECOND = 5e8, 1e8
_MOVING_SECONDS = 0.1
_LONGEST_SPIN_SECONDS = 0.2

# Places of a bell; at LOOKS_AT it counts the looks of those asleep.
_ASLEEP = 0  # whether somebody sleeps
_SENDS = 1  # whether a thread waits until a send has ended
_RUNG = 4  # the number of the last ring: the word on which its rank sleeps
_SENT = 5  # the number of the last message, whether it had to ring or not
_HELP, _MOVES = 6, 7  # the same of a receive that may need this rank's help, and its bytes

_Found = TypeVar("_Found")


# --- ringing ------------------------------------------------------------------------------------


_own = log.bell
_own_address = futex.address_of(_own) + 8 * _RUNG
_ranks = MPI.COMM_WORLD.Get_size()
# Rank r of n takes r + n, r + 2n, ...: a number tells who has rung, and is never used again.
_numbers = itertools.count(MPI.COMM_WORLD.Get_rank() + _ranks, _ranks)


class Bells:
    """The bells of the ranks of one communicator, as far as they are on this host."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._bells = [bell_of(rank) for rank in log.group_of(comm).ranks]
        self._all_are_here = None not in self._bells

    def reaches(self, rank: int) -> bool:
        """Return whether that rank, or each if it is any source, rings this one."""
        if rank == MPI.ANY_SOURCE:
            return self._all_are_here
        return 0 <= rank < len(self._bells) and self._bells[rank] is not None

    def ring(self, rank: int) -> None:
        """Wake a rank to which a message has been sent, if it sleeps."""
        words = self._bells[rank] if 0 <= rank < len(self._bells) else None
        if words is None:
            return
        words[_SENT] = number = next(_numbers)
        with barrier:
            pass
        if _may_sleep(words):
            _ring(words, number)

    def ring_sender(self, rank: int, size_bytes: int = 0) -> None:
        """Wake a rank, or any source, that may wait until a message is received here.

        Args:
            rank: its number.
            size_bytes: of a receive that has begun, with which its sender may have to help,
                whatever it waits for.
        """
        needs_help = size_bytes > LONG_BYTES
        bells = self._bells_of(rank)
        number = next(_numbers)
        if needs_help:
            for words in bells:
                if words is not _own:
                    words[_MOVES] = size_bytes
                    words[_HELP] = number
        with barrier:
            pass
        for words in bells:
            if _may_sleep(words) and (words[_SENDS] or (needs_help and words is not _own)):
                _ring(words, number)

    def may_sleep(self, rank: int) -> bool:
        """Return whether that rank, or some rank if it is any source, may be asleep."""
        with barrier:
            pass
        return any(map(_may_sleep, self._bells_of(rank)))

    def _bells_of(self, rank: int) -> list[memoryview]:
        if rank == MPI.ANY_SOURCE:
            return [words for words in self._bells if words is not None]
        words = self._bells[rank] if 0 <= rank < len(self._bells) else None
        return [] if words is None else [words]


def _may_sleep(words: memoryview) -> bool:
    return bool(words[_ASLEEP]) or not ASKS_FIRST


def _ring(words: memoryview, number: int) -> None:
    words[_ASLEEP] = 0
    words[_RUNG] = number
    futex.wake(futex.address_of(words) + 8 * _RUNG)


def _answer(number: int) -> None:
    """Wake the rank that has sent a message with this number, if it waits until that has ended."""
    words = bell_of(number % _ranks)
    with barrier:
        pass
    if words is not None and words[_SENDS] and _may_sleep(words):
        _ring(words, next(_numbers))


# --- waiting ------------------------------------------------------------------------------------


class Awaited(NamedTuple):
    """A message for which this rank waits.

    Attributes:
        bells: of its communicator.
        peer: the rank, or any source, that will ring.
        size_bytes: as far as it is known.
        sends: whether this rank sends it.
        under_way: whether it has come, and its bytes are moving.
    """

    bells: Bells
    peer: int
    size_bytes: int = 0
    sends: bool = False
    under_way: bool = False

    @property
    def is_long(self) -> bool:
        """Whether both ranks may be needed while it moves."""
        return self.size_bytes > LONG_BYTES


def wait(
    operation: deadlines.Operation, look: Callable[[], _Found], asked: Callable[[], Awaited]
) -> _Found:
    """Return what ``look()`` returns once that is true; sleep until then.

    Args:
        operation: the call that waits, which the watcher ends by giving it a ``reason``.
        look: asks MPI, and does not wait. It finds what has come, also what MPI has to take in.
        asked: returns the message; called only if it has not come.

    Raises:
        CommunicationError: as :func:`.deadlines.call` does; under any MPI no thread stays behind.
    """
    __tracebackhide__ = True
    try:
        if found := look():
            return found
        awaited = asked()
        if not awaited.is_long and _may_spin():
            found = _spin(look, 0)
        if not found:
            with deadlines.watched(operation):
                operation.outside_mpi = True
                if awaited.is_long:
                    found = _spin(look, awaited.size_bytes)
                found = found or _sleep(look, operation.end_if_given_up, awaited)
    except MPI.Exception as error:
        if operation.reason:
            raise operation.freed_error() from None
        raise translate(error, operation.what, operation.comm) from error
    except KeyboardInterrupt:
        deadlines.revoke(operation.comm)  # the others wait for this rank
        raise
    if operation.reason:
        raise operation.freed_error()
    return found


def wait_unwatched(
    look: Callable[[], _Found], seconds_left: Callable[[], float], awaited: Awaited
) -> _Found:
    """Return what ``look()`` returns once that is true, as :func:`wait` does.

    Args:
        look: as there.
        seconds_left: called before each sleep; raises if the wait is to end.
        awaited: the message.
    """
    found = look()
    if not found and (awaited.is_long or _may_spin()):
        found = _spin(look, awaited.size_bytes if awaited.is_long else 0)
    return found or _sleep(look, seconds_left, awaited)


def _may_spin() -> bool:
    # Elsewhere it would keep the interpreter from the thread that computes.
    return threading.current_thread() is threading.main_thread()


def _spin(look: Callable[[], _Found], size: int) -> _Found:
    """Ask MPI for a moment, or as long as a message of ``size`` bytes may be moving."""
    time_slice.shorten()
    moving = min(size / _BYTES_A_SECOND, _LONGEST_SPIN_SECONDS)
    until = time.perf_counter() + futex.SPIN_SECONDS + moving
    naps = not _may_spin()
    while True:
        if naps:
            time.sleep(_NAP_SECONDS)
        else:
            os.sched_yield()
        found = look()
        if found or time.perf_counter() > until:
            return found


def _moving_seconds(size: int) -> float:
    """Return how long a message may go on moving after a sign of life, on a busy machine."""
    return _MOVING_SECONDS + size / _LEAST_BYTES_A_SECOND if size else 0.0


_senders: set[object] = set()  # the waits until a send has ended


def _sleep(
    look: Callable[[], _Found], go_on: Callable[[], float | None], awaited: Awaited
) -> _Found:
    this = object()
    try:
        if awaited.sends:
            _senders.add(this)
        return _look_in_slices(look, go_on, awaited)
    finally:
        _senders.discard(this)
        if not _senders:
            _own[_SENDS] = 0
        _own[LOOKS_AT] = 0


def _look_in_slices(
    look: Callable[[], _Found], go_on: Callable[[], float | None], awaited: Awaited
) -> _Found:
    time_slice.shorten()
    size = awaited.size_bytes if awaited.is_long else 0
    began = time.perf_counter()
    moves_until, helps_until = began + _moving_seconds(size), began
    last_rung, last_sent, last_help = _own[_RUNG], _own[_SENT], _own[_HELP]
    while True:
        _own[LOOKS_AT] += 1
        rung = _own[_RUNG]
        if awaited.sends:
            _own[_SENDS] = 1
        _own[_ASLEEP] = 1
        with barrier:
            pass
        if found := look():
            return found
        left, now = go_on(), time.perf_counter()
        sent, asks_for_help = _own[_SENT], _own[_HELP]
        moving = -1
        if sent != last_sent:
            _answer(sent)  # that look may have ended its send
        if (rung != last_rung) if awaited.sends else (sent != last_sent):
            moving = size
            moves_until = now + _moving_seconds(size)
        if asks_for_help != last_help:
            moving = max(moving, _own[_MOVES])
            helps_until = now + _moving_seconds(_own[_MOVES])
        last_rung, last_sent, last_help = rung, sent, asks_for_help
        moves = awaited.under_way or now < moves_until
        if moves and not awaited.sends:
            awaited.bells.ring_sender(awaited.peer, size)
        if moving >= 0:
            if found := _spin(look, moving):
                return found
            continue
        seconds = futex.slice_seconds(now - began)
        if moves or now < helps_until or (left is not None and left < seconds):
            seconds = _SHORT_SLICE_SECONDS
        futex.sleep(_own_address, rung, seconds)
