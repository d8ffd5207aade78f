"""Only connections to hosts of ranks are asked whether somebody answers there.

What becomes of those is tested on several hosts: ``tests/hosts/test_cut_cable.py``.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest
from torch_mpi4py import cut_links

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who is silent")

THERE = "127.0.0.2"  # an address that is not the one from which we connect


@pytest.fixture(params=["", "::ffff:"], ids=["IPv4", "IPv4 by a socket of IPv6"])
def connection(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if request.param else socket.AF_INET
    with (
        socket.create_server((THERE, 0)) as server,
        socket.socket(family, socket.SOCK_STREAM) as one,
    ):
        one.bind((f"{request.param}127.0.0.1", 0))
        one.connect((f"{request.param}{THERE}", server.getsockname()[1]))
        yield one


@pytest.mark.parametrize(
    ("several_hosts", "theirs", "asked"),
    [
        (False, None, False),  # all ranks are here, and this is a data base
        (True, {"10.0.0.2"}, False),
        (True, {"10.0.0.2", THERE}, True),
        (True, None, True),
    ],
)
def test_who_is_asked(
    connection: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    several_hosts: bool,
    theirs: set[str] | None,
    asked: bool,
) -> None:
    monkeypatch.setattr(cut_links, "several_hosts", several_hosts)
    monkeypatch.setattr(cut_links, "_theirs", theirs)
    cut_links.close_dead()
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == asked


def test_this_hosts_own_addresses_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_links, "_theirs", None)
    own = cut_links.own_addresses()
    assert "127.0.0.1" in own
    cut_links.hosts_are_at([own, [*own, "10.0.0.2"]])
    cut_links.hosts_are_at([own, [*own, "10.0.0.3"]])  # after a shrink, say
    assert cut_links._theirs == {"10.0.0.2", "10.0.0.3"}
