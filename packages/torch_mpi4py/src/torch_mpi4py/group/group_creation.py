"""Makes the process group that ``init_process_group`` and ``new_group`` ask for."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import torch.distributed as dist

from ..core import base_comm
from ..core.errors import CommunicationError
from ..core.runtime import MPI
from ..log.live_groups import live_groups
from .group_comms import part_of, whole_world
from .mixed_groups import MixedGroup, asked_for, has_others, make_others
from .process_group import MPIProcessGroup
from .rendezvous import ready_made
from .store_barrier import meet

_REFUSAL_SECONDS = 5.0
# From 2.14 on, torch's names of groups that only their members make hold the count of groups, too.
_COUNTS_ALL_GROUPS = "group_count" in dist.distributed_c10d._hash_ranks_to_str.__code__.co_names
_out_of_step = False


def is_out_of_step() -> bool:
    """Return whether a new_group has failed here since the default group was made.

    Torch names groups by counting them, so a rank that has not called it gives different names to
    all later groups, and would wait indefinitely for the ranks that use the original names.
    """
    return _out_of_step


def create_group(
    options: dist.distributed_c10d._DistributedBackendOptions, backend_options: object
) -> MPIProcessGroup:
    """Make the process group that torch asks for; called on its members only.

    Raises:
        ValueError: if it is requested beside another backend, and this PyTorch can't have both.
    """
    backends = asked_for()
    try:
        is_mixed = has_others(backends)
    except ValueError:
        _await_the_others_refusals(options)
        raise
    place = _place_of_group(options)
    if not is_mixed:
        return MPIProcessGroup(*place)
    group = MixedGroup(*place, options.process_group, backends)
    options.store = group.get_group_store()  # after a death, the store given may have no server
    try:
        make_others(options, backend_options, backends)
    except BaseException:
        group.shutdown()
        raise
    return group


def _await_the_others_refusals(options: dist.distributed_c10d._DistributedBackendOptions) -> None:
    """Return once every rank is about to refuse the group, or after a moment.

    PyTorch may have made the other backend already. A rank that drops its part closes connections,
    and gloo would raise an error of its own on ranks that are still making theirs.
    """
    key, size = f"refused {options.group_id}", options.group_size
    with contextlib.suppress(CommunicationError):  # the refusal is the error to report
        meet(options.store, key, base_comm.base(), size, _REFUSAL_SECONDS, "new group")


def _place_of_group(
    options: dist.distributed_c10d._DistributedBackendOptions,
) -> tuple[MPI.Intracomm, timedelta, dist.Store]:
    """Return the communicator, the timeout and the store of a group that torch asks for."""
    global _out_of_step
    timeout = options.timeout
    members = list(options.global_ranks_in_group)
    if ready_made:
        comm, store = ready_made[-1]
        return comm, timeout, store
    if not members:
        comm = whole_world(options.group_rank, options.group_size, timeout.total_seconds())
        _out_of_step = False
    else:
        timeout = _inherited(timeout)
        parent = _parent_of_groups().comm
        seconds = timeout.total_seconds()
        try:
            comm = part_of(parent, members, options.group_id, options.store, seconds, "new_group")
        except BaseException:
            if options.group_id.isdecimal():
                _out_of_step = True
            elif _COUNTS_ALL_GROUPS:
                # No rank has made it; those that have not tried have not counted it either.
                dist.distributed_c10d._world.group_count -= 1
            raise
    return comm, timeout, options.store


def _inherited(timeout: timedelta) -> timedelta:
    """Return the default group's timeout for a group that was made without one of its own.

    Torch gives such a group half an hour, however short the default group's timeout.
    """
    parent = dist.distributed_c10d._get_default_group()
    if timeout != dist.default_pg_timeout or not isinstance(parent, MPIProcessGroup):
        return timeout
    return min(timeout, parent.timeout)


def _parent_of_groups() -> MPIProcessGroup:
    parent = dist.distributed_c10d._get_default_group()
    if not isinstance(parent, MPIProcessGroup) or parent not in live_groups:
        raise RuntimeError(
            "an mpi4py group needs a default group on mpi4py: "
            'dist.init_process_group("mpi4py", init_method="mpi://")'
        )
    return parent
