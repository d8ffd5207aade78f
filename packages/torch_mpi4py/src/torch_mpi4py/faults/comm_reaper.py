"""A communicator is freed when no rank can use it any more, and not before.

Open MPI has 65,535 communicators for a process and takes about 10 kB for each, MPICH has 2,048, and
every group and every renewal makes some. But a rank that frees one at once may still get messages
on it, and would deliver them to the next communicator with its number. So it is only retired.

If nothing has failed on it, its own ranks free it: they meet in two barriers on it, which no rank
waits for (a *farewell*). When the first has ended, all ranks have retired it, so messages that were
sent on it but not received can be taken off; MPICH would otherwise deliver them to the next. When
the second has ended, all ranks have done that.

A communicator that has failed can't be used for that. With ULFM it is freed once all ranks have met
twice since; without ULFM it is never freed. No communicator is freed while this rank refers to it,
for instance by a pending receive.
"""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections import deque

from ..core.runtime import MPI
from . import pending_requests
from .deaths import has_ulfm

_MEETINGS = 2
_LOOKED_AT = 16  # at a time: more than are retired at a time, so that they don't add up
_LAST_TAG: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767
_lock = threading.Lock()
_meetings = 0


class _Farewell:
    """Two barriers of the ranks of a communicator, after which all may free it.

    In round k a rank sends the largest number that it knows of to the rank 2^k places on, and
    receives that of the rank 2^k places back. (MPI's own nonblocking collectives print messages if
    the communicator is revoked.)
    """

    def __init__(self, comm: MPI.Intracomm, begun: int) -> None:
        self._comm = comm
        self._known = [begun, -begun]
        self.is_even = True  # whether all ranks have begun the same number of collectives
        rank, size = comm.Get_rank(), comm.Get_size()
        distances = [2**k for k in range((size - 1).bit_length())]
        self._to = [(rank + distance) % size for distance in distances * 2]
        self._round = -1
        self._pending: list[tuple[MPI.Request, object]] = []  # and the memory
        self._receives: list[tuple[MPI.Request, array]] = []
        try:
            # All from the start, so that none of these messages is taken off with abandoned ones.
            for k, far in enumerate(distances * 2):
                self._receives.append(self._receive((rank - far) % size, k))
        except MPI.Exception:
            self.give_up()
            raise

    def _receive(self, source: int, round: int) -> tuple[MPI.Request, array]:
        memory = array("q", [0, 0])
        return self._comm.Irecv([memory, MPI.INT64_T], source, _LAST_TAG - round), memory

    def has_ended(self) -> bool:
        """Progress as far as possible without waiting; return whether it has ended on this rank."""
        while self._round < len(self._to) and self._all_done():
            if self._round >= 0:
                self._known = list(map(max, self._known, self._receives[self._round][1]))
            self._round += 1
            if 2 * self._round == len(self._to):
                self.is_even = self._known[0] == -self._known[1]
                self._take_off()
            if self._round < len(self._to):
                self._send()
        return self._round == len(self._to) and self._all_done()

    def give_up(self) -> None:
        """End its messages, because a rank has died or revoked the communicator.

        Until they have ended, MPI may write to their memory: those of living ranks still arrive.
        """
        for request, memory in self._receives:
            pending_requests.give_up(request, memory, withdraw=True)
        for request, used in self._pending:
            pending_requests.give_up(request, used, withdraw=False)

    def _all_done(self) -> bool:
        if 0 <= self._round < len(self._to) and not self._receives[self._round][0].Test():
            return False
        self._pending = [one for one in self._pending if not one[0].Test()]
        return not self._pending

    def _send(self) -> None:
        memory = array("q", self._known)
        tag = _LAST_TAG - self._round
        request = self._comm.Isend([memory, MPI.INT64_T], self._to[self._round], tag)
        self._pending.append((request, memory))

    def _take_off(self) -> None:
        """Receive arrived messages that no call expects any more; all ranks have retired it."""
        status = MPI.Status()
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            memory = bytearray(status.Get_count(MPI.BYTE))
            self._pending.append((message.Irecv([memory, MPI.BYTE]), memory))


class _Retired:
    def __init__(self, comm: MPI.Intracomm, begun: int | None) -> None:
        self.since = _meetings
        self._user = weakref.ref(comm)
        self._comm = MPI.Intracomm(comm)
        self.farewell: _Farewell | None = None
        if begun is not None:
            try:
                self.farewell = _Farewell(self._comm, begun)
            except MPI.Exception:  # revoked, or a rank has died
                self.farewell = None

    def is_under_way(self) -> bool:
        """Return whether its farewell has begun and not ended."""
        has_ended = self._farewell_has_ended()
        return self.farewell is not None and not has_ended

    def is_done_with(self) -> bool:
        """Free it where that is safe; return whether it has been freed or never can be."""
        may_go = self._all_have_done_with_it()
        if self.farewell is None and not has_ulfm():
            return True
        if not may_go or self._user() is not None:
            return False
        self._comm.Free()
        return True

    def _all_have_done_with_it(self) -> bool:
        if self._farewell_has_ended() and self.farewell is not None:
            # The remains of a collective that only some ranks have begun can't be taken off.
            return self.farewell.is_even or has_ulfm()
        return self.farewell is None and has_ulfm() and _meetings - self.since > _MEETINGS

    def _farewell_has_ended(self) -> bool:
        if self.farewell is None:
            return False
        try:
            return self.farewell.has_ended()
        except MPI.Exception:  # another rank has revoked it, or died
            self.farewell.give_up()
            self.farewell = None
            return False


_retired: deque[_Retired] = deque()


def retire(comm: MPI.Intracomm, begun: int | None = None) -> None:
    """Have ``comm``, which this rank will not use again, freed when that is safe.

    Args:
        begun: how many collectives were begun on it, which reveals ranks that disagree; None if
            something has failed on it, or may be under way.
    """
    if comm != MPI.COMM_NULL:
        with _lock:
            _retired.append(_Retired(comm, begun))
            _let_go()


def met() -> None:
    """Free all that may be freed; call it when every living rank has just met the others."""
    global _meetings
    with _lock:
        _meetings += 1
        _let_go(len(_retired))


def end(seconds: float) -> None:
    """Free communicators that the other ranks retire within ``seconds``, before MPI ends."""
    deadline = time.monotonic() + seconds
    while any(one.is_under_way() for one in _retired) and time.monotonic() < deadline:
        time.sleep(1e-3)


def count() -> int:
    """Return how many communicators are retired and not free yet."""
    return len(_retired)


def _let_go(most: int = _LOOKED_AT) -> None:
    for _ in range(min(most, len(_retired))):
        one = _retired.popleft()
        if not one.is_done_with():
            _retired.append(one)
