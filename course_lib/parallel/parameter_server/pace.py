"""A sleep stands for a slower device, so that few cores can show many speeds."""

from __future__ import annotations

import time

from ..arguments import seconds

__all__ = ["Pace"]


class Pace:
    """How long a gradient takes at least.

    Args:
        step_seconds: floor of each gradient's time; what is left of it is slept.
        slowdown: seconds slept on top.

    Raises:
        TypeError: if one is no number.
        ValueError: if one is negative or not finite.
    """

    def __init__(self, step_seconds: float = 0.0, slowdown: float = 0.0) -> None:
        self._step_seconds = seconds("step_seconds", step_seconds)
        self._slowdown = seconds("slowdown", slowdown)

    def keep(self, began: float) -> None:
        """Sleep until the gradient begun at ``began`` (of ``time.perf_counter``) may be sent."""
        left = began + self._step_seconds - time.perf_counter()
        pause = max(0.0, left) + self._slowdown
        if pause > 0:
            time.sleep(pause)
