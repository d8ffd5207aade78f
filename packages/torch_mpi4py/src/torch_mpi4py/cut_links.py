"""Closes connections whose other host is out of reach, so that MPI takes the ranks there for dead.

Revoking a communicator does not end a large message in Open MPI 5.0.11 (its ``pml/ob1`` cancels
what is being sent only to a rank that has died). Where a cable was cut in the middle of one, the
sender would stay in MPI until the kernel gives the connection up, after some 15 minutes. The kernel
knows much earlier that nobody answers, and says so (``tcp_info`` in Linux's ``linux/tcp.h``).

That a host is silent does not make its ranks stop. They may take this host for dead in the same
way, so that neither side may go on by itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")
# How often the kernel has sent the same thing again without any answer: after at least 1.4 s.
_RETRANSMITS, _RETRANSMITS_AT = 3, 2
# How often it has asked an idle host whether it is there, once a second.
_PROBES, _PROBES_AT = 2, 3

silent_hosts: dict[str, None] = {}
"""The addresses of the hosts to which a connection was closed, in order."""


def close_dead() -> None:
    """Close this process's connections to hosts that have not answered for a while.

    Idle connections are probed from the first call on: call it again, for two seconds or more.
    """
    for connection, address in _to_other_hosts():
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) != 1:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            said = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
            if said[_RETRANSMITS_AT] >= _RETRANSMITS or said[_PROBES_AT] >= _PROBES:
                silent_hosts[address] = None
                connection.shutdown(socket.SHUT_RDWR)


def _to_other_hosts() -> Iterator[tuple[socket.socket, str]]:
    """Yield each TCP connection to another host, as a handle of its own, and the address there."""
    if not _OPEN_FILES.is_dir():  # not Linux
        return
    for name in os.listdir(_OPEN_FILES):
        with contextlib.suppress(OSError):  # no socket, not connected, or closed meanwhile
            if not os.readlink(_OPEN_FILES / name).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type != socket.SOCK_STREAM:
                    continue
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                here, there = connection.getsockname()[0], connection.getpeername()[0]
                if here != there:
                    yield connection, there
