"""The ranks of one host meet in shared memory before a collective, asleep while they wait.

A rank that waits inside MPI keeps its core busy, and nothing but a revocation gets it out. So the
ranks meet first, and call MPI once all have come. Each writes one word into its event board, which
the others have mapped: the number of its call and a signature of it. A rank that finds the words
of all others equal to its own goes on at once; otherwise it spins for a moment and then sleeps in
the kernel until the word it misses changes (a *futex*). A word with the right number and another
signature is a call that does not match: the exchange of signatures costs no message.

A rank announces that it will sleep and then looks once more; an arriving rank writes its word and
then checks whether any rank sleeps. One of the two sees the other, because each rank's write is
visible before its next read (see :data:`.futex.ASKS_FIRST`), and the kernel lets no thread sleep on
a word that has changed. Ranks still sleep in slices, because a sleeping rank has to progress other
messages and to notice deaths and deadlines.

A call has two places for its word, used in turns. A rank can be one call ahead of another, but
not two, since it would have to meet that one in between: so a word is not overwritten before all
have seen it. Only the root of a broadcast leaves early enough for the second place to matter: a
test of the turns that uses barriers passes without it.

:class:`Slot` is what this has in common with the meetings of a guarded communicator
(:mod:`.comm_arrivals`), where not every rank waits for every other one.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..board.event_board import ARRIVAL_SLOTS, ASLEEP_AT, WORDS_A_SLOT
from ..core import futex, time_slice
from ..core.errors import CommunicationError
from ..core.runtime import MPI
from ..faults import deadlines
from ..faults.deaths import has_ulfm, is_broken
from ..faults.mpi_errors import freed
from ..log.events import log
from ..log.peer_boards import board_of
from . import spinning

if TYPE_CHECKING:
    from ..core.call import Call
    from ..faults.deadlines import Operation

_NUMBER = 0xFFFF  # the bits of a word that hold the call's number
_GONE = 2  # where in a slot it says why its rank comes to no further meeting, and from which on
_ASLEEP = ASLEEP_AT  # and how often it has looked for the ranks it awaits while asleep, or 0
_LEAVING, _FAILED, _CLOSED = 1, 2, 3  # the low bits of that word; LEAVING is not decided yet
_WHY, _FROM = 3, 2  # their mask, and by how much the number of that meeting is shifted
# The reason why a rank has closed its group, as at the end of its program, is reported elsewhere.
_NEWS_SECONDS = 3.0
_DECIDED_SECONDS = 1e-3


class Peer(NamedTuple):
    """Where another rank writes its words: its memory, an index there, and its address."""

    words: memoryview
    first: int
    address: int


# --- slots --------------------------------------------------------------------------------------

# One slot for each communicator. A slot that was given back is reused as late as possible: a rank
# that still waits in the destroyed group must not mistake a new group's word for its own.
_free_slots = deque(range(ARRIVAL_SLOTS))
_slots_lock = threading.Lock()


def _take_slot() -> int:
    with _slots_lock:
        return _free_slots.popleft() if _free_slots else -1


def _give_back(slot: int) -> None:
    with _slots_lock:
        _free_slots.append(slot)


class Slot:
    """This rank's slot for one communicator, and where the other ranks have theirs.

    Args:
        comm: the communicator.
        number: the slot's.
        peers: the other ranks, in their order.
    """

    def __init__(self, comm: MPI.Intracomm, number: int, peers: list[Peer]) -> None:
        self._comm = comm
        self._slot = number
        self._peers = peers
        self._words = log.arrivals
        self._first = number * WORDS_A_SLOT
        self._address = futex.address_of(log.arrivals) + 8 * self._first
        # Read in each call.
        self._sleepers = [(one.words, one.first + _ASLEEP) for one in peers]
        self._gone = [(one.words, one.first + _GONE) for one in peers]
        self._done = 0  # the last meeting to which all have come
        self._lock = threading.RLock()
        self._closed = False
        self._pid = os.getpid()

    def leave(self, why: int = _FAILED) -> None:
        """Stop all waits for this rank; any thread may call this."""
        if os.getpid() != self._pid:  # a child that the program has forked is no rank
            return
        with self._lock:
            if not self._words[self._first + _GONE]:  # the first reason is the one that counts
                self._words[self._first + _GONE] = why | (self._done + 1) << _FROM
        for turn in (0, 1):
            futex.wake(self._address + 8 * turn)

    def _withdraw(self, number: int, all_have_come: Callable[[], bool]) -> bool:
        """Leave while this rank sleeps in a meeting, unless all have come; return whether it left.

        A rank that comes later must fail as well. So this one first writes that it is leaving, and
        then looks once more, and a rank that comes writes its word first and then looks whether
        another leaves (:meth:`_confirm`): one of the two sees the other. A rank that finds another
        leaving waits for its decision.
        """
        place = self._first + _GONE
        with self._lock:
            if self._words[place]:
                return True
            self._words[place] = _LEAVING | number << _FROM
            with futex.barrier:
                pass
            if all_have_come():
                self._words[place] = 0
                return False
            self._words[place] = _FAILED | number << _FROM
        self.leave()  # wakes the others
        return True

    def _confirm(self, operation: Operation, number: int) -> None:
        """Raise if a rank has left a meeting to which all have come, among them this one."""
        end = time.perf_counter() + _NEWS_SECONDS
        own = self._words, self._first + _GONE
        for words, place in (*self._gone, own):
            while (gone := words[place]) and gone & _WHY != _CLOSED and gone >> _FROM <= number:
                # The watcher gives this rank's own reason in a moment, as another its decision.
                decided = gone & _WHY == _FAILED and words is not self._words
                self._require_hope(operation, decided or time.perf_counter() > end)
                time.sleep(_DECIDED_SECONDS)

    def close(self) -> None:
        """Leave for good."""
        self.leave(_CLOSED)
        if not self._closed:
            self._closed = True
            _give_back(self._slot)

    def _show(self, word: int, turn: int) -> None:
        """Write a word of this rank's, and wake the ranks that sleep until it comes."""
        self._words[self._first + turn] = word
        with futex.barrier:
            pass
        for words, asleep in self._sleepers:
            if words[asleep] or not futex.ASKS_FIRST:
                futex.wake(self._address + 8 * turn)
                break

    def _sleep_until_come(
        self,
        operation: Operation,
        missing: list[Peer],
        turn: int,
        number: int,
        has_come: Callable[[int], bool],
    ) -> None:
        """Return once all of ``missing`` have come, by the word that each has in place ``turn``."""

        def all_have_come() -> bool:
            return all(has_come(one.words[one.first + turn]) for one in missing)

        time_slice.shorten()
        awake = operation.withdraw
        operation.withdraw = functools.partial(self._withdraw, number, all_have_come)
        operation.outside_mpi = True
        self._words[self._first + _ASLEEP] = 1
        with futex.barrier:
            pass
        try:
            began = time.perf_counter()
            for peer in missing:
                self._await(operation, peer, turn, has_come, began)
        finally:
            self._words[self._first + _ASLEEP] = 0
            operation.outside_mpi = False
            operation.withdraw = awake

    def _await(
        self,
        operation: Operation,
        peer: Peer,
        turn: int,
        has_come: Callable[[int], bool],
        began: float,
    ) -> None:
        place, gone_at = peer.first + turn, 0.0
        while True:
            why_gone = peer.words[peer.first + _GONE]
            seen = peer.words[place]
            if has_come(seen):
                return
            now = time.perf_counter()
            gone_at = gone_at or (now if why_gone else 0.0)
            is_vain = self._has_failed() or (why_gone and now > gone_at + _NEWS_SECONDS)
            self._require_hope(operation, bool(is_vain))
            _progress_comm().Iprobe()  # not after the sleep, when the awaited rank may have come
            self._words[self._first + _ASLEEP] += 1
            seconds = futex.slice_seconds(now - began, not log.has_one_open)
            futex.sleep(peer.address + 8 * turn, seen, seconds)

    def _has_failed(self) -> bool:
        """Return whether one of the other ranks has given the communicator up."""
        return any(words[place] & _WHY == _FAILED for words, place in self._gone)

    def _require_hope(self, operation: Operation, is_vain: bool) -> None:
        """Raise if the wait is to end: given up here or elsewhere, or a rank has died."""
        operation.end_if_given_up()
        if is_vain or is_broken(self._comm):
            raise freed(operation.what, self._comm)


