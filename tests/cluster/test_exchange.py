"""Requests, answers and news between two processes of a cluster."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
from ipyranks.exchange import BlockingChannel, Channel


async def pair() -> tuple[Channel, Channel]:
    sockets = socket.socketpair()
    ours, theirs = [Channel(*await asyncio.open_unix_connection(sock=one)) for one in sockets]
    return ours, theirs


async def answer(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def test_replies_reach_requests_and_news_reach_listener() -> None:
    async def talk() -> None:
        ours, theirs = await pair()
        news, late = [], []

        def obey(operation: str, reply: Any, **content: Any) -> None:
            if operation == "later":
                late.append(reply)
            else:
                theirs.tell("heard", what=operation)
                reply(answer(content) if operation == "wait" else content)

        def hear(operation: str, reply: Any, **content: Any) -> None:
            reply("nobody has asked")
            news.append((operation, content))

        ends = ((theirs, obey), (ours, hear))
        listening = [asyncio.create_task(one.listen(heard)) for one, heard in ends]
        ours.tell("told", number=3)
        asked = [ours.ask(name, number=n) for n, name in enumerate(("later", "wait", "now"))]
        async with asyncio.timeout(20):
            assert await asyncio.gather(*asked[1:]) == [{"number": 1}, {"number": 2}]
            assert not asked[0].done()
            late[0](None)
            assert await asked[0] is None
        assert news == [("heard", {"what": name}) for name in ("told", "wait", "now")]
        ours.close()
        async with asyncio.timeout(20):
            await listening[0]

    asyncio.run(talk())


def test_abandon_answers_open_requests_with_none() -> None:
    async def talk() -> None:
        ours, _ = await pair()
        asked, given_up = ours.ask("what"), ours.ask("else")
        given_up.cancel()
        ours.abandon()
        async with asyncio.timeout(20):
            assert await asked is None

    asyncio.run(talk())


def test_lost_peer_ends_listening_and_writes_do_not_raise() -> None:
    async def talk() -> None:
        ours, theirs = socket.socketpair()
        channel = Channel(*await asyncio.open_unix_connection(sock=ours))
        theirs.send(b"")
        channel.tell("unread")  # what it leaves unread makes a reset of its end
        theirs.close()
        async with asyncio.timeout(20):
            await channel.listen(lambda *_, **__: None)
        channel.tell("gone")
        channel.tell("gone")

    asyncio.run(talk())


def test_blocking_channel() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    with pytest.raises(TimeoutError):
        channel.receive(time.monotonic())
    theirs.sendall(b'{"a": 1}\n{"b"')
    assert channel.receive(time.monotonic() + 20) == {"a": 1}
    theirs.sendall(b": 2}\n")
    assert channel.receive(time.monotonic() + 20) == {"b": 2}
    channel.send(op="unread")
    theirs.close()
    assert channel.receive(time.monotonic() + 20) is None
    with pytest.raises(OSError, match="Broken pipe"):
        channel.send(op="gone")
