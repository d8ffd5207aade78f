"""The one idea: ranks that MPI started already know each other, so no address need be given.

``init_method="mpi://"`` takes rank and world size from MPI. Torch also wants a key-value
store: rank 0 opens one on a port the system chooses and broadcasts its address over MPI.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from . import guard
from .group import MPIProcessGroup, live_groups
from .meeting import meet
from .runtime import MPI
from .world import duplicate_world

__all__ = ["create_group", "rendezvous"]

# The latest store, on the rank that serves it. It outlives the group: other ranks may still be
# meeting there in new_group when this one, not a member, has destroyed its default group.
_serving: list[dist.Store] = []


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
    comm = duplicate_world(seconds)
    yield _open_store(comm, timeout), comm.Get_rank(), comm.Get_size()
    raise RuntimeError("mpi:// cannot rendezvous again; destroy the group and initialise anew")


def _require_mpi_launch() -> None:
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if MPI.COMM_WORLD.Get_size() == 1 and announced > 1:
        raise RuntimeError(
            f"a launcher such as torchrun started {announced} ranks, but MPI knows of one; "
            "start this program with mpiexec, e.g. mpiexec -n "
            f"{announced} python program.py, or use the gloo backend under torchrun"
        )


def _open_store(comm: MPI.Intracomm, timeout: timedelta) -> dist.Store:
    seconds = timeout.total_seconds()

    def share(value: object) -> object:
        return guard.call(comm, "rendezvous", seconds, comm.bcast, value, 0)

    def hosts() -> set[str]:
        return set(guard.call(comm, "rendezvous", seconds, comm.allgather, _host_name()))

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
        _serving[:] = [store]  # every rank is here, so nobody needs the one before
        return store
    host, port = share(None)
    return dist.TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)


def _host_name() -> str:
    return MPI.Get_processor_name()


def _address_for_others() -> str:
    chosen = os.environ.get("COURSE_STORE_HOST")
    return chosen or socket.gethostbyname(socket.gethostname())


def create_group(options: dist.distributed_c10d._DistributedBackendOptions, _: object):
    """Make the process group that torch asks for; called on its members only."""
    timeout = options.timeout
    members = list(options.global_ranks_in_group)
    if not members:
        comm = _whole_world(options.group_rank, options.group_size, timeout)
    else:
        timeout = _inherited(timeout)
        meet(options.store, "new_group", len(members), timeout.total_seconds(), "new_group")
        comm = _part_of_world(members, options.group_id, timeout)
    return MPIProcessGroup(comm, timeout, options.store)


def _inherited(timeout: timedelta) -> timedelta:
    """Return the default group's time-out for a group that was made without one of its own.

    Torch gives such a group half an hour, however short the default group's time-out is.
    """
    parent = dist.distributed_c10d._get_default_group()
    if timeout != dist.default_pg_timeout or not isinstance(parent, MPIProcessGroup):
        return timeout
    return min(timeout, parent.timeout)


def _whole_world(rank: int, size: int, timeout: timedelta) -> MPI.Intracomm:
    if size != MPI.COMM_WORLD.Get_size():
        raise RuntimeError(
            f"world_size is {size}, but MPI started {MPI.COMM_WORLD.Get_size()} ranks; start as "
            f"many as you want in the group: mpiexec -n {size} python program.py"
        )
    seconds = timeout.total_seconds()
    comm = duplicate_world(seconds)
    # Torch may number the ranks in another order than MPI (with env://, say).
    return guard.call(comm, "init_process_group", seconds, comm.Split, 0, rank)


def _part_of_world(members: list[int], name: str, timeout: timedelta) -> MPI.Intracomm:
    parent = dist.distributed_c10d._get_default_group()
    if not isinstance(parent, MPIProcessGroup) or parent not in live_groups:
        raise RuntimeError(
            "an mpi4py group needs a default group on mpi4py: "
            'dist.init_process_group("mpi4py", init_method="mpi://")'
        )
    group = parent.comm.Get_group().Incl(members)
    tag = _tag_of(name)
    return guard.call(
        parent.comm,
        "new_group",
        timeout.total_seconds(),
        lambda: parent.comm.Create_group(group, tag),
    )


def _tag_of(name: str) -> int:
    """Return a tag that is equal on all ranks and apart from those of callback channels."""
    return 1024 + zlib.crc32(name.encode()) % 16384
