"""Counts the collectives this rank has begun on each communicator, under names all ranks share.

A rank that has come to its end tells the others these numbers. A rank that waits in a collective
with a higher number learns from them that its wait can never end.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from .runtime import MPI

DUPLICATIONS, SETTLED = 0, 1
"""Names for two steps of making a duplicate of the base: see guarded_comm.duplicate_world()."""
_MOST_CLOSED = 1000  # whose numbers are kept; nothing is reported of older ones

_identity = MPI.Comm.Create_keyval()


class Counted(Protocol):
    """An object that runs collectives on its own communicator."""

    def most_begun(self) -> float | None:
        """Return how many it has begun or will begin, None if more may come."""


_counted: WeakValueDictionary[int, Any] = WeakValueDictionary()
_closed: dict[int, float] = {}
steps: dict[int, int] = {DUPLICATIONS: 0, SETTLED: 0}
"""How many of these steps this rank has begun."""


def forget_steps() -> None:
    """Restart the count at 0: the base has changed, alike on all its ranks."""
    steps.update(dict.fromkeys(steps, 0))


def agree_on_identity(comm: MPI.Intracomm, run: Callable[..., Any]) -> None:
    """Give ``comm`` a number of its own, the same on all its ranks; each must call this.

    None returns before all have called it.

    Args:
        run: calls a function of MPI with its arguments.
    """
    mine, agreed = array("q", [secrets.randbits(62)]), array("q", [0])
    run(comm.Allreduce, [mine, MPI.INT64_T], [agreed, MPI.INT64_T], MPI.MAX)
    comm.Set_attr(_identity, agreed[0])


def identity_of(comm: MPI.Comm) -> int | None:
    """Return the number that :func:`agree_on_identity` has found, None if it has not been asked."""
    return comm.Get_attr(_identity)


def count(comm: MPI.Comm, who: Counted) -> None:
    """Have ``who`` asked for the collectives on ``comm``."""
    identity = identity_of(comm)
    if identity is not None:
        _counted[identity] = who


def close(comm: MPI.Comm, begun: float) -> None:
    """Remember that no more than ``begun`` collectives will ever be begun here on ``comm``."""
    identity = identity_of(comm)
    if identity is not None:
        _counted.pop(identity, None)
        _closed[identity] = begun
        if len(_closed) > _MOST_CLOSED:
            _closed.pop(next(iter(_closed)), None)


def most_begun() -> dict[int, float]:
    """Return how many collectives this rank will have begun, where no more can come."""
    found: dict[int, float] = {**steps, **_closed}
    for identity, who in list(_counted.items()):
        begun = who.most_begun()
        if begun is not None:
            found[identity] = begun
    return found
