"""A rank exits cleanly, however it ends, and takes no other rank down with it.

Threads are joined before Python's exit, or the interpreter aborts. A rank that ends by an
uncaught exception frees the others, which would otherwise wait for it until their deadline. Where a
group survives failures it dies instead, so the others see its end as any other death. A rank that
ends in another way tells the others (:mod:`.ends`), and those that wait for an operation it never
made are freed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import termios
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

from ..core import alarm, links, runtime
from ..core.errors import CommunicationError
from ..core.runtime import MPI, remove_own_shared_memory
from ..faults import comm_reaper, deadlines
from ..faults.deaths import failed_ranks, has_ulfm
from ..log import heartbeat
from ..log.live_groups import live_groups
from ..meeting import message_progress
from . import ends

_READING_SECONDS = 10.0  # milliseconds, unless the launcher stalls
_THREADS_SECONDS = 5.0  # a freed thread is out of its call within 0.1 s
_LINK_SECONDS = 5.0
_FAREWELL_SECONDS = 5.0
# MPI_Finalize takes milliseconds, once all ranks have reached their end.
_FINALIZE_SECONDS = 60.0
_PACKAGE = str(Path(__file__).resolve().parents[1])
_launcher = os.getppid()
_rank_pid = 0  # until MPI has started
_must_abort = False
_must_die = False


def install() -> None:
    """Arrange for a clean exit of this process; once is enough.

    :mod:`~torch_mpi4py.registration` has given the call of :func:`leave` to ``atexit``.
    """
    global _rank_pid
    if _rank_pid:
        return
    _rank_pid = os.getpid()
    heartbeat.at_each_beat.append(ends.look)
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != _rank_pid:  # a child that the program has forked is no rank
            previous(kind, error, traceback)
            return
        heartbeat.ended(error)
        previous(kind, error, traceback)
        _free_the_others()

    sys.excepthook = excepthook


def _free_the_others() -> None:
    """After an uncaught exception, end what other ranks may be waiting for."""
    global _must_abort, _must_die
    # Nothing but an abort frees ranks that are stuck in an MPI without fault tolerance. It
    # has to wait: PyTorch calls this hook with stderr held back, to put "[rank1]:" before it.
    _must_abort = not has_ulfm() and bool(live_groups) and MPI.COMM_WORLD.Get_size() > 1
    _must_die = has_ulfm() and any(group.survives_failures for group in live_groups)
    for group in list(live_groups):
        if not group.survives_failures:
            group.abort()


def leave() -> None:
    """Leave MPI at the end of this process, if it is a rank; called once."""
    if os.getpid() != _rank_pid:  # MPI has not started, or a rank has forked this process
        return
    heartbeat.ended()
    if _must_abort:
        _let_the_launcher_read()
        MPI.COMM_WORLD.Abort(1)
    if _must_die:
        _die()
    ends.tell(heartbeat.outcome())
    for group in sorted(live_groups, key=lambda group: group.group_name, reverse=True):
        group.shutdown()
    message_progress.end()
    if deadlines.has_abandoned_a_thread():
        # A thread of this process will never come out of MPI, so MPI_Finalize would not
        # return either. An error was raised when that happened.
        _die()
    if MPI.Is_finalized():
        return
    _shorten_errors_of_threads()  # before another rank may end their calls
    if _all_leave():
        if _threads_leave():
            _leave_mpi()
        remove_own_shared_memory()


def _leave_mpi() -> None:
    for end in links.ends:
        end(_LINK_SECONDS)
    comm_reaper.end(_FAREWELL_SECONDS)
    why = (
        f"MPI_Finalize has not returned within {_FINALIZE_SECONDS:g} s, although all ranks "
        "have finished"
    )
    if runtime.news_comm is None:
        _finalize()
    else:
        alarm.within(_FINALIZE_SECONDS, why, _finalize)


def _threads_leave() -> bool:
    """End the calls in which threads of the program still wait; return whether they have left them.

    All ranks have come to their ends, so nothing can complete these calls. A daemon thread would
    call MPI after MPI_Finalize, at which MPI ends the job.
    """
    if not _threads_in_calls():
        return True
    until = time.monotonic() + _THREADS_SECONDS
    while (names := _threads_in_calls()) and time.monotonic() < until:
        for operation in deadlines.under_way():
            if operation.reason is None:
                deadlines.end(operation, "the program has ended")
        time.sleep(1e-3)
    if not names and not deadlines.has_abandoned_a_thread():
        return True
    who = ", ".join(names) or "a thread"
    _say(
        f"this rank ends without MPI_Finalize, because {who} is still in a call; let the "
        "program's threads end before the program does"
    )
    return False


def _shorten_errors_of_threads() -> None:
    """Have one line said about a call that ends because the program has ended."""
    previous = threading.excepthook

    def excepthook(failed: threading.ExceptHookArgs) -> None:
        if not isinstance(failed.exc_value, CommunicationError):
            previous(failed)
            return
        name = failed.thread.name if failed.thread else "a thread"
        _say(
            f"when the program ended, {name} was still in a call, which has been ended: "
            + str(failed.exc_value).partition(": ")[0]
        )

    threading.excepthook = excepthook


def _say(what: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # as in _flush()
        sys.stderr.write(f"torch_mpi4py: {what}\n")
        sys.stderr.flush()


def _threads_in_calls() -> list[str]:
    """Return the names of the program's other threads that are in a call of this package."""
    names = []
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.name.startswith("torch_mpi4py "):
            continue
        frames = list(heartbeat.frames_uncollected(thread.ident or 0))
        if any(frame and frame.f_code.co_filename.startswith(_PACKAGE) for frame in frames):
            names.append(thread.name)
    return names


