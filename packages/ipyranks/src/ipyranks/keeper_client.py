"""Connects engines and controller to the keeper, and ends them when the connection breaks.

The keeper can end in any way, ``kill -9`` included: the operating system closes its end of
the connection and a small thread here notices at once. The notebook's end is
:mod:`.notebook_client`. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class KeeperClient:
    """A connection to the keeper's socket.

    Args:
        path: the keeper's Unix socket, or that of this host's agent.
        when_cut: called in the watching thread once the keeper is gone; by default this process
            ends.

    Attributes:
        when_lost: called in the watching thread with engines that are lost with their host.
    """

    def __init__(self, path: Path, when_cut: Callable[[], None] | None = None):
        self._when_cut = when_cut or _end_now
        self.when_lost: Callable[[list[int]], None] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        threading.Thread(target=self._watch, name="keeper client", daemon=True).start()

    def tell(self, number: int, stage: str, description: dict[str, Any] | None = None) -> None:
        """Say how far the start of this engine has got, and at its end what it is."""
        message = {"number": number, "pid": os.getpid(), "stage": stage}
        message |= {"op": "engine", "description": description}
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def let_go(self) -> None:
        """In a forked child: close its copy, which would hide that its parent has ended."""
        self._socket.close()

    def _watch(self) -> None:
        received = b""  # no file of the socket's own, which a forked child could not close
        try:
            while data := self._socket.recv(4096):
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    self._hear(json.loads(line))
        except OSError:
            pass  # a reset connection is as cut as a closed one
        self._when_cut()

    def _hear(self, message: dict[str, Any]) -> None:
        try:
            if self.when_lost is not None:
                self.when_lost(message["lost"])
        except Exception:  # this thread must live on: it is who notices the keeper's end
            traceback.print_exc()


def _end_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
