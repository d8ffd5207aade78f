"""What an engine forks does not hide the engine's end, nor outlive it.

The workers of a DataLoader, or whatever multiprocessing forks, begin with copies of the engine's
connections and of its handlers of signals. They let go of those, and end with their parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

from .tether import tie_to_parent

__all__ = ["end_with_the_cell", "look_after_children"]


def look_after_children(let_go: Callable[[], None], stop_handler: Callable) -> None:
    """Prepare this process for what it will fork.

    Args:
        let_go: called in every child, closes what is the parent's alone.
        stop_handler: of SIGTERM here; a child ends by that signal.
    """
    forking = threading.local()

    def before() -> None:
        # Our handler must not take a signal that is meant to end the child.
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        forking.pid = os.getpid()
        forking.in_main_thread = threading.current_thread() is threading.main_thread()

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def in_child() -> None:
        let_go()
        if signal.getsignal(signal.SIGTERM) == stop_handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)
        # Linux takes the end of the thread that forked for the end of the parent. What another
        # thread has forked the keeper ends when it stops the cluster.
        if forking.in_main_thread:
            tie_to_parent(signal.SIGKILL, forking.pid)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def end_with_the_cell(kernel) -> None:
    """End a child that ``os.fork()`` has made in a cell where the cell ends.

    IPython catches even ``SystemExit``, so the child would go on as a second engine.
    """
    execute, engine = kernel.do_execute, os.getpid()

    async def do_execute(*args, **kwargs):
        reply = {"status": "error"}
        try:
            reply = await execute(*args, **kwargs)
            return reply
        finally:
            if os.getpid() != engine:
                for stream in (sys.__stdout__, sys.__stderr__):
                    stream.flush()
                os._exit(_status(reply))

    kernel.do_execute = do_execute


def _status(reply: dict) -> int:
    if reply["status"] == "ok":
        return 0
    if reply.get("ename") == "SystemExit":
        with contextlib.suppress(ValueError):
            return int(reply["evalue"] or 0) & 0xFF
    return 1
