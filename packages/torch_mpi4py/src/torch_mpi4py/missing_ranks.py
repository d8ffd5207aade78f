"""A barrier that names the ranks which do not come.

Ranks sign in at the rendezvous store, and MPI is not touched: a group whose barrier was given up
is as usable as before. Rank 0 decides for all. Each rank has one entry in the store, which only it
and rank 0 write, each by comparing first, so that a rank cannot give up what rank 0 has let
through.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from datetime import timedelta

import torch.distributed as dist

from . import advice, events
from .deaths import await_failed_ranks, failed_ranks, has_ulfm
from .errors import CommunicationError, DeadlineError, RankFailedError
from .live_groups import live_groups
from .rank_states import rank_list
from .runtime import MPI

_LONGEST_PAUSE_SECONDS = 0.02
# Between saying that a rank may pass and doing so rank 0 only writes to the store.
_ANSWER_SECONDS = 10.0
_STORE_ERRORS = (dist.DistStoreError, dist.DistNetworkError)
_ERRORS = {kind.__name__: kind for kind in (DeadlineError, RankFailedError)}
_calls = itertools.count(1)


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Return when all ranks of ``group`` have come; if some do not, all others name them.

    ``torch.distributed.monitored_barrier`` does this for gloo and refuses every other backend.

    Args:
        group: the group, the default group if None.
        timeout: time allowed (a number means seconds), the group's own if None.
        wait_all_ranks: name all ranks that are missing. Otherwise the first is named, and where
            one has died nobody waits until the time-out.

    Raises:
        DeadlineError: on every rank that came, if one does not in time. The group stays usable.
        RankFailedError: on every rank that lives, if one has died.
    """
    group = dist.group.WORLD if group is None else group
    if timeout is not None and not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    if group in live_groups:
        group.monitored_barrier(timeout, wait_all_ranks)
    else:  # torch's own knows what to do about another backend, and about a rank outside
        dist.monitored_barrier(group, timeout, wait_all_ranks)


def wait(
    comm: MPI.Intracomm,
    store: dist.Store,
    place: int,
    seconds: float,
    wait_all_ranks: bool,
) -> None:
    """Do what :func:`monitored_barrier` says, for a group on ``comm``.

    Args:
        store: the group's.
        place: where the event log has the group's name.
    """
    if comm.Get_size() == 1:
        return
    with events.making("monitored_barrier", place):
        barrier = _Barrier(comm, store, seconds, wait_all_ranks)
        try:
            barrier.pass_through()
        except _STORE_ERRORS as error:  # it has gone, with the rank that served it
            dead = await_failed_ranks(comm, certain=True) if has_ulfm() else []
            if dead:
                raise barrier.error(dead) from None
            text = f"monitored_barrier: no answer from the store: {error}"
            raise CommunicationError(text) from error
        finally:
            barrier.leave()


class _Barrier:
    """One call on one rank."""

    def __init__(
        self, comm: MPI.Intracomm, store: dist.Store, seconds: float, wait_all_ranks: bool
    ) -> None:
        self._comm = comm
        self._rank = comm.Get_rank()
        self._store = store
        self._seconds = seconds
        self._wait_all_ranks = wait_all_ranks
        self._call = next(_calls)
        self._deadline = time.monotonic() + seconds
        self._pause = 1e-4
        self._came = {self._rank}  # the ranks that were seen waiting at some time during this call
        self._before: dict[int, str] = {}  # what the others' entries were when it began

    def pass_through(self) -> None:
        """Sign in, and return when all have; otherwise raise."""
        others = [rank for rank in range(self._comm.Get_size()) if rank != self._rank]
        self._before = {rank: self._entry(rank) for rank in others}
        self._look()
        self._store.set(self._key(self._rank), self._says("waits"))
        if self._rank == 0:
            self._decide()
        else:
            self._await_answer()

    def leave(self) -> None:
        """Sign out, if this rank still waits."""
        with contextlib.suppress(*_STORE_ERRORS):
            self._change(self._rank, self._says("waits"), self._says("left"))

    def _decide(self) -> None:
        """Let all through once they wait; give up when that cannot happen any more."""
        while True:
            entries, dead = self._look(), failed_ranks(self._comm)
            if not dead and all(entry.endswith(" waits") for entry in entries.values()):
                if self._let_through(entries):
                    return
                break
            all_came = len(self._came.union(dead)) == self._comm.Get_size()
            if all_came or self._gives_up(dead):
                break
            self._rest()
        error = self.error(dead)
        for rank, entry in entries.items():
            if entry.endswith((" waits", " may pass")):
                answer = f"{entry.split()[0]} failed {type(error).__name__} {error}"
                self._change(rank, entry, answer)
        raise error

    def _let_through(self, entries: dict[int, str]) -> bool:
        """Have each rank promise to pass, then let them; return False if one has just left."""
        for rank, entry in entries.items():
            promise = f"{entry.split()[0]} may pass"
            entries[rank] = self._change(rank, entry, promise)
            if entries[rank] != promise:
                return False
        for rank, entry in entries.items():
            self._store.set(self._key(rank), f"{entry.split()[0]} passes")
        self._store.set(self._key(0), self._says("passes"))
        return True

    def _await_answer(self) -> None:
        while True:
            _, state, *answer = self._entry(self._rank).split(" ", 3)
            if state == "passes":
                return
            if state == "failed":
                kind, text = answer
                raise _ERRORS[kind](text)
            dead = failed_ranks(self._comm)
            if state == "may" and time.monotonic() > self._deadline + _ANSWER_SECONDS:
                raise self.error(dead or [0])
            if state == "waits" and self._gives_up(dead):
                left = self._says("left")
                if self._change(self._rank, self._says("waits"), left) == left:
                    self._look()
                    raise self.error(dead)
            self._rest()

    def _gives_up(self, dead: list[int]) -> bool:
        is_late = time.monotonic() > self._deadline
        return is_late or (bool(dead) and not self._wait_all_ranks)

    def error(self, dead: list[int]) -> CommunicationError:
        """Return what to raise if ``dead`` have died, and the others that are missing are late."""
        missing = [rank for rank in self._before if rank not in self._came.union(dead)]
        named = missing if self._wait_all_ranks else missing[:1]
        late = f"{rank_list(named)} did not come within {self._seconds:g} s"
        if dead:
            also = f", and {late}" if missing and self._wait_all_ranks else ""
            return RankFailedError(
                f"monitored_barrier: {rank_list(dead)} died{also}. {advice.GO_ON}"
            )
        if not missing:
            late = "a rank gave up before the last one came"
        elif len(missing) > len(named):
            late += " (nor did others: wait_all_ranks=True names all)"
        return DeadlineError(
            f"monitored_barrier: Timed out: {late}. The group is as usable as before."
        )

    def _look(self) -> dict[int, str]:
        """Return the others' entries; remember who waits, or has waited since this rank came."""
        entries = {rank: self._entry(rank) for rank in self._before}
        self._came.update(
            rank
            for rank, entry in entries.items()
            if entry.endswith(" waits") or entry != self._before[rank]
        )
        return entries

    def _entry(self, rank: int) -> str:
        key = self._key(rank)
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _change(self, rank: int, before: str, after: str) -> str:
        """Replace an entry if it still is what it was; return what it is then."""
        return self._store.compare_set(self._key(rank), before, after).decode()

    def _key(self, rank: int) -> str:
        return f"monitored_barrier/{rank}"

    def _says(self, state: str) -> str:
        return f"{self._call} {state}"

    def _rest(self) -> None:
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
