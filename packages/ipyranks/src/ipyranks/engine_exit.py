"""Controls how an engine may end, and the processes that it has forked.

An engine that ends unasked dies by a signal: Open MPI reports a death by a signal to the other
ranks, but not an exit with a nonzero status, after which they would wait indefinitely. ``exit()``
must not end a rank from a cell either, because its variables would be lost.

The workers of a DataLoader, and other forks of multiprocessing, begin with copies of the engine's
connections and signal handlers, and so would hide the engine's end. They drop those copies, and end
with their parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from IPython.core.autocall import IPyAutocall

_PR_SET_PDEATHSIG = 1

_INSTEAD = (
    "would end this rank, not the cell, and lose its variables. To end a cell early, raise an "
    "error; in a cell without %%px, cluster.stop() ends all ranks and cluster.restart() starts "
    "fresh ones."
)


@contextlib.contextmanager
def as_a_death(told_to_stop: Callable[[], bool]) -> Iterator[None]:
    """Turn every end of this process, except by a signal, into one by SIGKILL; forks excluded.

    Args:
        told_to_stop: whether the cluster stops; then the end is as usual.
    """
    engine, usual = os.getpid(), os._exit

    def die(status: int) -> None:
        if os.getpid() == engine:
            try:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            finally:
                os.kill(engine, signal.SIGKILL)
        usual(status)

    os._exit = die  # type: ignore[assignment]
    try:
        yield
    except BaseException:
        traceback.print_exc()
        die(1)
    if not told_to_stop():
        die(0)


def end_with_parent(parent: int) -> None:
    """Have Linux end this process when its parent ends, even if it is stuck in C code.

    Linux does so when the *thread* that forked it ends, not only with its whole process.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal.SIGKILL)


class NoExit(IPyAutocall):
    """The ``exit`` and ``quit`` of a rank: IPython's would end it silently."""

    rewrite = False

    def __call__(self, *_: object) -> None:
        raise RuntimeError(f"exit() {_INSTEAD}")


def explain_exits(shell: Any) -> None:
    """Replace ``exit`` and ``quit`` in cells on a rank, and show the line of ``sys.exit()``."""
    names = {"exit": NoExit(), "quit": NoExit()}
    shell.user_ns.update(names)
    shell.user_ns_hidden.update(names)
    # IPython says so after sys.exit(), which it does not obey.
    warnings.filterwarnings("ignore", message="To exit: use 'exit', 'quit'")
    show = shell.showtraceback

    def showtraceback(*args: Any, exception_only: bool = False, **kwargs: Any) -> None:
        show(*args, **kwargs)  # IPython wants only the message of a SystemExit

    shell.showtraceback = showtraceback


# ---- forked children -------------------------------------------------------------------------


def look_after_children(let_go: Callable[[], None], stop_handler: Callable) -> None:
    """Prepare this process for its future forks.

    Args:
        let_go: called in every child, closes the parent's own connections.
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
        # Linux treats the end of the forking thread as the end of the parent. The keeper ends the
        # forks of other threads when it stops the cluster.
        if forking.in_main_thread:
            end_with_parent(forking.pid)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def end_forked_child(engine: int, reply: dict) -> None:
    """At the end of a cell, end this process if ``os.fork()`` made it in the cell.

    IPython catches even ``SystemExit``, so the child would go on as a second engine.

    Args:
        engine: process id of the engine.
        reply: how the cell ended.
    """
    if os.getpid() == engine:
        return
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(_status(reply))


def _status(reply: dict) -> int:
    if reply["status"] == "ok":
        return 0
    if reply.get("ename") == "SystemExit":
        with contextlib.suppress(ValueError):
            return int(reply["evalue"] or 0) & 0xFF
    return 1
