"""After a death, the survivors agree on which ranks live, and continue without the dead.

:func:`shrink` renews everything: the base, :func:`torch_mpi4py.comm.guarded_comm` and the default
process group. ``group.shrink()`` renews one group of some of the ranks. All survivors must call
them; they work if ranks can be freed (Open MPI with ULFM).

Nothing can interrupt ``MPI_Comm_shrink``, so it runs on a thread, and the next call
continues one that was given up.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import NamedTuple

import torch.distributed as dist

from ..comm.guarded_comm import (
    DEFAULT_TIMEOUT_SECONDS,
    current_world,
    forget_half_made,
    renew_world,
)
from ..core import advice
from ..core.base_comm import base, numbers_in, replace_base
from ..core.errors import CommunicationError, DeadlineError
from ..core.runtime import MPI
from ..faults import deadlines
from ..faults.deaths import has_ulfm
from ..faults.mpi_errors import translate
from ..log.live_groups import live_groups
from .rendezvous import group_on, open_store


class Shrunk(NamedTuple):
    """The outcome of a shrink: which ranks are left.

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
    """Continue with the living ranks; each of them must call this.

    Every communicator in which ranks may still be waiting is revoked first. Afterwards,
    :func:`world` is a communicator of the survivors, with new numbers in the same order. If there
    was a default process group, there is a new one, with the same timeout; all other groups are
    gone. Variables are kept. A model's weights are equal on all ranks only if all finished the same
    step.

    Args:
        seconds: time allowed for the others to come.

    Raises:
        DeadlineError: if a living rank does not come; call it again to continue.
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
        backend, timeout = default.backend, default.timeout
        checked = default.check_collectives
        dist.destroy_process_group()
    fresh = renew_world(seconds)
    if comm is not None:
        fresh.timeout = comm.timeout
    if default is not None:
        dist.init_process_group(backend, init_method="mpi://", timeout=timeout)
        dist.group.WORLD.check_collectives = checked
    return Shrunk(dead, survivors, fresh.Get_rank(), fresh.Get_size())


def _default_group() -> dist.ProcessGroup | None:
    group = dist.group.WORLD if dist.is_initialized() else None
    return group if group in live_groups else None


def shrink_group(group: dist.ProcessGroup, seconds: float | None = None) -> dist.ProcessGroup:
    """Return a new group of the members of ``group`` that live; each of them must call this.

    The old group is destroyed. For the default group this is :func:`shrink`.

    Args:
        seconds: time allowed for the others to come, the group's own timeout if None.
    """
    seconds = group.timeout.total_seconds() if seconds is None else seconds
    if group is _default_group():
        shrink(seconds)
        return dist.group.WORLD
    group.abort()
    comm = shrunk_copy(group.comm, seconds, "shrink of a group")
    places = numbers_in(group.comm, comm.Get_group())
    members = dist.get_process_group_ranks(group)
    backend, timeout = group.backend, group.timeout
    checked = group.check_collectives
    dist.destroy_process_group(group)
    with group_on(comm, open_store(comm, timeout)):
        fresh = dist.new_group(
            [members[place] for place in places],
            timeout=timeout,
            backend=backend,
            use_local_synchronization=True,
        )
    fresh.check_collectives = checked
    return fresh


# --- communicators ------------------------------------------------------------------------


def shrink_base(seconds: float) -> tuple[list[int], list[int]]:
    """Leave the dead out of the base; every living rank must call this.

    Returns:
        The dead and the survivors, by their ranks in the base as it was.

    Raises:
        DeadlineError: if some living rank did not come within ``seconds``. The unfinished
            call is kept, and the next one on this rank goes on with it.
    """
    before = base()
    fresh = shrunk_copy(before, seconds, "shrink")
    survivors = numbers_in(before, fresh.Get_group())
    dead = [rank for rank in range(before.Get_size()) if rank not in survivors]
    if dead:
        replace_base(fresh)
    return dead, survivors


_unfinished: dict[int, Future] = {}


def shrunk_copy(comm: MPI.Intracomm, seconds: float, what: str) -> MPI.Intracomm:
    """Return a new communicator of the ranks of ``comm`` that live; ``comm`` may be revoked.

    Raises:
        CommunicationError: if this MPI has no fault tolerance.
        DeadlineError: as in :func:`shrink_base`.
    """
    if not has_ulfm():
        raise CommunicationError(
            f"{what}: this MPI has no fault tolerance (ULFM), so no rank can continue after a "
            f"death. {advice.RESTART} Open MPI 5 has fault tolerance if you start it with "
            "mpiexec --with-ft ulfm."
        )
    key = comm.handle
    if key not in _unfinished:
        _unfinished[key] = deadlines.on_thread("shrink", comm.Shrink)
    shrinking = _unfinished[key]
    if not wait([shrinking], deadlines.bounded(seconds)).done:
        raise DeadlineError(
            f"{what}: Timed out because not every living rank made this call within {seconds:g} s. "
            "Call it on all of them. If you call it again here, it continues where it stopped."
        )
    del _unfinished[key]
    try:
        fresh = shrinking.result()
    except MPI.Exception as error:
        raise translate(error, what, comm) from error
    fresh.Set_errhandler(MPI.ERRORS_RETURN)
    return fresh
