"""``breakpoint()`` in a cell, on the rank: IPython's pdb, which takes its input from the notebook.

A rank that stops publishes pdb's output as data of its cell. The notebook (:mod:`.prompt`) sends
each line over ipyparallel's control channel, on which a thread of the rank listens while the main
thread runs the cell; both go through the controller, so the rank may be on any host. Meanwhile all
deadlines are suspended (:mod:`torch_mpi4py.board.standstill`).
"""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from .rank_pdb import RankPdb
from .tracebacks import CELL_FILE, BreakpointError

REQUEST = "breakpoint_request"
"""The type of the message with a line, or with a request to complete a word."""
KEY = "breakpoint"
"""The key in a cell's data for a rank's latest stop: its number, pdb's output, the place."""

_PASSED_BY = ("IPython", "ipykernel", "ipyparallel", "ipyranks", "torch_mpi4py")
_ATTENDED = "?"  # ends the name of a run
_UNATTENDED = (
    "breakpoint() cannot ask for commands: the program that executes this cell gives no input (as "
    "in CI), or the cell runs with --noblock. Remove the call, or run the cell in JupyterLab, "
    "Jupyter Notebook or a terminal"
)


def attended(run: str) -> str:
    """Return the name of a run of a cell whose notebook answers breakpoints."""
    return run + _ATTENDED


class Breakpoints(RankPdb):
    """Stops this rank at breakpoints; one object for all of its cells.

    Args:
        kernel: that runs them.
        directory: where the event boards are.
    """

    def __init__(self, kernel: Any, directory: Path) -> None:
        super().__init__(self)
        self._kernel = kernel
        self._directory = directory
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._lines: queue.SimpleQueue[str] | None = None  # while it is stopped
        self._at: FrameType | None = None
        self._place = ""
        self._left = ""  # the file of a cell, between two of its statements
        self._traces = self._interrupted = self._goes_on = False
        self.report_skipped = False
        kernel.control_handlers[REQUEST] = self._listen
        sys.breakpointhook = self._hook

    # ---- stopping --------------------------------------------------------------------------

    def _hook(self, *args: Any, **kwargs: Any) -> Any:
        """Stop at the ``breakpoint()`` that calls this, unless the user has another debugger."""
        from torch_mpi4py.log import heartbeat

        __tracebackhide__ = True
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **kwargs)
        if os.getpid() != self._pid or threading.current_thread() is not threading.main_thread():
            raise BreakpointError("breakpoint() stops a rank only in its main thread")
        if not heartbeat.current_run().endswith(_ATTENDED):
            raise BreakpointError(_UNATTENDED)
        frame = sys._getframe(1)
        self.reset()
        for one in _frames_of_cell(frame):
            one.f_trace = self.trace_dispatch
            self.botframe = one
        self.set_step()
        self._left, self._traces = "", True
        self.interaction(frame, None)
        # Last, or what is called here would be traced, too.
        sys.settrace(self.trace_dispatch if self._traces else None)

    def set_continue(self) -> None:
        """Go on to the next breakpoint."""
        super().set_continue()
        self._traces, self._goes_on = bool(self.breaks), True

    def stop_here(self, frame: FrameType) -> bool:
        """Whether to stop in a frame: not in those that run the cell, or that communicate."""
        root = frame.f_globals.get("__name__", "").partition(".")[0]
        return root not in _PASSED_BY and super().stop_here(frame)

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        """Stop no more once the user's code is left, except in the next statement of a cell.

        IPython compiles and runs each statement of a cell by itself.
        """
        if frame is not self.botframe:
            return super().dispatch_return(frame, arg)
        if frame.f_code.co_name != "<module>":
            self.end_cell()
        elif self.stopframe is not frame or self.stoplineno != -1:
            self.set_step()
        self._left = frame.f_code.co_filename
        return self.trace_dispatch

    def dispatch_call(self, frame: FrameType, arg: Any) -> Any:
        """Trace a call if it may contain a stop, and between two statements only the next."""
        if not self._left:
            return super().dispatch_call(frame, arg)
        if (frame.f_code.co_name, frame.f_code.co_filename) != ("<module>", self._left):
            return None
        if self.stopframe is self.botframe:  # it goes on to the next of the user's `b`
            self.stopframe = frame
        self.botframe, self._left = frame, ""
        return self.trace_dispatch

    def end_cell(self) -> None:
        """Disable all stops until the next ``breakpoint()``."""
        if self.breaks:
            self.clear_all_breaks()
        if sys.gettrace() == self.trace_dispatch:
            sys.settrace(None)

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        """Ask for lines at a stop.

        Raises:
            KeyboardInterrupt: if the rank is interrupted meanwhile.
        """
        self._at, self._place, self._interrupted, self._goes_on = frame, "", False, False
        try:
            super().interaction(frame, tb_or_exc)
        finally:
            self._at = None
        if self._goes_on:  # when no prompt may show it any more
            sys.stdout.write(self.taken())
        if self._interrupted:
            self._traces = False
            self.end_cell()
            raise KeyboardInterrupt

    def _cmdloop(self) -> None:
        try:
            self.cmdloop()
        except KeyboardInterrupt:  # which IPython's version would swallow
            self._interrupted = True

    def do_quit(self, arg: str) -> bool:
        """Leave the cell, as an interrupt does."""
        self._interrupted = True
        return True

    do_q = do_exit = do_quit

    # ---- the notebook ----------------------------------------------------------------------

    def readline(self) -> str:
        """Send pdb's output to the notebook, and wait for its next line."""
        from torch_mpi4py.board import standstill
        from torch_mpi4py.board.call_site import site_of
        from torch_mpi4py.log import heartbeat

        said = self.taken()
        self._place = self._place or said
        lines = self._lines = queue.SimpleQueue()
        standstill.renew(self._directory)
        heartbeat.stand_at_breakpoint(site_of(self._at))
        try:
            stop = next(self._numbers), said, self._place
            self._kernel.shell.data_pub.publish_data({KEY: stop})
            while True:
                try:
                    return lines.get(timeout=standstill.RENEW_EVERY_S) + "\n"
                except queue.Empty:
                    standstill.renew(self._directory)
        finally:
            self._lines = None
            heartbeat.go_on()

    def _listen(self, stream: Any, ident: Any, parent: dict) -> None:
        """Receive what the notebook sends; a separate thread calls this."""
        content, lines = parent["content"], self._lines
        reply: dict[str, Any] = {"status": "ok", "words": []}
        if "line" in content and lines is not None:
            lines.put(content["line"])
        elif "complete" in content and lines is not None:
            reply["words"] = self.completions(*content["complete"])
        self._kernel.session.send(
            stream, REQUEST.replace("request", "reply"), reply, parent=parent, ident=ident
        )


def _frames_of_cell(frame: FrameType) -> list[FrameType]:
    """The frames from ``frame`` outwards to the outermost of a cell; else only ``frame``."""
    found, last = [], 1
    one: FrameType | None = frame
    while one is not None:
        found.append(one)
        if CELL_FILE.search(one.f_code.co_filename):
            last = len(found)
        one = one.f_back
    return found[:last]
