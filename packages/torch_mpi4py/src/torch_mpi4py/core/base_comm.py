"""The communicator of exactly the living ranks, from which all others are made.

At first that is ``MPI.COMM_WORLD``. It is never revoked, so that a new communicator can be made
from it whatever happened to the others. After a death
:func:`torch_mpi4py.group.shrinking.shrink_base` replaces it with a communicator of the survivors,
which get new numbers in the same order.
"""

from __future__ import annotations

import functools
from typing import Any

from . import collective_counts
from .runtime import MPI

_base: MPI.Intracomm = MPI.COMM_WORLD
half_made: tuple[MPI.Intracomm, MPI.Request] | None = None
"""A duplicate of the base that was begun here, and has not ended on all ranks."""


_RESERVED_TAGS = 2**14


@functools.cache
def largest_tag() -> int:
    """Return the largest tag that a message of the program may have."""
    largest: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return int(largest) - _RESERVED_TAGS


def tag_apart(tag: int) -> int:
    """Return the tag for ``Create_group`` in place of ``tag``, which no message may have.

    By MPI's standard that tag has nothing to do with those of messages. But Open MPI 5.0.11 sends
    plain messages with it on the parent, and they land in the program's receives of the same tag.
    """
    return largest_tag() + 1 + tag % _RESERVED_TAGS


def numbers_in(comm: MPI.Comm, group: MPI.Group) -> list[int]:
    """Return the ranks of the members of ``group`` in ``comm``, and free ``group``."""
    everyone = comm.Get_group()
    try:
        return list(MPI.Group.Translate_ranks(group, None, everyone))
    finally:
        group.Free()
        everyone.Free()


def members() -> list[int]:
    """Return the world ranks of the base, in its order."""
    return numbers_in(MPI.COMM_WORLD, _base.Get_group())


def base() -> MPI.Intracomm:
    """Return the communicator of all ranks that live, as far as the last shrink knows."""
    return _base


def replace_base(survivors: MPI.Intracomm) -> None:
    """Make all further communicators from that of the ``survivors``."""
    global _base
    _base = survivors
    collective_counts.forget_steps()  # of some of the survivors one may be half made
