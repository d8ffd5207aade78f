"""How long processes have waited for a core, as far as the system tells."""

from __future__ import annotations

import contextlib
from pathlib import Path

WAITS_ARE_TOLD = Path("/proc/self/schedstat").exists()
"""Whether :func:`waited` knows anything on this system; Linux tells."""


def waited(pid: int) -> float | None:
    """Return for how many seconds in all a process's main thread could run but had no core.

    None if the process has ended or nobody knows. Where a group of processes has a limit of its
    own, as in a container, what they wait because of that counts too.
    """
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return None
