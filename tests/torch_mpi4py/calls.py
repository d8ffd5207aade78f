"""Calls of a rank as its event log has them, for tests of what follows from them."""

from __future__ import annotations

from typing import Any

from torch_mpi4py.board.event_board import ANY, Event

EVERYBODY = tuple(range(4))


def call(kind: str, *, seconds: float = 0.0, waiting: bool = True, **details: Any) -> Event:
    """Return one that has been under way for ``seconds``; its peer is a rank of the world."""
    known = {"group": "world", "dtype": "", "shape": "", "site": "", "outcome": "", **details}
    for name in ("peer", "root", "tag"):
        known.setdefault(name, ANY)
    known.setdefault("ranks", EVERYBODY)
    return Event(0, kind, bytes=ANY, start=0.0, end=seconds, waiting=waiting, **known)
