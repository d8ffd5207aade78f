"""Ranks meet at the store before a call from which nothing could free them.

Making a communicator for some of the ranks (``MPI_Comm_create_group``) is not ended by
revoking its parent, so a rank that never comes would hold the others for ever. They start it
only when all have announced themselves; if one does not, no communicator has suffered. Who finds
first that all have come, or that it has waited long enough, decides for all, by an entry in the
store that is written once: a rank that comes when the others have given up must not start alone.
"""

from __future__ import annotations

import time

import torch.distributed as dist

from .errors import DeadlineError

_ALL = "all"


def meet(store: dist.Store | None, key: str, size: int, seconds: float, what: str) -> None:
    """Return when ``size`` ranks have come to the meeting ``key``.

    Raises:
        DeadlineError: if fewer came within ``seconds``.
    """
    if store is None or size == 1:
        return
    arrived, outcome = store.add(f"{key}/arrived", 1), f"{key}/outcome"
    deadline = time.monotonic() + seconds
    pause = 1e-4
    while not store.check([outcome]):
        if arrived == size or time.monotonic() > deadline:
            present = store.add(f"{key}/arrived", 0)
            store.compare_set(outcome, "", _ALL if present == size else str(present))
        else:
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
    said = store.get(outcome).decode()
    if said != _ALL:
        raise DeadlineError(
            f"{what}: Timed out after {seconds:g} s: only {said} of {size} ranks came; "
            "every rank must make this call. Other groups are as usable as before."
        )