def _finalize() -> None:
    MPI.Finalize()


def _all_leave() -> bool:
    """Wait until every living rank has come to its end; return False if one has died.

    Open MPI 5.0.11's MPI_Finalize waits at a fence of all ranks, and sometimes (3 of 8 watched
    runs) for a dead one, indefinitely. Without it the process ends as any other does. A rank learns
    of a death some milliseconds late, maybe when it has nothing left to do: so asking once, before
    MPI_Finalize, is not enough (2 of 40 runs then hung in it). The living wait for each other,
    because mpiexec ends all when one gives a status.
    """
    _flush()
    ends.tell(heartbeat.outcome())  # of all groups, which begin nothing more
    ends.await_all(_is_orphan)
    return ends.all_have_left() and not (failed_ranks(MPI.COMM_WORLD) or _is_orphan())


def _is_orphan() -> bool:
    """Return whether the launcher's process here has ended, so that no process reports deaths."""
    return os.getppid() != _launcher


def _die() -> None:
    """End at once, in a way that Open MPI reports to the other ranks.

    Open MPI 5.0.11 reports a rank that was ended by a signal, but not one that exited with a status
    and without MPI_Finalize: the others would wait for it indefinitely.
    """
    _flush()
    if has_ulfm():
        os.kill(os.getpid(), signal.SIGKILL)
    _let_the_launcher_read()
    os._exit(1)


def _let_the_launcher_read() -> None:
    """Wait until the launcher has read this rank's output, at most 10 seconds.

    MPICH's launcher kills a job that aborts without emptying its pipes first, and the
    traceback that says why would be lost.
    """
    deadline = time.monotonic() + _READING_SECONDS
    _flush()
    for stream in (sys.stdout, sys.stderr):
        while _unread(stream) and time.monotonic() < deadline:
            time.sleep(0.001)


def _flush() -> None:
    """Flush the output, unless the program has closed or removed the stream."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _unread(stream: TextIO | None) -> int:
    """Return the number of bytes in the pipe behind ``stream``, 0 where there is none."""
    answer = bytearray(4)
    try:
        fcntl.ioctl(stream.fileno(), termios.FIONREAD, answer)  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):  # a file, closed, or a system that does not say
        return 0
    return int.from_bytes(answer, sys.byteorder)
