"""Manages a cluster's engines on one host: which live, signals, and their end.

The keeper has one for its own host, and each agent (:mod:`.agent`) for the host on which it runs.
Engines connect to a Unix socket of theirs and say how far they have got; once the connection
breaks, the engine has ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from .exchange import Channel
from .runtime_dir import RuntimeDir, kill, living

if TYPE_CHECKING:
    import psutil

log = logging.getLogger("ranks")

_TERM_PATIENCE_S = 2.0  # from SIGTERM to SIGKILL
_KILL_PATIENCE_S = 5.0  # from SIGKILL to giving up


@dataclasses.dataclass
class _Engine:
    pid: int
    process: psutil.Process | None  # another may have the same number later
    lives: bool = True


class RanksHere:
    """The engines on this host.

    Args:
        directory: the cluster's runtime directory on this host.
        says: called with an engine's report: ``number``, ``pid``, ``stage``, ``description``.
        ended: called with the number of an engine that has ended.
    """

    def __init__(
        self, directory: RuntimeDir, says: Callable[..., None], ended: Callable[[int], None]
    ) -> None:
        self._directory = directory
        self._says = says
        self._ended = ended
        self._engines: dict[int, _Engine] = {}

    async def serve(self, channel: Channel, besides: Callable[..., None] | None = None) -> None:
        """Receive an engine's reports, until its connection ends.

        Args:
            channel: to the engine.
            besides: handles other messages on the connection, which may be the notebook's.
        """
        number = None

        def hear(operation: str, reply: Callable[[Any], None], **said: Any) -> None:
            nonlocal number
            if operation == "engine":
                number = said["number"]
                self.hear(**said)
            elif besides is not None:
                besides(operation, reply, **said)

        try:
            await channel.listen(hear)
        finally:
            if number is not None:
                self.end_of(number)
            channel.close()

    def hear(self, number: int, pid: int, **said: Any) -> None:
        """Handle an engine's report."""
        if number not in self._engines:
            self._engines[number] = _Engine(pid, living(pid))
        self._says(number=number, pid=pid, **said)

    def end_of(self, number: int) -> None:
        """Note that an engine has ended, once."""
        if self._engines[number].lives:
            self._engines[number].lives = False
            self._ended(number)

    def look_after(self) -> None:
        """Find those whose connection another process holds, such as a child forked in C."""
        for number, engine in self._engines.items():
            if engine.lives and living(engine.pid) != engine.process:
                self.end_of(number)

    def signal(self, signum: int, numbers: list[int]) -> None:
        """Send a signal to those of some engines that are here and live."""
        for engine in map(self._engines.get, numbers):
            if engine is not None and engine.lives:
                kill(engine.pid, signum)

    async def end_processes(
        self, politely: bool, besides: Callable[[], Collection[int]] = tuple
    ) -> list[int]:
        """End all processes of the cluster on this host; return those that cannot be killed.

        Args:
            politely: they get 2 s after SIGTERM.
            besides: returns processes that are to live on, with their descendants.
        """
        left: set[psutil.Process] = set()
        for signum, patience in (
            (signal.SIGTERM, _TERM_PATIENCE_S if politely else 0.0),
            (signal.SIGKILL, _KILL_PATIENCE_S),
        ):
            left |= {*self._directory.processes(besides())}
            for process in left:
                kill(process.pid, signum)
            deadline = time.monotonic() + patience
            while left and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
                left = {process for process in left if living(process.pid) == process}
        numbers = [process.pid for process in left]
        if numbers:
            log.error("processes %s cannot be killed", numbers)
        return numbers
