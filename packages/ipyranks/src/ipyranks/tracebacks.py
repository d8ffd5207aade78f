"""Shortens the traceback of an error on a rank, so that it appears at once and in few lines.

IPython shows the source around every frame. For the frames inside torch this takes a second, and
for the thousand calls of an endless recursion a minute if ranks share cores.
"""

from __future__ import annotations

import re
import traceback
from types import TracebackType
from typing import Any

from IPython.core.error import StdinNotImplementedError

CELL_FILE = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")
"""The suffix of the file name of a cell's code."""


class BreakpointError(RuntimeError):
    """A breakpoint at which a rank cannot stop, because no prompt could resume it."""


_NEED_PROMPT = (BreakpointError, StdinNotImplementedError)
_ENDS = 5  # frames that are shown at each end of a long traceback
_MOST_FRAMES = 40


def shorten(tracebacks: Any) -> None:
    """Have IPython's ``tracebacks`` show only the cell's line for an interrupt, or what needs a
    prompt and has none, and only both ends of a long stack.
    """
    usual = tracebacks.structured_traceback

    def structured_traceback(
        etype: Any, evalue: Any, etb: TracebackType | None = None, *args: Any, **kwargs: Any
    ) -> list[str]:
        if isinstance(etype, type) and issubclass(etype, (KeyboardInterrupt, *_NEED_PROMPT)):
            frames = traceback.extract_tb(evalue.__traceback__)
            mine = [frame for frame in frames if CELL_FILE.search(frame.filename)]
            where = f" in line {mine[-1].lineno} of its cell: {mine[-1].line}" if mine else ""
            message = f"\n\n{evalue}" if issubclass(etype, _NEED_PROMPT) else ""
            return [f"{etype.__name__}{where}{message}"]
        etb, left_out = without_the_middle(etb)
        lines = usual(etype, evalue, etb, *args, **kwargs)
        if left_out:
            lines.insert(-1, f"({left_out} calls in the middle are not shown.)\n")
        return lines

    tracebacks.structured_traceback = structured_traceback


def without_the_middle(first: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Return a traceback, shortened to its two ends if long, and the number of frames left out."""
    frames = []
    one = first
    while one is not None:
        frames.append(one)
        one = one.tb_next
    if len(frames) <= _MOST_FRAMES:
        return first, 0
    short = None
    for one in reversed(frames[:_ENDS] + frames[-_ENDS:]):
        short = TracebackType(short, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return short, len(frames) - 2 * _ENDS