def _progress_comm() -> MPI.Intracomm:
    # MPICH moves nothing of other ranks in a call on COMM_SELF; in Open MPI a call on COMM_WORLD
    # raises once a rank has died.
    return MPI.COMM_SELF if has_ulfm() else MPI.COMM_WORLD


def open_slot(comm: MPI.Intracomm, seconds: float) -> tuple[int, list[Peer]] | None:
    """Return a slot for ``comm``, and where the other ranks have theirs; each must call this.

    None if they are not all on one host, or a rank has no slot left: then they do not meet.

    Raises:
        CommunicationError: if a rank does not come within ``seconds``.
    """
    if comm.Get_size() == 1:
        return None
    ranks = log.group_of(comm).ranks
    boards = [board for rank in ranks if (board := board_of(rank)) is not None]
    slot = _take_slot() if len(boards) == len(ranks) else -1
    if slot >= 0:
        first = slot * WORDS_A_SLOT
        for place in range(first, first + WORDS_A_SLOT):
            log.arrivals[place] = 0
    try:
        gather = MPI.Intracomm.allgather  # of a guarded communicator too
        slots = deadlines.call(comm, "new communicator", seconds, gather, comm, slot)
    except CommunicationError:
        if slot >= 0:
            _give_back(slot)
        raise
    if min(slots) < 0:
        if slot >= 0:
            _give_back(slot)
        return None
    peers = []
    for place, board in enumerate(boards):
        if place != comm.Get_rank():
            first, words = slots[place] * WORDS_A_SLOT, board.arrivals
            peers.append(Peer(words, first, futex.address_of(words) + 8 * first))
    return slot, peers


