"""Ranks that MPI started already know each other, so no address need be given.

``init_method="mpi://"`` takes rank and world size from MPI. Torch also wants a key-value
store: rank 0 opens one on a port the system chooses and broadcasts its address over MPI.
"""

from __future__ import annotations

import contextlib
import os
import socket
import zlib
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from . import comm_reaper, deadlines, events
from .event_board import group_text
from .guarded_comm import duplicate_world, settle, tell_boards
from .process_group import MPIProcessGroup, live_groups
from .runtime import MPI
from .store_barrier import meet
from .survivors_comm import base

__all__ = ["create_group", "group_on", "is_out_of_step", "open_store", "rendezvous"]

# The latest stores, on the rank that serves them. They outlive the group: other ranks may still
# be meeting there in new_group when this one, not a member, has destroyed its default group.
_serving: list[dist.Store] = []
# Communicator and store of the group that is being made, where both are there already.
_ready_made: list[tuple[MPI.Intracomm, dist.Store]] = []
_out_of_step = False


def is_out_of_step() -> bool:
    """Return whether a new_group has failed here since the default group was made.

    Torch counts the groups to name them, so a rank that has not called it gives other names to
    all that follow, and waits for ever for those that use the same names as before.
    """
    return _out_of_step


def rendezvous(
    url: str, timeout: timedelta = dist.default_pg_timeout, **_: object
) -> Iterator[tuple[dist.Store, int, int]]:
    """Yield (store, rank, world size) for ``mpi://``; torch calls this on every rank.

    Raises:
        DeadlineError: if not every rank of the MPI job initialises within ``timeout``.
        RuntimeError: if a launcher other than MPI started several ranks.
    """
    _require_mpi_launch()
    seconds = timeout.total_seconds()
    with events.making("init_process_group", _all_living()):
        comm = duplicate_world(seconds)
        comm_reaper.retire(comm)
        store = open_store(comm, timeout)
    yield store, comm.Get_rank(), comm.Get_size()
    raise RuntimeError("mpi:// cannot rendezvous again; destroy the group and initialise anew")


def _require_mpi_launch() -> None:
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if MPI.COMM_WORLD.Get_size() == 1 and announced > 1:
        raise RuntimeError(
            f"a launcher such as torchrun started {announced} ranks, but MPI knows of one; "
            "start this program with mpiexec, e.g. mpiexec -n "
            f"{announced} python program.py, or use the gloo backend under torchrun"
        )


def open_store(comm: MPI.Intracomm, timeout: timedelta) -> dist.Store:
    """Return a new store of the ranks of ``comm``, which its rank 0 serves."""
    seconds = timeout.total_seconds()

    def share(value: object) -> object:
        return deadlines.call(comm, "rendezvous", seconds, comm.bcast, value, 0)

    def hosts() -> set[str]:
        return set(deadlines.call(comm, "rendezvous", seconds, comm.allgather, _host_name()))

    one_host = len(hosts()) == 1
    rank, size = comm.Get_rank(), comm.Get_size()
    if rank == 0:
        host = "127.0.0.1" if one_host else _address_for_others()
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        # The store takes over the socket, so it listens on this address only.
        store = dist.TCPStore(
            host,
            port,
            size,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        share((host, port))
        if size == base().Get_size():
            _serving.clear()  # every rank is here, so nobody needs the ones before
        _serving.append(store)
        return store
    host, port = share(None)
    return dist.TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)


def _host_name() -> str:
    return MPI.Get_processor_name()


def _address_for_others() -> str:
    chosen = os.environ.get("TORCH_MPI4PY_STORE_HOST")
    return chosen or socket.gethostbyname(socket.gethostname())


def create_group(options: dist.distributed_c10d._DistributedBackendOptions, _: object):
    """Make the process group that torch asks for; called on its members only."""
    global _out_of_step
    timeout = options.timeout
    members = list(options.global_ranks_in_group)
    if _ready_made:
        comm, store = _ready_made[-1]
        return MPIProcessGroup(comm, timeout, store)
    if not members:
        comm = _whole_world(options.group_rank, options.group_size, timeout)
        _out_of_step = False
    else:
        timeout = _inherited(timeout)
        parent = _parent_of_groups()
        try:
            with events.making("new_group", events.log.part_of(parent.comm, members)):
                meet(options.store, "new_group", len(members), timeout.total_seconds(), "new_group")
                comm = _part_of(parent, members, options.group_id, timeout)
        except BaseException:
            _out_of_step = True
            raise
    return MPIProcessGroup(comm, timeout, options.store)


@contextlib.contextmanager
def group_on(comm: MPI.Intracomm, store: dist.Store) -> Iterator[None]:
    """Give ``comm`` and ``store`` to the process group that torch makes inside."""
    _ready_made.append((comm, store))
    try:
        yield
    finally:
        _ready_made.pop()


def _inherited(timeout: timedelta) -> timedelta:
    """Return the default group's time-out for a group that was made without one of its own.

    Torch gives such a group half an hour, however short the default group's time-out is.
    """
    parent = dist.distributed_c10d._get_default_group()
    if timeout != dist.default_pg_timeout or not isinstance(parent, MPIProcessGroup):
        return timeout
    return min(timeout, parent.timeout)


def _whole_world(rank: int, size: int, timeout: timedelta) -> MPI.Intracomm:
    if size != base().Get_size():
        raise RuntimeError(
            f"world_size is {size}, but {base().Get_size()} ranks started by MPI live; start as "
            f"many as you want in the group: mpiexec -n {size} python program.py"
        )
    seconds = timeout.total_seconds()
    with events.making("init_process_group", _all_living()):
        comm = duplicate_world(seconds)
        tell_boards(comm, seconds)
        # Torch may number the ranks in another order than MPI (with env://, say).
        group = deadlines.call(comm, "init_process_group", seconds, comm.Split, 0, rank)
        settle(group, seconds)
    comm_reaper.retire(comm)
    return group


def _all_living() -> int:
    """Return the place of the name of all living ranks in the event log."""
    return events.log.string(group_text("world", events.log.group_of(base()).ranks))


def _parent_of_groups() -> MPIProcessGroup:
    parent = dist.distributed_c10d._get_default_group()
    if not isinstance(parent, MPIProcessGroup) or parent not in live_groups:
        raise RuntimeError(
            "an mpi4py group needs a default group on mpi4py: "
            'dist.init_process_group("mpi4py", init_method="mpi://")'
        )
    return parent


def _part_of(
    parent: MPIProcessGroup, members: list[int], name: str, timeout: timedelta
) -> MPI.Intracomm:
    group = parent.comm.Get_group().Incl(members)
    tag = _tag_of(name)
    seconds = timeout.total_seconds()
    comm = deadlines.call(
        parent.comm, "new_group", seconds, lambda: parent.comm.Create_group(group, tag)
    )
    settle(comm, seconds)
    return comm


def _tag_of(name: str) -> int:
    """Return a tag that is equal on all ranks and apart from those of callback channels."""
    return 1024 + zlib.crc32(name.encode()) % 16384
