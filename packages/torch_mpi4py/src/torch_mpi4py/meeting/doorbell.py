"""A rank that waits for a message sleeps until its partner rings.

A wait inside MPI keeps a core busy, and only a revocation gets the rank out. So the rank asks MPI
whether the message has come, spins briefly, and then sleeps in the kernel on its *bell*, a few
words of shared memory that every rank of the host may write. A rank rings its partner's bell when
it has sent a message, when it begins to receive one, and when it has received one.

1. The sleeper reads the number of the last ring, writes that it sleeps, and asks MPI once more.
2. The other gives its message to MPI, and then reads whether its partner sleeps.
3. One of the two sees the other, because each rank's write is visible before its next read (see
   :data:`.futex.ASKS_FIRST`), and the kernel lets no thread sleep once the number has changed.

No two rings have the same number. A ring clears the note that a thread sleeps, so that the next
message does not ring again; a sleeper that wakes writes the note again before it asks MPI, so any
number of threads may sleep on one bell. One ring may announce many messages, and the awaited one
may be behind others, of which MPI receives one per look: a sleeper asks often enough for all.

The bytes of a long message move only while both sides call MPI. So a rank that waits for one, or is
told that a partner begins to receive one, spins for as long as that may take. It still sleeps in
slices, short ones at first: MPI progresses other messages only when it is called, a message may
take longer on a busy machine, and the rank must notice deaths and deadlines.

Ranks on other hosts can't ring. A rank that waits for one of them sleeps as :mod:`.network` says.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ..board.event_board import LOOKS_AT
from ..core import futex, time_slice
from ..core.futex import ASKS_FIRST, barrier
from ..core.runtime import MPI
from ..faults import deadlines
from ..faults.mpi_errors import translate
from ..log.events import log
from ..log.peer_boards import bell_of
from . import network, spinning

FIRST_SLICE_SECONDS = 50e-6
_NAP_SECONDS = 20e-6  # of a thread that must not keep the interpreter from the one that computes
_LONG_BYTES = 4096  # a longer message may need both ranks while it moves
# The speed of such a message here, and on a busy machine.
_BYTES_A_SECOND, _LEAST_BYTES_A_SECOND = 5e8, 1e8
_LONGEST_SPIN_SECONDS = 0.2  # in one go: then it looks whether the wait is to end
_LONGEST_MOVE_SECONDS = 30.0

# The number of looks that receive all that was sent before. MPICH 5.0.2 receives one short message
# from this host a look, and a sender has memory for 64; Open MPI 5.0.11 receives 31.
_ranks = MPI.COMM_WORLD.Get_size()
_LOOKS = 8 if MPI.get_vendor()[0] == "Open MPI" else min(64 * (_ranks - 1), 256)

# Places of a bell; at LOOKS_AT it counts the looks of those asleep.
_ASLEEP = 0  # whether a thread sleeps
_SENDS = 5  # and whether until a send has ended, which it may have once its receiver calls MPI
_RUNG = 1  # the number of the last ring that woke: the word on which its rank sleeps
_SENT = 2  # the number of the last message to it, whether that had to wake it or not
_HELPS_UNTIL = 4  # when, in ns, a long message that it sends should be through
_MOVES_UNTIL = 6  # and one that it receives, whose sender knows that it does

_Found = TypeVar("_Found")


# --- ringing ------------------------------------------------------------------------------------


_own = log.bell
_own_address = futex.address_of(_own) + 8 * _RUNG
# Rank r of n uses r + n, r + 2n, ...: a number identifies its ringer, and is never used again.
_numbers = itertools.count(MPI.COMM_WORLD.Get_rank() + _ranks, _ranks)


class Bells:
    """The bells of the ranks of one communicator, as far as they are on this host."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._bells = [bell_of(rank) for rank in log.group_of(comm).ranks]
        self._all_are_here = None not in self._bells

    def is_peer(self, rank: int) -> bool:
        """Return whether that is a rank of the communicator, or any source."""
        return rank == MPI.ANY_SOURCE or 0 <= rank < len(self._bells)

    def rings(self, rank: int) -> bool:
        """Return whether that rank, or each if it is any source, is on this host."""
        return self._all_are_here if rank == MPI.ANY_SOURCE else self._bells[rank] is not None

    def sent(self, dest: int) -> None:
        """Tell a rank that MPI has been given a message for it."""
        for words in self._bells_of(dest):
            words[_SENT] = number = next(_numbers)
            _wake(words, _ASLEEP, number)

    def receives(self, source: int, size_bytes: int) -> None:
        """Tell a rank, or all if it is any source, that MPI waits for at most this many bytes."""
        for words in self._bells_of(source):
            _call_sender(words, size_bytes)

    def received(self, source: int) -> None:
        """Tell a rank that a message from it has been received."""
        _own[_MOVES_UNTIL] = 0
        for words in self._bells_of(source):
            words[_HELPS_UNTIL] = 0
            _wake(words, _SENDS, next(_numbers))

    def helps(self, dest: int) -> None:
        """Tell a rank that this one helps a long message to it along."""
        until = _own[_HELPS_UNTIL]
        for words in self._bells_of(dest):
            if words[_MOVES_UNTIL] != until:
                words[_MOVES_UNTIL] = until
                _wake(words, _ASLEEP, next(_numbers))

    def may_sleep(self, rank: int) -> bool:
        """Return whether that rank, or some rank if it is any source, may be asleep."""
        with barrier:
            pass
        return any(words[_ASLEEP] or not ASKS_FIRST for words in self._bells_of(rank))

    def _bells_of(self, rank: int) -> list[memoryview]:
        if rank == MPI.ANY_SOURCE:
            return [words for words in self._bells if words is not None]
        words = self._bells[rank] if 0 <= rank < len(self._bells) else None
        return [] if words is None else [words]


