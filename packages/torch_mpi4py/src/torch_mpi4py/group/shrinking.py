"""After a death the survivors agree on who lives, and go on among themselves.

:func:`shrink` renews everything: the base, :func:`torch_mpi4py.comm.guarded_comm` and the default
process group. ``group.shrink()`` renews one group of a part of the ranks. Both are calls for
all survivors; they work where ranks can be freed (Open MPI with ULFM).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist

from ..comm.guarded_comm import (
    DEFAULT_TIMEOUT_SECONDS,
    current_world,
    forget_half_made,
    renew_world,
)
from ..core.base_comm import numbers_in
from ..faults import deadlines
from ..faults.survivors_comm import shrink_base, shrunk_copy
from ..log.live_groups import live_groups
from .rendezvous import group_on, open_store

if TYPE_CHECKING:
    from .process_group import MPIProcessGroup


class Shrunk(NamedTuple):
    """Who is left.

    Attributes:
        dead: the ranks that died, by their old numbers.
        survivors: the others, by their old numbers; ``survivors[r]`` is rank ``r`` now.
        rank: this process's new rank.
        world_size: how many ranks there are now.
    """

    dead: list[int]
    survivors: list[int]
    rank: int
    world_size: int


def shrink(seconds: float = DEFAULT_TIMEOUT_SECONDS) -> Shrunk:
    """Go on with the ranks that live; each of them must call this.

    What ranks may still be waiting in is revoked first. Afterwards :func:`world` gives a
    communicator of the survivors, numbered anew in the same order. If there was a default
    process group, there is a new one, with the same time-out; all other groups are gone.
    Variables stay. A model's weights are equal on all ranks only if all ended the same step.

    Args:
        seconds: time allowed for the others to come.

    Raises:
        DeadlineError: if a living rank does not come; call it again, then it goes on.
        CommunicationError: if this MPI has no fault tolerance.
    """
    comm = current_world()
    if comm is not None:
        deadlines.revoke(comm)
    for group in list(live_groups):
        group.abort()
    dead, survivors = shrink_base(seconds)
    if dead:
        forget_half_made()
    default = _default_group()
    if default is not None:
        timeout, checked = default.timeout, default.check_collectives
        dist.destroy_process_group()
    fresh = renew_world(seconds)
    if comm is not None:
        fresh.timeout = comm.timeout
    if default is not None:
        dist.init_process_group("mpi4py", init_method="mpi://", timeout=timeout)
        dist.group.WORLD.check_collectives = checked
    return Shrunk(dead, survivors, fresh.Get_rank(), fresh.Get_size())


def _default_group() -> MPIProcessGroup | None:
    group = dist.group.WORLD if dist.is_initialized() else None
    return group if group in live_groups else None


def shrink_group(group: MPIProcessGroup, seconds: float | None = None) -> MPIProcessGroup:
    """Return a new group of the members of ``group`` that live; each of them must call this.

    The old group is destroyed. For the default group this is :func:`shrink`.

    Args:
        seconds: time allowed for the others to come, the group's own time-out if None.
    """
    seconds = group.timeout.total_seconds() if seconds is None else seconds
    if group is _default_group():
        shrink(seconds)
        return dist.group.WORLD
    group.abort()
    comm = shrunk_copy(group.comm, seconds, "shrink of a group")
    places = numbers_in(group.comm, comm.Get_group())
    members = dist.get_process_group_ranks(group)
    checked, timeout = group.check_collectives, group.timeout
    dist.destroy_process_group(group)
    with group_on(comm, open_store(comm, timeout)):
        fresh = dist.new_group(
            [members[place] for place in places],
            timeout=timeout,
            backend="mpi4py",
            use_local_synchronization=True,
        )
    fresh.check_collectives = checked
    return fresh
