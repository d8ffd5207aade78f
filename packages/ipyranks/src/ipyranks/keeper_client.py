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
from collections.abc import Callable
from pathlib import Path
from typing import Any


class KeeperClient:
    """A connection to the keeper's socket.

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
        """Say how far the start of this engine has got, and at its end what it is."""
        message = {"number": number, "pid": os.getpid(), "stage": stage}
        message |= {"op": "engine", "description": description}
        self._socket.sendall(json.dumps(message).encode() + b"\n")

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
