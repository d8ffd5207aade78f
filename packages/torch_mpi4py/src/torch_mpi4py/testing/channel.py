"""Messages between pytest and one of its ranks: a line of JSON each, over a Unix socket."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any


class Channel:
    """One end of the connection.

    Args:
        connected: the socket.
        seconds: how long a message may take from its first byte to its last, None for no limit.
    """

    def __init__(self, connected: socket.socket, seconds: float | None) -> None:
        connected.settimeout(seconds)
        self._socket = connected
        self._file = connected.makefile("rwb")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            OSError: if the other end has gone, or does not read it in time.
        """
        self._file.write(json.dumps(dict(message)).encode() + b"\n")
        self._file.flush()

    def receive(self) -> dict[str, Any] | None:
        """Wait for a message and return it, None if the other end has gone."""
        try:
            line = self._file.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):  # what could not be sent
            self._file.close()
        self._socket.close()
