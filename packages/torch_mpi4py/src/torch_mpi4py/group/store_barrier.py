"""Ranks meet at the store before a call from which nothing could free them.

Making a communicator for some of the ranks (``MPI_Comm_create_group``) is not ended by
revoking its parent, so a rank that never comes would hold the others for ever. They start it
only when all have announced themselves; if one does not, no communicator has suffered.

They meet in rounds, as the same name may be used again: after a time-out, or for a group that is
made, destroyed and made again. Each rank's number of the next round is kept in the store. The rank
that finds first that all have come to a round, or that it has waited long enough, decides it for
all, by an entry that is written once. A rank that comes to a round which has been decided goes on
to the next one: so those that have tried more or less often find each other. Where no other will
come again under that name, it is told at once that the others have given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist

from ..core.errors import DeadlineError, RevokedError

_ALL, _INTERRUPTED = "all", "interrupted"
_LONGEST_PAUSE_SECONDS = 0.02


class Meeting(NamedTuple):
    """A round in which all have come.

    Attributes:
        store: where they met.
        round: the beginning of the names of the round's entries.
        place: this rank's place in the order of arrival.
        size: how many they are.
    """

    store: dist.Store
    round: str
    place: int
    size: int

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all, in the order of arrival."""
        self.store.set(f"{self.round}/text {self.place}", text)
        keys = [f"{self.round}/text {place}" for place in range(self.size)]
        return [self.store.get(key).decode() for key in keys]

    def forget(self) -> None:
        """Remove what only this round needs; for one rank, once all others have met it."""
        self.store.delete_key(f"{self.round}/arrived")
        self.store.delete_key(f"{self.round}/outcome")


def meet(
    store: dist.Store | None,
    key: str,
    rank: int,
    size: int,
    seconds: float,
    what: str,
    gone: Callable[[], str] = str,
    comes_again: bool = True,
) -> Meeting | None:
    """Return when ``size`` ranks have come to the meeting ``key``; None if there is none to await.

    Args:
        rank: this one's number, which no other has.
        gone: tells which of them will not come any more, "" if none is known.
        comes_again: whether those that have given up may come again with this ``key``.

    Raises:
        DeadlineError: if fewer came within ``seconds``.
        RevokedError: if one of them has ended.
    """
    if store is None or size == 1:
        return None
    deadline = time.monotonic() + seconds
    while True:
        round = f"{key}/{store.add(f'{key}/{rank}', 1)}"
        outcome = f"{round}/outcome"
        place = store.add(f"{round}/arrived", 1) - 1
        try:
            _await_outcome(store, round, outcome, size, deadline, gone)
        except BaseException:  # an interrupt: none must go on without this rank
            store.compare_set(outcome, "", f"{store.add(f'{round}/arrived', 0)} {_INTERRUPTED}")
            raise
        present, _, why = store.get(outcome).decode().partition(" ")
        if why == _ALL:
            return Meeting(store, round, place, size)
        came_too_late = place >= int(present)
        if not (came_too_late and comes_again):
            _raise(what, why, present, size, seconds)


def _await_outcome(
    store: dist.Store,
    round: str,
    outcome: str,
    size: int,
    deadline: float,
    gone: Callable[[], str],
) -> None:
    pause = 1e-4
    while not store.check([outcome]):
        present = store.add(f"{round}/arrived", 0)
        if present == size:
            store.compare_set(outcome, "", f"{present} {_ALL}")
        elif time.monotonic() > deadline:
            store.compare_set(outcome, "", f"{present} late")
        elif pause >= _LONGEST_PAUSE_SECONDS and (who := gone()):
            store.compare_set(outcome, "", f"{present} {who}")
        else:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _raise(what: str, why: str, present: str, size: int, seconds: float) -> None:
    others = "Other groups are as usable as before."
    if why == "late":
        raise DeadlineError(
            f"{what}: Timed out after {seconds:g} s: only {present} of {size} ranks came; "
            f"every rank must make this call. {others}"
        )
    if why == _INTERRUPTED:
        raise DeadlineError(f"{what}: a rank was interrupted before all had come. {others}")
    raise RevokedError(f"{what}: {why}. {others}")
