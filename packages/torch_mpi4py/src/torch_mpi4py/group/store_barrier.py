"""A meeting of ranks at the store, before a call that nothing could free them from.

Revoking a parent communicator does not end ``MPI_Comm_create_group``, so a rank that never comes
would block the others indefinitely. They call it only when all have announced themselves; if one
does not, no communicator has suffered.

They meet in rounds, because the same name may be used again: after a timeout, or for a group that
is made, destroyed and made again. Each rank's number of the next round is kept in the store. The
first rank that finds that all have come to a round, or that it has waited long enough, decides the
round for all, by an entry that is written once. A rank that comes to a round which has been decided
goes on to the next one, so ranks that have tried more or less often find each other. If no other
rank will come again under that name, it is told at once that the others have given up.

The wait also ends if a missing rank has died, ended or destroyed the parent group, or if the
communicator has been revoked: a rank that gave up, or that calls ``shrink``, frees the ranks that
wait here, too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch.distributed as dist

from ..core.errors import CommunicationError, DeadlineError, RevokedError
from ..core.runtime import MPI
from ..exits import ends
from ..faults import deadlines
from ..faults.deaths import await_failed_ranks, failed_ranks, has_ulfm, is_revoked
from ..faults.mpi_errors import freed, rank_failed
from ..log.events import log

_ALL, _LATE, _INTERRUPTED, _REVOKED, _DEAD = "all", "late", "interrupted", "revoked", "dead"
_STORE_ERRORS = (dist.DistStoreError, dist.DistNetworkError)
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1e-4, 0.02
"""Between two looks at the store."""


class Terms(NamedTuple):
    """For which call ranks meet, and for how long they wait.

    Attributes:
        comm: a communicator of theirs, and maybe of others.
        members: which ranks of ``comm`` are to come; none if that isn't known.
        what: the call's name.
        seconds: how long they wait.
        deadline: when that is over, by :func:`.deadlines.clock`.
    """

    comm: MPI.Intracomm
    members: Sequence[int]
    what: str
    seconds: float
    deadline: float

    def why_in_vain(self, is_slow: bool) -> str:
        """Return why this rank need not wait any longer, "" if there is no reason.

        Args:
            is_slow: whether it waits so long that it may spend time on the other ranks' states.
        """
        if deadlines.clock() > self.deadline:
            return _LATE
        if not is_slow:
            return ""
        dead = [rank for rank in failed_ranks(self.comm) if rank in self.members]
        if dead:
            return f"{_DEAD} {' '.join(map(str, dead))}"
        if is_revoked(self.comm):
            return _REVOKED
        places = log.group_of(self.comm).ranks
        return ends.will_not_come([places[member] for member in self.members], self.comm)

    def error(self, why: str, present: str) -> CommunicationError:
        """Return the error that says why not all came."""
        others = "Other groups are still usable."
        kind, _, dead = why.partition(" ")
        if kind == _DEAD:
            return rank_failed(self.what, list(map(int, dead.split())), self.comm)
        if kind == _REVOKED:
            return freed(self.what, self.comm)
        if kind == _LATE:
            return DeadlineError(
                f"{self.what}: Timed out after {self.seconds:g} s: only {present} ranks arrived; "
                f"every rank must make this call. {others}"
            )
        if kind == _INTERRUPTED:
            why = "a rank was interrupted before all ranks arrived"
            return DeadlineError(f"{self.what}: {why}. {others}")
        return RevokedError(f"{self.what}: {why}. {others}")


class Meeting(NamedTuple):
    """A round in which all have come.

    Attributes:
        store: where they met.
        round: the beginning of the names of the round's entries.
        place: this rank's place in the order of arrival.
        size: how many they are.
        terms: of the call for which they met.
    """

    store: dist.Store
    round: str
    place: int
    size: int
    terms: Terms

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all, in the order of arrival; on all of them, or on none.

        A store's ``get`` waits for an entry with the process's one connection in its hands: two
        ranks, two threads of which exchange texts in opposite orders, would keep each other from
        sending what the other awaits. So only entries that exist are asked for.

        Raises:
            DeadlineError, RankFailedError or RevokedError: if a rank that had come did not go on.
        """
        keys = [f"{self.round}/text {place}" for place in range(self.size)]
        with answering(self.terms.comm, self.terms.what):
            self.store.set(keys[self.place], text)
            _, present, why = _decide(self.store, f"{self.round}/told", self.size, self.terms)
            if why != _ALL:
                raise self.terms.error(why, f"{present} of {self.size}")
            return [self.store.get(key).decode() for key in keys]

    def forget(self) -> None:
        """Remove this round's entries; one rank calls this, once all others have met it."""
        for begun in (self.round, f"{self.round}/told"):
            self.store.delete_key(f"{begun}/arrived")
            self.store.delete_key(f"{begun}/outcome")
        for place in range(self.size):
            self.store.delete_key(f"{self.round}/text {place}")


