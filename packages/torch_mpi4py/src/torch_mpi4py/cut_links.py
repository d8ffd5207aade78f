"""Closes connections whose other host is out of reach, so that MPI takes the ranks there for dead.

Revoking a communicator does not end a large message in Open MPI 5.0.11 (its ``pml/ob1`` cancels
what is being sent only to a rank that has died). Where a cable was cut in the middle of one, the
sender would stay in MPI until the kernel gives the connection up, after some 15 minutes. The kernel
knows much earlier that nobody answers, and says so (``tcp_info`` in Linux's ``linux/tcp.h``).

That a host is silent does not make its ranks stop. They may take this host for dead in the same
way, so that neither side may go on by itself.

Only connections to hosts of other ranks count: a program may have others, to a data base, say.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from . import advice
from .errors import CommunicationError
from .launch import off_the_network

_OPEN_FILES = Path("/proc/self/fd")
SOON_SECONDS = 1.0
"""Silence after which a connection is closed that an overdue call may wait for."""
PATIENT_SECONDS = 10.0
"""The same where ranks wait for each other without a limit, and one may well compute."""
LOOK_EVERY_SECONDS = 1.0
"""How often whoever waits looks for them."""
_FIRST_RETRANSMIT_SECONDS = 0.2  # at least; each later one waits twice as long
_SYN_SENT = 2  # the state in the first byte of tcp_info
_RETRANSMITS_AT, _PROBES_AT = 2, 3  # bytes of tcp_info
_PROBE_SECONDS = 1
_MOST_PROBES = 127
_NOT_YET = "another host"  # to which there is no connection yet, so that nobody says which it is

_silent: dict[str, None] = {}  # addresses of hosts, in the order in which they were found silent
_decided = False
several_hosts = not off_the_network(os.environ)
"""Whether ranks may be on other hosts than this one; the same on all of them."""
_theirs: set[str] | None = None  # addresses of the other ranks' hosts; None if they are not known


def own_addresses() -> list[str]:
    """Return the addresses of this host, for :func:`hosts_are_at` on all ranks."""
    entries = [one for some in psutil.net_if_addrs().values() for one in some]
    kinds = (socket.AF_INET, socket.AF_INET6)
    return [one.address.partition("%")[0] for one in entries if one.family in kinds]


def hosts_are_at(addresses: Iterable[Iterable[str]]) -> None:
    """Remember the addresses of every rank's host; those of this host do not matter."""
    global _theirs
    found = {address for some in addresses for address in some}
    _theirs = (_theirs or set()) | (found - {*own_addresses()})


def close_dead(seconds: float = SOON_SECONDS) -> None:
    """Close this process's connections to hosts that have not answered for so many ``seconds``.

    Idle connections are probed from the first call on; so it is called again and again. Where one
    host has been found silent, there is less patience with the others.
    """
    seconds = min(seconds, SOON_SECONDS) if _silent else seconds
    for connection, address in _to_other_hosts():
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            _probe(connection)
            said = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
            resent = _FIRST_RETRANSMIT_SECONDS * (2 ** said[_RETRANSMITS_AT] - 1)
            probed = _PROBE_SECONDS * (said[_PROBES_AT] - 1)
            if max(resent, probed) >= seconds:
                _silent[address] = None
                connection.shutdown(socket.SHUT_RDWR)


def decided() -> None:
    """Remember that somebody decides which of two sides goes on, and has told this one."""
    global _decided
    _decided = True


def forsaken() -> None:
    """Remember that this process takes all other ranks for dead."""
    _silent["any other rank"] = None


def advice_or(otherwise: str) -> str:
    """Return what to do after a connection was closed and nobody has decided who goes on.

    Args:
        otherwise: returned where that is not so.
    """
    return f"{_note()}{advice.RESTART}" if _silent and not _decided else otherwise


def require_none(what: str) -> None:
    """Refuse to go on without ranks that may go on without this one.

    Raises:
        CommunicationError: if a connection was closed, and nobody has decided who goes on.
    """
    if found := advice_or(""):
        raise CommunicationError(f"{what}: {found}")


def _note() -> str:
    return (
        f"There is no answer from {' and '.join(_silent)}. The ranks there may live and think the "
        "same of those here, so neither side can go on. "
    )


def _probe(connection: socket.socket) -> None:
    if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == _PROBE_SECONDS:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _MOST_PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)


def _to_other_hosts() -> Iterator[tuple[socket.socket, str]]:
    """Yield each connection to a host of ranks, as a handle of its own, and the address there."""
    if not several_hosts or not _OPEN_FILES.is_dir():  # not Linux
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
                here, there = _plain(connection.getsockname()[0]), _other_end(connection)
                if here != there and (_theirs is None or there in {*_theirs, _NOT_YET}):
                    yield connection, there


def _other_end(connection: socket.socket) -> str:
    try:
        return _plain(connection.getpeername()[0])
    except OSError:
        if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _SYN_SENT:
            raise
        return _NOT_YET


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")  # of IPv4, by a socket of IPv6
