"""Processes of one machine share a clock; between machines the delay is estimated.

``time.perf_counter`` counts from the same moment in all processes of a machine. What another
machine's worker has timed is moved to this process's clock by the smallest difference seen
between its sending and the receiving here, which is too late by the fastest message's way.
"""

from __future__ import annotations

import math

from torch_mpi4py.machine import clock_identity

__all__ = ["Clocks"]


class Clocks:
    """The clocks of the workers, as far as this process knows them."""

    def __init__(self) -> None:
        self._ahead: dict[int, float] = {}

    def heard(self, worker: int, clock: int, sent: float, arrived: float) -> None:
        """Learn from a message that was ``sent`` by that ``clock`` and arrived by ours."""
        if clock == clock_identity():
            self._ahead[worker] = 0.0
        else:
            self._ahead[worker] = min(self._ahead.get(worker, math.inf), arrived - sent)

    def on_ours(self, worker: int, seconds: float) -> float:
        """Return a reading of the worker's clock on ours."""
        return seconds + self._ahead.get(worker, 0.0)
