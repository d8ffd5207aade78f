"""Lets a rank that waits for another host sleep until data arrive from the network.

MPI moves messages between hosts only while it is called, so its own waits call it without a pause.
A wait of this library sleeps in the kernel until a TCP connection of the process has something to
read, and then calls MPI. There is no way to tell which connections are MPI's, so all count. Those
of a store or of ZeroMQ have threads of their own that read at once: now and then they wake a rank
needlessly.

A rank's outgoing data continue when a connection has room again, which wakes no rank. So as long as
a connection sends, the rank calls MPI often. If the kernel has no more bytes to send, that may not
be the end: perhaps they have gone before the rank looks. Where nothing else counted, a message of
16 MiB whose sender waited for another one took 0.2 to 0.6 s; now it takes 0.02 s. The rank calls
MPI now and then in any case, as over InfiniBand messages need no TCP.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

_LONGEST_PAUSE_SECONDS = 25e-3  # then it takes about 1% of a core; with 5 ms 3% (measured)
_SENDING_PAUSE_SECONDS = 2e-4
_SENDING_MILLISECONDS = 5  # so long after its last bytes; Linux counts in steps of 1 to 10
_PART = 1 / 16  # of its wait so far: how much it may oversleep
_LIST_AGAIN_SECONDS = 0.25
# Of struct tcp_info, from Linux 4.6 on: tcpi_unacked, tcpi_last_data_sent, tcpi_notsent_bytes.
_TCP_INFO = struct.Struct("=24xI16xI96xI")
_MOST_DESCRIPTORS = 1024  # that select() takes


class _Sockets(NamedTuple):
    """Descriptors of this process's TCP sockets, which count as all of them until ``until``."""

    connections: list[int]
    listeners: list[int]
    until: float


# To list them takes longer than most waits, so one wait after another uses the same list.
_sockets = _Sockets([], [], 0.0)


class Sleeper:
    """Sleeps during one wait for another host, in pauses that grow with the wait."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def sleep(self, left: float | None = None) -> None:
        """Sleep until something comes, for a moment at most, and at most ``left`` seconds."""
        global _sockets
        now = time.perf_counter()
        pause = min(_PART * (now - self._began), _LONGEST_PAUSE_SECONDS)
        if now >= _sockets.until:
            _sockets = _Sockets(*_tcp_sockets(), now + _LIST_AGAIN_SECONDS)
        connections, listeners, _ = _sockets
        try:
            if any(map(_sends, connections)):
                pause = min(pause, _SENDING_PAUSE_SECONDS)
            seconds = pause if left is None else max(0, min(pause, left))
            select.select([*connections, *listeners], (), (), seconds)
        except (OSError, ValueError):  # one of them was closed meanwhile
            _sockets = _Sockets([], [], 0.0)


def _tcp_sockets() -> tuple[list[int], list[int]]:
    """Return the descriptors of this process's TCP connections, and of the sockets that listen."""
    kinds: dict[bool, list[int]] = {False: [], True: []}
    if sys.platform == "linux":
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # no socket, or closed by another thread
                listens = _listens(int(name))
                if listens is not None and int(name) < _MOST_DESCRIPTORS:
                    kinds[listens].append(int(name))
    return kinds[False], kinds[True]


def _listens(descriptor: int) -> bool | None:
    """Return whether a TCP socket listens, None for another kind of socket; else raise OSError."""
    with _view(socket.socket(fileno=descriptor)) as view:
        if view.family not in (socket.AF_INET, socket.AF_INET6) or view.type != socket.SOCK_STREAM:
            return None
        return bool(view.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sends(descriptor: int) -> bool:
    """Return whether a TCP connection sends bytes, or has done so a moment ago."""
    with _view(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)) as view:
        information = view.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    complete = information.ljust(_TCP_INFO.size, b"\0")  # older kernels tell less
    unacknowledged, sent_ago, not_sent = _TCP_INFO.unpack(complete)
    return bool(unacknowledged or not_sent) or sent_ago <= _SENDING_MILLISECONDS


@contextlib.contextmanager
def _view(view: socket.socket) -> Iterator[socket.socket]:
    """Leave the socket open at the end of this block: it is another's."""
    try:
        yield view
    finally:
        view.detach()
