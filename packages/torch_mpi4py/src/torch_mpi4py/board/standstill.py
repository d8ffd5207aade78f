"""Deadlines are suspended while a user inspects a rank that is stopped at a breakpoint.

Each :func:`renew` suspends them for a few seconds, through a file beside the event boards of a
host. The process that holds the rank renews the suspension on each host. So nothing has to be
undone, even if that process dies. Only ranks behind a notebook have such a folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from pathlib import Path

RENEW_EVERY_S = 0.5
_HOLDS_FOR_S = 4.0  # a busy machine is late


def renew(directory: Path) -> None:
    """Suspend deadlines on this host for a few seconds from now."""
    file = _file_in(str(directory))
    Path(file).touch(mode=0o600)
    now = time.monotonic()  # the host's clock, which is never set; a shared folder has another
    os.utime(file, (now, now))


def is_on(directory: str) -> bool:
    """Return whether deadlines are suspended on this host."""
    with contextlib.suppress(OSError):
        return 0.0 <= time.monotonic() - os.stat(_file_in(directory)).st_mtime < _HOLDS_FOR_S
    return False


@functools.cache  # every rank asks ten times a second
def _file_in(directory: str) -> str:
    return f"{directory}/standstill-{socket.gethostname()}"