# --- meeting ------------------------------------------------------------------------------------


class Arrivals(Slot):
    """Where the ranks of one communicator of the backend meet; :func:`open_arrivals` makes it.

    Attributes:
        meetings: how many this rank has come to, the same on all ranks that have come to the last.
    """

    def __init__(self, comm: MPI.Intracomm, number: int, peers: list[Peer]) -> None:
        super().__init__(comm, number, peers)
        self.meetings = 0
        # By the last bit of a call's number.
        self._places = [[(one.words, one.first + turn) for one in peers] for turn in (0, 1)]

    def meet(self, work: Operation, signature: int, call: Call) -> bool:
        """Return once every rank has come to its next call; whether all calls are the same.

        Args:
            work: the collective. The watcher ends the wait by giving it a ``reason``.
            signature: a multiple of 65,536 below 2**64, equal on ranks whose calls are equal.
            call: the call that it is a signature of.

        Raises:
            CommunicationError: if a rank will not come, or the time is over.
        """
        self.meetings += 1
        number = self.meetings & _NUMBER
        word, turn = signature | number, number & 1
        # From here on as in _show(), without another call of a function.
        self._words[self._first + turn] = word
        with futex.barrier:
            pass
        for words, asleep in self._sleepers:
            if words[asleep] or not futex.ASKS_FIRST:
                futex.wake(self._address + 8 * turn)
                break
        places, until = self._places[turn], 0.0
        for words, place in places:
            while words[place] != word:
                now = time.perf_counter()
                if not until:
                    time_slice.shorten()
                    # Elsewhere, spinning would keep the GIL from a computing thread.
                    until = now + spinning.SECONDS if work.on_callers_thread else now
                if now >= until:
                    self._await_all(work, turn)
                    self._confirm(work, self.meetings)
                    self._done = self.meetings
                    return all(words[place] == word for words, place in places)
                spinning.give_way()
        for words, place in self._gone:
            if words[place]:
                self._confirm(work, self.meetings)
        self._done = self.meetings
        return True

    def _await_all(self, work: Operation, turn: int) -> None:
        def has_come(word: int) -> bool:
            return word & _NUMBER == number

        number = self.meetings & _NUMBER
        missing = [one for one in self._peers if not has_come(one.words[one.first + turn])]
        if missing:
            self._sleep_until_come(work, missing, turn, self.meetings, has_come)


def open_arrivals(comm: MPI.Intracomm, seconds: float) -> Arrivals | None:
    """Return where the ranks of ``comm`` meet; see :func:`open_slot`."""
    opened = open_slot(comm, seconds)
    return None if opened is None else Arrivals(comm, *opened)
