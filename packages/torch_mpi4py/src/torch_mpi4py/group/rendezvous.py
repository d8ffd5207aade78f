"""The ``mpi://`` rendezvous: ranks that MPI started know each other, so no address is needed.

``init_method="mpi://"`` gets rank and world size from MPI. Torch also needs a key-value
store: rank 0 opens one on a port the system chooses and broadcasts its address over MPI.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..comm.guarded_comm import duplicate_world
from ..core.base_comm import base
from ..core.errors import CommunicationError
from ..core.runtime import MPI
from ..core.versions import require_same, versions
from ..faults import comm_reaper, deadlines
from ..log import events
from .group_comms import all_living
from .meeting_address import listen, meeting_address

_LOOPBACK = "127.0.0.1"

# The latest stores, on the rank that serves them. They outlive the group: other ranks may still be
# meeting there in new_group after this rank, which is not a member, has destroyed its default
# group.
_serving: list[dist.Store] = []
# Communicator and store of the group that is being made, where both are there already.
ready_made: list[tuple[MPI.Intracomm, dist.Store]] = []


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
    with events.making("init_process_group", all_living()):
        comm = duplicate_world(seconds)
        rank, size = comm.Get_rank(), comm.Get_size()
        begun = None
        try:
            store = open_store(comm, timeout)
            begun = 0  # nothing else will be begun on it
        finally:
            comm_reaper.retire(comm, begun)
            del comm
    yield store, rank, size
    raise RuntimeError(
        "mpi:// cannot repeat a rendezvous; call dist.destroy_process_group(), then "
        "dist.init_process_group(...) again"
    )


def _require_mpi_launch() -> None:
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if MPI.COMM_WORLD.Get_size() == 1 and announced > 1:
        raise RuntimeError(
            f"a launcher such as torchrun started {announced} ranks, but MPI sees only one; "
            "start this program with mpiexec, e.g. mpiexec -n "
            f"{announced} python program.py, or use the gloo backend under torchrun"
        )


def open_store(comm: MPI.Intracomm, timeout: timedelta) -> dist.Store:
    """Return a new store of the ranks of ``comm``, which its rank 0 serves."""
    seconds = deadlines.bounded(timeout.total_seconds())
    timeout = timedelta(seconds=seconds)

    def share(value: object) -> Any:
        return deadlines.call(comm, "rendezvous", seconds, comm.bcast, value, 0)

    host = MPI.Get_processor_name()
    hosts = deadlines.call(comm, "rendezvous", seconds, comm.allgather, host)
    rank, size = comm.Get_rank(), comm.Get_size()
    address = _LOOPBACK
    if len(set(hosts)) > 1:
        mine = versions() | {"MPI": MPI.Get_library_version().splitlines()[0].partition(",")[0]}
        require_same(hosts, deadlines.call(comm, "rendezvous", seconds, comm.allgather, mine))
        address = meeting_address(comm, hosts, seconds)
    if rank == 0:
        try:
            listener = listen(address)
            host, port = listener.getsockname()[:2]
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
        except Exception as error:
            share((None, repr(error)))
            raise
        share((host, port))
        if size == base().Get_size():
            _serving.clear()  # every rank is here, so no rank needs the earlier ones
        _serving.append(store)
        return store
    host, port = share(None)
    if host is None:
        raise CommunicationError(f"rendezvous: rank 0 could not open a store: {port}")
    return dist.TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)


@contextlib.contextmanager
def group_on(comm: MPI.Intracomm, store: dist.Store) -> Iterator[None]:
    """Give ``comm`` and ``store`` to the process group that torch makes inside."""
    ready_made.append((comm, store))
    try:
        yield
    finally:
        ready_made.pop()