def _call_sender(words: memoryview, size_bytes: int) -> None:
    needs_help = size_bytes > _LONG_BYTES and words is not _own
    if needs_help:
        words[_HELPS_UNTIL] = int(1e9 * (time.perf_counter() + _longest_move(size_bytes)))
    _wake(words, _ASLEEP if needs_help else _SENDS, next(_numbers))


def _longest_move(size_bytes: int) -> float:
    """Return for how many seconds a long message may move on a busy machine."""
    return min(size_bytes / _LEAST_BYTES_A_SECOND, _LONGEST_MOVE_SECONDS)


def _wake(words: memoryview, which: int, number: int) -> None:
    with barrier:
        pass
    if words[which] or not ASKS_FIRST:
        words[_ASLEEP] = words[_SENDS] = 0
        words[_RUNG] = number
        futex.wake(futex.address_of(words) + 8 * _RUNG)


# --- waiting ------------------------------------------------------------------------------------


class Awaited(NamedTuple):
    """A message for which this rank waits.

    Attributes:
        bells: of its communicator.
        peer: the rank, or any source, that will ring.
        size_bytes: as far as it is known.
        sends: whether this rank sends it.
        is_matched: whether it was found by a probe, and so can't be given back.
    """

    bells: Bells
    peer: int
    size_bytes: int = 0
    sends: bool = False
    is_matched: bool = False

    @property
    def long_bytes(self) -> int:
        """Its bytes if both ranks may be needed while it moves, else 0."""
        return self.size_bytes if self.size_bytes > _LONG_BYTES else 0


def wait(
    operation: deadlines.Operation, look: Callable[[], _Found], asked: Callable[[], Awaited]
) -> _Found:
    """Return what ``look()`` returns once that is true; sleep until then.

    Args:
        operation: the call that waits, which the watcher ends by giving it a ``reason``.
        look: asks MPI, without waiting. It finds arrived messages, also those that MPI has yet to
            receive.
        asked: returns the message; called only if it has not come.

    Raises:
        CommunicationError: as :func:`.deadlines.call` does; under any MPI no thread stays behind.
    """
    __tracebackhide__ = True
    try:
        if found := look():
            return found
        awaited = asked()
        if not awaited.long_bytes and _is_main_thread():
            found = _spin(look, 0.0)
        if not found:
            with deadlines.watched(operation):
                operation.outside_mpi = True
                found = _spin_and_sleep(look, operation.end_if_given_up, awaited)
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
    if not found and not awaited.long_bytes and _is_main_thread():
        found = _spin(look, 0.0)
    return found or _spin_and_sleep(look, seconds_left, awaited)


