"""Ranks meet at the store before a call from which nothing could free them.

Making a communicator for some of the ranks (``MPI_Comm_create_group``) is not ended by
revoking its parent, so a rank that never comes would hold the others for ever. They start it
only when all have announced themselves; if one does not, no communicator has suffered.
"""

from __future__ import annotations

import time

import torch.distributed as dist

from .errors import DeadlineError


def meet(store: dist.Store | None, key: str, size: int, seconds: float, what: str) -> None:
    """Return when ``size`` ranks have come to the meeting ``key``.

    Raises:
        DeadlineError: if fewer came within ``seconds``.
    """
    if store is None or size == 1:
        return
    arrived = store.add(f"{key}/arrived", 1)
    if arrived == size:
        store.set(f"{key}/complete", "1")
        return
    deadline = time.monotonic() + seconds
    pause = 1e-4
    while not store.check([f"{key}/complete"]):
        if time.monotonic() > deadline:
            present = store.add(f"{key}/arrived", 0)
            raise DeadlineError(
                f"{what}: Timed out: only {present} of {size} ranks came within {seconds:g} s; "
                "every rank must make this call. Other groups are as usable as before."
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
