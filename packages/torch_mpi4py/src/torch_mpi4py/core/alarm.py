"""A limit for a call into MPI that keeps the interpreter's lock, in which no Python code can run.

``MPI_Init`` and ``MPI_Finalize`` wait for other ranks in C. No thread could end such a call, so a
timer of the system ends the process. Its signal calls C's ``_exit``, with the signal's number as
the status: a launcher that tolerates deaths would call a job a success that signals have ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator


def within(seconds: float, why: str, function: Callable[[], None]) -> None:
    """Call ``function``; after ``seconds`` in it, write a traceback with ``why``, and exit.

    All that can be written then is a traceback, so the function that waits is named ``why``.

    Args:
        function: a plain function without arguments and without closure.
    """
    named = types.FunctionType(function.__code__.replace(co_name=why), function.__globals__)
    with _timer(seconds):
        named()


@contextlib.contextmanager
def _timer(seconds: float) -> Iterator[None]:
    """Borrow the timer of the process, and restore the program's own afterwards."""
    on_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGALRM)
    if before is not signal.SIG_DFL and not (on_main and before is not None):
        yield  # its handler is the program's, and could not be restored from this thread
        return
    c = ctypes.CDLL(None)
    c.signal(signal.SIGALRM, ctypes.cast(c._exit, ctypes.c_void_p))
    began = time.monotonic()
    faulthandler.register(signal.SIGALRM, file=2, chain=True)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)
        if on_main:
            signal.signal(signal.SIGALRM, before)
        else:
            c.signal(signal.SIGALRM, None)  # the default
        if left:
            due = max(left - (time.monotonic() - began), 1e-6)
            signal.setitimer(signal.ITIMER_REAL, due, interval)
