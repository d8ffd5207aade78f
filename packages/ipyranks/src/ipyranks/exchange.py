"""Requests, answers and news between a cluster's processes: JSON, one message a line.

A message has an operation, ``op``, and its arguments. A request also has an ``id``, which its
answer repeats beside ``answer``. Either side may ask. Standard library only: an import that fails
before the connection is made could not be reported.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

LIMIT = 1 << 24
"""The longest line, in bytes."""


def encoded(**message: Any) -> bytes:
    """Return the line of a message."""
    return json.dumps(message).encode() + b"\n"


class Channel:
    """One end of a connection, in an event loop.

    Attributes:
        heard_at: when the latest message came, in seconds of ``time.monotonic()``.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard_at = time.monotonic()
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future] = {}
        self._replies: set[asyncio.Task] = set()

    def tell(self, operation: str, /, **content: Any) -> None:
        """Send a message that gets no answer. It is lost without an error if the peer is gone."""
        self._writer.write(encoded(op=operation, **content))

    def ask(self, operation: str, /, **content: Any) -> asyncio.Future:
        """Return a future of the answer; None if the connection is abandoned."""
        number = next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._questions.pop(number, None))
        self.tell(operation, id=number, **content)
        return answer

    def abandon(self) -> None:
        """Answer all open requests with None."""
        for question in list(self._questions.values()):
            if not question.done():
                question.set_result(None)

    async def listen(self, hear: Callable[..., None]) -> None:
        """Handle messages until the peer is gone.

        Args:
            hear: called with the operation, a function that sends the answer (or an awaitable's
                result), and the arguments by name.
        """
        try:
            while line := await self._reader.readline():
                self.heard_at = time.monotonic()
                message = json.loads(line)
                operation, number = message.pop("op", None), message.pop("id", None)
                if operation is not None:
                    hear(operation, partial(self._reply, number), **message)
                elif (question := self._questions.get(number)) is not None and not question.done():
                    question.set_result(message["answer"])
        except ConnectionError:
            pass  # it was killed: the same as closing

    def _reply(self, number: int | None, answer: Any) -> None:
        if inspect.isawaitable(answer):
            task = asyncio.create_task(self._reply_later(number, answer))
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)
        elif number is not None:
            self._writer.write(encoded(id=number, answer=answer))

    async def _reply_later(self, number: int | None, answer: Any) -> None:
        self._reply(number, await answer)

    async def drain(self) -> None:
        """Wait until all is sent; ConnectionError if the peer is gone."""
        await self._writer.drain()

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


class BlockingChannel:
    """One end of a connection, for code that blocks until a message comes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""

    def send(self, **message: Any) -> None:
        """Send a message; OSError if the peer is gone."""
        self._socket.sendall(encoded(**message))

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """Return the next message; None if the peer is gone.

        Raises:
            TimeoutError: if there is none before ``deadline``, in ``time.monotonic()``.
        """
        while b"\n" not in self._received:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                raise
            except OSError:
                data = b""
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class KeeperClient:
    """Connects an engine or the controller to the keeper, and ends it when the connection breaks.

    The keeper can end in any way, ``kill -9`` included: the operating system closes its end of
    the connection and a small thread here notices at once.

    Args:
        path: the keeper's Unix socket, or that of this host's agent.
        when_cut: called in the watching thread once the keeper is gone; by default this process
            ends.
    """

    def __init__(self, path: Path, when_cut: Callable[[], None] | None = None):
        self._when_cut = when_cut or _end_now
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        threading.Thread(target=self._watch, name="keeper client", daemon=True).start()

    def tell(self, number: int, stage: str, description: dict[str, Any] | None = None) -> None:
        """Report how far the start of this engine has got, and at its end its description."""
        said = {"number": number, "pid": os.getpid(), "stage": stage, "description": description}
        self._socket.sendall(encoded(op="engine", **said))

    def let_go(self) -> None:
        """In a forked child: close its copy, which would hide that its parent has ended."""
        self._socket.close()

    def _watch(self) -> None:
        try:
            while self._socket.recv(4096):
                pass
        except OSError:
            pass  # a reset connection is as cut as a closed one
        self._when_cut()


def _end_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
