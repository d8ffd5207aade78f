"""Finds an address of rank 0's host that the ranks on all other hosts reach.

Looking up the host's name does not help: Debian gives 127.0.1.1. So rank 0 listens on each of its
addresses, and the others try which ones they can reach. ``TORCH_MPI4PY_STORE_HOST`` on rank 0 sets
the address explicitly.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any

import psutil

from ..core.runtime import MPI
from ..faults import deadlines

VARIABLE = "TORCH_MPI4PY_STORE_HOST"
_CONNECT_WITHIN_S = 1.5


def meeting_address(comm: MPI.Intracomm, hosts: Sequence[str], seconds: float) -> str:
    """Return an address at which rank 0 of ``comm`` can be reached; all ranks call this.

    Args:
        comm: of all ranks that have to reach it.
        hosts: the name of each rank's host.
        seconds: how long to wait for a rank before that is an error.

    Raises:
        ConnectionError: if no address can be reached from every host; the message names the hosts.
        DeadlineError: if a rank does not come.
    """

    def together(call: Any, *arguments: Any) -> Any:
        return deadlines.call(comm, "rendezvous", seconds, call, *arguments)

    rank = comm.Get_rank()
    with contextlib.ExitStack() as listening:
        offered: list[tuple[str, int]] = []
        if rank == 0:
            for address in _addresses():
                with contextlib.suppress(OSError):  # it has gone, or is unsuitable
                    listener = listening.enter_context(listen(address))
                    offered.append(listener.getsockname()[:2])
        offered = together(comm.bcast, offered, 0)
        elsewhere = hosts[rank] != hosts[0]
        first_of_host = hosts.index(hosts[rank]) == rank
        reached = [one for one in offered if _reaches(one)] if elsewhere and first_of_host else None
        found: list[list[tuple[str, int]] | None] = together(comm.allgather, reached)
    for one in offered:
        if all(some is None or one in some for some in found):
            return one[0]
    seen = "; ".join(
        f"{host} reaches {_listed(some)}"
        for host, some in zip(hosts, found, strict=True)
        if some is not None
    )
    raise ConnectionError(
        f"no address of {hosts[0]} ({_listed(offered)}) can be reached from all hosts: {seen}. "
        f"Set {VARIABLE} on rank 0 to one that can, or open the ports between the hosts"
    )


def _listed(addresses: Sequence[tuple[str, int]]) -> str:
    return ", ".join(address for address, _ in addresses) or "none"


def listen(address: str) -> socket.socket:
    """Return a socket that listens on a port of ``address`` which the system has chosen."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family)


def own_addresses() -> list[str]:
    """Return the addresses of this host."""
    entries = [one for some in psutil.net_if_addrs().values() for one in some]
    kinds = (socket.AF_INET, socket.AF_INET6)
    return [one.address.partition("%")[0] for one in entries if one.family in kinds]


def _addresses() -> list[str]:
    """This host's addresses that others might reach, IPv4 first."""
    told = os.environ.get(VARIABLE)
    if told:
        return [told]
    found = [one for one in own_addresses() if not one.startswith(("127.", "::1", "fe80:"))]
    return sorted(found, key=lambda one: ":" in one)


def _reaches(offered: tuple[str, int]) -> bool:
    """Whether rank 0 is at this address, seen from another host."""
    try:
        with socket.create_connection(offered, _CONNECT_WITHIN_S) as connection:
            # Every host may have an address like that of Docker's bridge, its own.
            return connection.getsockname()[0] != connection.getpeername()[0]
    except OSError:
        return False
