"""Makes the stop button end a cell once, however often it is pressed.

A user who sees nothing happen presses again. The first press ends the cell; the clean-up after it
(the ranks are freed, communication is renewed) must not be interrupted half-way.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from IPython import get_ipython

_DEAF_S = 15.0  # at most; to free ranks takes 6 s if some cannot be freed
_AFTERWARDS_S = 1.0  # until the notebook has shown the report


class StopButton:
    """Handles presses of the stop button while a cell runs on the ranks.

    Use it as a context manager around everything that belongs to the cell. A press inside
    :meth:`listening` raises KeyboardInterrupt there. Elsewhere it is only counted: an earlier one
    is raised as soon as the notebook listens, a later one comes too late. Whatever
    happens, presses get through again after 15 s.
    """

    def __init__(self) -> None:
        self.presses = 0
        self._listens = False
        self._deaf_until = 0.0
        self._before: Any = None

    def __enter__(self) -> StopButton:
        self._deaf_until = time.monotonic() + _DEAF_S
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is None:
            return
        if kind is not None and self.presses and getattr(get_ipython(), "kernel", None) is not None:
            # While the report is being shown, too; a kernel takes our handler back after the cell.
            self._deaf_until = time.monotonic() + _AFTERWARDS_S
            return
        signal.signal(signal.SIGINT, self._before)
        if kind is None and self.presses:
            raise interruption(
                "the ranks had already finished; only the rest of this cell was interrupted"
            )

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Let the next press raise KeyboardInterrupt, in the block.

        Raises:
            KeyboardInterrupt: also at once, if the button was pressed already.
        """
        try:
            self._listens = True
            if self.presses:
                raise KeyboardInterrupt
            yield
        finally:
            self._listens = False
            self._deaf_until = time.monotonic() + _DEAF_S

    def _pressed(self, signum: int, frame: FrameType | None) -> None:
        self.presses += 1
        if self._listens:
            self._listens = False
            self._deaf_until = time.monotonic() + _DEAF_S
            raise KeyboardInterrupt
        if time.monotonic() > self._deaf_until and callable(self._before):
            self._before(signum, frame)


@contextlib.contextmanager
def stoppable(message: str) -> Iterator[StopButton]:
    """A stop button; if it is pressed, a notebook shows only ``message``."""
    with StopButton() as button:
        try:
            yield button
        except KeyboardInterrupt:
            raise interruption(message) from None


def interruption(message: str, details: Sequence[str] = ()) -> KeyboardInterrupt:
    """A KeyboardInterrupt that a notebook shows as one line, followed by ``details``."""
    interrupt = KeyboardInterrupt(message)
    lines = [f"KeyboardInterrupt: {message}", *details]
    interrupt._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
    return interrupt
