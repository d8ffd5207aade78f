"""A rank that waits for another host sleeps until one of its connections has something to read."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch_mpi4py.meeting import network

LONG_SECONDS = 20.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the two ends of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


@pytest.fixture(autouse=True)
def no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the sockets that an earlier test has listed."""
    monkeypatch.setattr(network, "_sockets", network._Sockets([], [], 0.0))


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but a connection wake a sleeper."""
    monkeypatch.setattr(network, "_LONGEST_PAUSE_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(network, "_PART", LONG_SECONDS * 1e6)


def seconds_asleep() -> float:
    sleeper, began = network.Sleeper(), time.perf_counter()
    sleeper.sleep()
    return time.perf_counter() - began


@pytest.fixture
def only_pair(pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide other connections of this process, and await the time when these two send no more."""
    ends = [end.fileno() for end in pair]
    monkeypatch.setattr(network, "_tcp_sockets", lambda: (ends, []))
    await_silence(pair)


def await_silence(pair: tuple[socket.socket, socket.socket]) -> None:
    """Return once neither end of a connection counts as sending."""
    deadline = time.monotonic() + LONG_SECONDS
    while any(network._sends(end.fileno()) for end in pair):
        assert time.monotonic() < deadline
        time.sleep(1e-3)


@pytest.mark.usefixtures("long_pauses", "only_pair")
def test_incoming_bytes_end_the_sleep(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    timer = threading.Timer(0.3, one.send, [b"x"])
    timer.start()
    assert 0.2 < seconds_asleep() < LONG_SECONDS / 2
    assert other.recv(1) == b"x"
    timer.join()


@pytest.mark.usefixtures("long_pauses")
def test_new_connection_ends_the_sleep() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients: list[socket.socket] = []
        address = server.getsockname()
        timer = threading.Timer(0.3, lambda: clients.append(socket.create_connection(address)))
        timer.start()
        assert 0.2 < seconds_asleep() < LONG_SECONDS / 2
        server.accept()[0].close()
        timer.join()
        clients[0].close()


@pytest.mark.usefixtures("long_pauses")
def test_sleep_is_short_with_data_to_send(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = pair[0]  # the receiver, in this process, would wake it
    monkeypatch.setattr(network, "_tcp_sockets", lambda: ([sender.fileno()], []))
    sender.setblocking(False)
    while _takes_more(sender):
        pass
    monkeypatch.setattr(network, "_SENDING_MILLISECONDS", -1)  # when does not matter
    assert seconds_asleep() < LONG_SECONDS / 2


@pytest.mark.usefixtures("long_pauses", "only_pair")
def test_sleep_is_short_when_data_have_just_gone(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    one.send(b"x")
    assert other.recv(1) == b"x"
    monkeypatch.setattr(network, "_SENDING_MILLISECONDS", 1000 * LONG_SECONDS)
    assert seconds_asleep() < LONG_SECONDS / 2
    monkeypatch.setattr(network, "_SENDING_MILLISECONDS", -1)
    await_silence(pair)  # the other end may acknowledge late
    began = time.perf_counter()
    network.Sleeper().sleep(0.3)
    assert time.perf_counter() - began > 0.25


def test_kernel_that_tells_less_is_understood(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OldSocket(socket.socket):
        def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
            return super().getsockopt(level, option, min(size, 104))

    monkeypatch.setattr(network.socket, "socket", OldSocket)
    await_silence(pair)
    monkeypatch.setattr(network, "_SENDING_MILLISECONDS", 1000 * LONG_SECONDS)
    assert network._sends(pair[0].fileno())


def _takes_more(sender: socket.socket) -> bool:
    try:
        return sender.send(bytes(1 << 16)) > 0
    except BlockingIOError:
        return False


def test_sleep_grows_without_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def select_for(*arguments: Any) -> Any:
        pauses.append(arguments[-1])
        return select.select(*arguments)

    pauses: list[float] = []
    monkeypatch.setattr(network, "_tcp_sockets", lambda: ([], []))
    monkeypatch.setattr(network, "select", SimpleNamespace(select=select_for))
    began = time.perf_counter()
    sleeper = network.Sleeper()
    while not pauses or pauses[-1] < network._LONGEST_PAUSE_SECONDS:
        sleeper.sleep()
        assert pauses[-1] <= network._PART * (time.perf_counter() - began)
    assert pauses == sorted(pauses)
    assert pauses[-1] == network._LONGEST_PAUSE_SECONDS


@pytest.mark.usefixtures("long_pauses", "pair")
@pytest.mark.parametrize("left", [0.0, -1.0, 0.1])
def test_sleep_does_not_exceed_its_limit(left: float) -> None:
    began = time.perf_counter()
    network.Sleeper().sleep(left)
    assert time.perf_counter() - began < LONG_SECONDS / 2


@pytest.mark.usefixtures("long_pauses")
def test_closed_connection_is_forgotten(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sleeper, closed = network.Sleeper(), pair[0].fileno()
    sleeper.sleep(0)
    assert closed in network._sockets.connections
    pair[0].close()
    sleeper.sleep(0)  # of the old list
    sleeper.sleep(0)
    assert closed not in network._sockets.connections


def test_waits_share_the_list_for_a_moment(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_again() -> tuple[list[int], list[int]]:
        nonlocal lists
        lists += 1
        return [end.fileno() for end in pair], []

    lists = 0
    monkeypatch.setattr(network, "_tcp_sockets", list_again)
    monkeypatch.setattr(network, "_LIST_AGAIN_SECONDS", LONG_SECONDS)
    for _ in range(3):
        network.Sleeper().sleep(0)
    assert lists == 1
    monkeypatch.setattr(network, "_sockets", network._sockets._replace(until=time.perf_counter()))
    network.Sleeper().sleep(0)
    assert lists == 2


def test_only_tcp_sockets_are_watched(pair: tuple[socket.socket, socket.socket]) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as local,
        socket.create_server(("127.0.0.1", 0)) as server,
        open("/dev/null") as file,
    ):
        connections, listeners = network._tcp_sockets()
        assert {end.fileno() for end in pair} <= set(connections)
        assert server.fileno() in listeners
        others = {datagrams.fileno(), local.fileno(), file.fileno()}
        assert not others & {*connections, *listeners}