def meet(
    store: dist.Store | None,
    key: str,
    comm: MPI.Intracomm,
    size: int,
    seconds: float,
    what: str,
    members: Sequence[int] = (),
    comes_again: bool = True,
) -> Meeting | None:
    """Return when ``size`` ranks have come to the meeting ``key``; None if there is none to await.

    Args:
        comm: a communicator of theirs, and maybe of others.
        members: which ranks of ``comm`` are to come; none if that isn't known.
        comes_again: whether those that have given up may come again with this ``key``.

    Raises:
        DeadlineError: if fewer came within ``seconds``.
        RankFailedError: if one of the members has died.
        RevokedError: if one of them has ended or destroyed its group on ``comm``, or ``comm`` was
            revoked.
    """
    if store is None or size == 1:
        return None
    terms = Terms(comm, members, what, seconds, deadlines.clock() + seconds)
    with answering(comm, what):
        while True:
            round = f"{key}/{store.add(f'{key}/{comm.Get_rank()}', 1)}"
            place, present, why = _decide(store, round, size, terms)
            if why == _ALL:
                again = terms._replace(deadline=deadlines.clock() + seconds)
                return Meeting(store, round, place, size, again)
            came_too_late = place >= present
            if not (came_too_late and comes_again):
                raise terms.error(why, f"{present} of {size}")


def _decide(store: dist.Store, begun: str, size: int, terms: Terms) -> tuple[int, int, str]:
    """Arrive, and return this rank's place, how many had come when it was decided, and what.

    The first rank that finds all there, or a reason not to wait for them, decides for all.

    Args:
        begun: the beginning of the names of the entries.
        size: how many ranks are to come.
    """
    arrived, outcome = f"{begun}/arrived", f"{begun}/outcome"
    place = store.add(arrived, 1) - 1
    try:
        pause = SHORTEST_PAUSE_SECONDS
        while not store.check([outcome]):
            present = store.add(arrived, 0)
            if present == size:
                store.compare_set(outcome, "", f"{present} {_ALL}")
            elif why := terms.why_in_vain(pause == LONGEST_PAUSE_SECONDS):
                store.compare_set(outcome, "", f"{present} {why}")
            else:
                pause = rest(pause)
    except BaseException:  # an interrupt: none must go on without this rank
        store.compare_set(outcome, "", f"{store.add(arrived, 0)} {_INTERRUPTED}")
        raise
    there, _, why = store.get(outcome).decode().partition(" ")
    return place, int(there), why


def rest(pause: float) -> float:
    """Sleep for ``pause`` seconds, and return how long to sleep next time."""
    time.sleep(pause)
    return min(2 * pause, LONGEST_PAUSE_SECONDS)


@contextlib.contextmanager
def answering(comm: MPI.Intracomm, what: str) -> Iterator[None]:
    """Translate the errors of a store of ``comm``'s ranks that does not answer in this block.

    Raises:
        RankFailedError: if a rank has died, such as the one that served the store.
        CommunicationError: if it has gone for another reason.
    """
    try:
        yield
    except _STORE_ERRORS as error:
        dead = await_failed_ranks(comm, certain=True) if has_ulfm() else []
        if dead:
            raise rank_failed(what, dead, comm) from None
        raise CommunicationError(f"{what}: no answer from the store: {error}") from error