def _is_main_thread() -> bool:
    # Any other would keep the interpreter from a thread that computes.
    return threading.current_thread() is threading.main_thread()


def _spin(look: Callable[[], _Found], seconds: float) -> _Found:
    """Ask MPI for a moment, and for as long as a message, or one that is sent, may be moving."""
    time_slice.shorten()
    naps, now = not _is_main_thread(), time.perf_counter()
    until, at_most = now + spinning.SECONDS + seconds, now + _LONGEST_SPIN_SECONDS
    while True:
        if naps or now > until:
            time.sleep(_NAP_SECONDS)
        else:
            spinning.give_way()
        found, now = look(), time.perf_counter()
        if found or (now > until and not (_helps(now) and now < at_most)):
            return found


def _helps(now: float) -> bool:
    return 1e9 * now < _own[_HELPS_UNTIL]


def _spin_and_sleep(
    look: Callable[[], _Found], go_on: Callable[[], float | None], awaited: Awaited
) -> _Found:
    if size := awaited.long_bytes:  # its partner may have come before, and will not ring
        moves = min(size / _BYTES_A_SECOND, _LONGEST_SPIN_SECONDS)
        if found := _spin(look, moves):
            return found
    time_slice.shorten()
    try:
        if awaited.bells.rings(awaited.peer):
            return _sleep(look, go_on, awaited)
        return _sleep_for_other_host(look, go_on)
    finally:
        _own[LOOKS_AT] = 0


def _sleep_for_other_host(look: Callable[[], _Found], go_on: Callable[[], float | None]) -> _Found:
    found, sleeper = _spin(look, 0.0), network.Sleeper()
    while not found:
        _own[LOOKS_AT] += 1
        sleeper.sleep(go_on())
        found = look()
    return found


def _look_past_others(look: Callable[[], _Found]) -> _Found:
    """Ask MPI until it has received other messages that came first, none of which rings again."""
    for _ in range(_LOOKS):
        if found := look():
            return found
    return look()


def _sleep(
    look: Callable[[], _Found], go_on: Callable[[], float | None], awaited: Awaited
) -> _Found:
    began = time.perf_counter()
    last_sent, taken_in = _own[_SENT], None
    receives = bool(awaited.long_bytes) and not awaited.sends
    moves = min(_longest_move(awaited.long_bytes), _LONGEST_SPIN_SECONDS)
    while True:
        _own[LOOKS_AT] += 1
        rung = _own[_RUNG]
        _own[_ASLEEP] = 1
        if awaited.sends:
            _own[_SENDS] = 1
        with barrier:
            pass
        sent = _own[_SENT]
        if found := look() if sent == taken_in else _look_past_others(look):
            return found
        taken_in = sent
        left, now, sent = go_on(), time.perf_counter(), _own[_SENT]
        helps, moving = _helps(now), receives and 1e9 * now < _own[_MOVES_UNTIL]
        if helps and awaited.sends:
            awaited.bells.helps(awaited.peer)
        if sent != last_sent or helps or moving:
            if sent != last_sent and receives:
                sender = bell_of(sent % _ranks)
                if sender is not None:  # it may wait for something else
                    _call_sender(sender, awaited.size_bytes)
            if found := _spin(look, moves if sent != last_sent or moving else 0.0):
                return found
            last_sent, began = sent, time.perf_counter()
            continue
        slept = now - began
        # Its own message may be under way: one of 2 GiB took more than 80 s in longer slices.
        seconds = min(max(slept, FIRST_SLICE_SECONDS), futex.slice_seconds(slept, messages=True))
        futex.sleep(_own_address, rung, seconds if left is None else min(seconds, left))
