"""How long processes have waited for a core, as far as the system tells."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
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


class OwnTime:
    """Counts the time of a piece of work, but not what it waits for a core.

    Args:
        began: when the work began, in seconds of the clock that ``now`` is from.
        least: what share of the time it has to wait before that does not count.

    Attributes:
        began: the same.
        seconds: the time that counts, up to the latest look.
        share: what share of its time it waited for a core between the latest two looks.
    """

    def __init__(self, began: float, least: float = 0.0) -> None:
        self.began = began
        self.seconds = 0.0
        self.share = 0.0
        self._looked = began
        self._least = least
        self._waited: dict[int, float] = {}

    def look(
        self, now: float, processes: Iterable[int], needed: Collection[int] | None = None
    ) -> None:
        """Count the time since the last look.

        Args:
            now: the present time.
            processes: those that do the work, on this machine.
            needed: those of them for which the work waits now, by default all. The longest wait
                of one of them counts.
        """
        before, passed = self._waited, now - self._looked
        self._looked = now
        self._waited = {pid: has for pid in processes if (has := waited(pid)) is not None}
        waits = [
            has - before[pid]
            for pid, has in self._waited.items()
            if pid in before and (needed is None or pid in needed)
        ]
        if passed > 0:
            self.count(passed, min(max(waits, default=0.0) / passed, 1.0))

    def count(self, passed: float, share: float) -> None:
        """Count some seconds, for a share of which it waited for a core."""
        self.share = share
        self.seconds += passed * (1 - share) if share >= self._least else passed

    def at(self, now: float) -> float:
        """The time that counts, if it has not waited since the latest look."""
        return self.seconds + now - self._looked
