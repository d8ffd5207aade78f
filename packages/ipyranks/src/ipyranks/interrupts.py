"""Ends a cell that catches its interrupt, as an endless loop with a bare ``except:`` does.

The first interrupt of a cell raises KeyboardInterrupt, as in any program. A second one means that
the cell has caught it, so KeyboardInterrupt is raised in the program's next line, too: that is the
first line of the handler, and an exception there leaves the ``try``. If a caller catches this one,
a third is raised in the line after the caller's handler, and so on. While the cell still handles
the first one, for instance to save its state, others do nothing.

An interrupt that comes just before or after a cell finds the kernel's own code. KeyboardInterrupt
would end the request there without an answer, or the whole rank. So it is raised in the first line
of the cell, if one follows. One that comes later, for instance while IPython shows the error of the
cell, does nothing: to trace that would take up to eight times as long.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any


class Interrupts:
    """Handles the interrupts of a rank, in cells and in functions that the notebook calls.

    Args:
        kernel: that of the rank.
    """

    def __init__(self, kernel: Any) -> None:
        from torch_mpi4py.log import heartbeat

        self._traces = False
        self._is_over = False  # the program of the message
        self._message: object = None  # that is being handled
        heartbeat.at_each_beat.append(self._look_at_handler)
        self._before, self._after = kernel.pre_handler_hook, kernel.post_handler_hook
        kernel.pre_handler_hook, kernel.post_handler_hook = self._begin, self._end
        self._show_error = kernel.shell.showtraceback
        kernel.shell.showtraceback = self._end_with_error
        kernel.shell.events.register("post_execute", self._end_program)

    def _begin(self) -> None:
        self._before()
        signal.signal(signal.SIGINT, self._interrupt)
        self._is_over = False
        self._message = object()

    def _end_with_error(self, *args: Any, **kwargs: Any) -> None:
        self._end_program()
        self._show_error(*args, **kwargs)

    def _end_program(self) -> None:
        self._is_over = True
        if self._traces:
            sys.setprofile(None)
            sys.settrace(None)
            self._traces = False

    def _end(self) -> None:
        self._message = None
        self._end_program()
        self._after()

    def _look_at_handler(self) -> None:
        """Have the notebook know if the program has replaced the handler, and so can't be ended."""
        from torch_mpi4py.log import heartbeat

        message = self._message
        replaced = signal.getsignal(signal.SIGINT) != self._interrupt
        if replaced and message is not None and message is self._message:
            heartbeat.ignores_interrupts()

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        from torch_mpi4py.log import heartbeat

        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            return
        # By a debugger or a profiler.
        traced_by_others = (sys.gettrace() or sys.getprofile()) is not None and not self._traces
        count = heartbeat.count_interrupt()
        if not (heartbeat.is_awaiting() or _is_in_the_program(frame)):
            if not (traced_by_others or self._is_over):
                self._raise_in_the_first_line()
            return
        if count > 1 and not traced_by_others:
            self._raise_in_the_next_lines(frame)
        raise KeyboardInterrupt

    def _raise_in_the_first_line(self) -> None:
        """Raise KeyboardInterrupt where the program begins."""

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            if event == "line":
                raise KeyboardInterrupt
            return trace

        self._traces = True
        sys.settrace(lambda frame, *_: trace if _begins_the_program(frame) else None)

    def _raise_in_the_next_lines(self, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt in the next line of the program, and again where that is caught.

        Python stops tracing when a trace function raises, but continues to profile: that starts
        tracing again at the next call or return.
        """
        from torch_mpi4py.board import call_site

        raised, of_the_program = False, set()

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal raised
            handles_this = raised and isinstance(sys.exc_info()[1], KeyboardInterrupt)
            if event == "line" and not handles_this:
                raised = True
                raise KeyboardInterrupt
            return trace

        def start_tracing(frame: FrameType, *_: object) -> None:
            if frame in of_the_program:
                frame.f_trace = trace
            sys.settrace(lambda *_: None)

        while frame is not None:
            if call_site.is_of_the_program(frame):
                of_the_program.add(frame)
                frame.f_trace = trace
            frame = frame.f_back
        self._traces = True
        sys.setprofile(start_tracing)


def _is_in_the_program(frame: FrameType | None) -> bool:
    while frame is not None and not _begins_the_program(frame):
        frame = frame.f_back
    return frame is not None


def _begins_the_program(frame: FrameType) -> bool:
    """Whether a frame is of a cell, or of the code with which ipyparallel calls a function."""
    from torch_mpi4py.board import call_site

    if frame.f_code.co_name != "<module>" or not call_site.is_of_the_program(frame):
        return False
    # Libraries run code from strings, too, as for a namedtuple.
    caller = frame.f_back
    from_ipyparallel = caller is not None and caller.f_code.co_name == "do_apply"
    return frame.f_code.co_filename != "<string>" or from_ipyparallel
