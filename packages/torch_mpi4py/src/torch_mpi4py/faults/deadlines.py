"""Every blocking MPI call is watched by a thread that can free it.

MPI calls block inside C with the GIL released, where neither a deadline nor Ctrl-C reaches
them. Under Open MPI with fault tolerance (ULFM) *revoking* a communicator frees every rank
that is stuck in it. So a call that may block registers itself here, runs on the caller's own
thread at full speed, and a watcher thread revokes its communicator when the deadline passes
or the user interrupts. Other MPIs cannot be freed this way: there the call runs on a helper
thread, which is abandoned when the deadline passes.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

from ..board import standstill
from ..core import advice, crowding
from ..core.errors import CommunicationError, DeadlineError, RevokedError
from ..core.runtime import MPI
from ..log import heartbeat, peer_boards, shared_report
from .deaths import has_ulfm, is_broken, is_revoked
from .mpi_errors import freed, translate

_POLL_SECONDS = 0.1
_LONGEST_SECONDS = 100 * 365.25 * 86400
# After an interrupt, code that is not stuck in MPI gets this long to stop by itself.
_INTERRUPT_GRACE_SECONDS = 0.5
_MARKED_WITHIN_SECONDS = 0.3
# A freed call returns within milliseconds; one that has not by then never will. Looks are counted
# rather than seconds, because seconds also pass while the whole machine stands still.
_STUCK_POLLS = 20


def bounded(seconds: float) -> float:
    """Return ``seconds``, or a hundred years if that is less: Python's locks know no 300."""
    return min(seconds, _LONGEST_SECONDS)


_stood_still = 0.0


def clock() -> float:
    """Return seconds by a clock that stops while a user inspects a rank's breakpoint."""
    return time.monotonic() - _stood_still


class Operation:
    """One blocking MPI call.

    The thread that makes the call writes ``started`` and then ``in_mpi``, so that the watcher,
    which looks at ``in_mpi`` first, finds the rest. Only the watcher and :func:`expire` write
    ``reason`` and ``polls_left``. They write ``report`` as well, or :meth:`freed_error` if they
    have not.

    Attributes:
        comm: the communicator to revoke if it must be freed.
        what: name of the operation, for error messages.
        seconds: time allowed.
        stood_still: time that does not count: see :mod:`~torch_mpi4py.board.standstill`.
        started: when the call was made, in seconds of ``time.perf_counter()``.
        in_mpi: whether the call is under way.
        outside_mpi: whether it waits for other ranks outside MPI, and so ends by itself once it
            has a reason: see :meth:`end_if_given_up`.
        withdraw: called before it is given up, if it is set. Tells the ranks that have yet to come
            that this one waits no longer. Returns False if all have come, so that it goes on.
        reason: why the watcher freed it, or None while it has not.
        report: the state of every rank when this call was given up.
        polls_left: how often the watcher looks again before it calls :meth:`give_up`; negative
            afterwards.
        without_hope: why it can't end, if that is the reason.
        channel: the channel that runs it, if it is a collective of a group.
        on_callers_thread: whether a thread of the program waits while it is run.
    """

    channel: Any = None
    on_callers_thread = False
    in_mpi = False
    outside_mpi = False
    withdraw: Callable[[], bool] | None = None
    reason: str | None = None
    report = ""
    polls_left = 0
    without_hope = ""
    stood_still = 0.0

    def __init__(self, comm: MPI.Comm, what: str, seconds: float) -> None:
        self.comm = comm
        self.what = what
        self.seconds = seconds
        self.started = time.perf_counter()
        self.in_mpi = True

    def is_late(self, now: float) -> bool:
        """Return whether its time is over."""
        return now > self.started + self.seconds + self.stood_still

    def give_up(self) -> None:
        """Abandon the call, which has not come back although it was freed."""

    def take_report(self) -> None:
        """Record what every rank is doing, before any is freed."""
        self.report = shared_report.reach(self.comm, since=self.started)

    def end_if_given_up(self) -> None:
        """Raise its error if it was given up while it waits outside MPI.

        Where the MPI can revoke, it waits until its communicator is revoked.
        """
        if self.reason and (not has_ulfm() or is_revoked(self.comm)):
            raise self.freed_error()

    def freed_error(self) -> CommunicationError:
        """Return the error to raise after the watcher freed this call."""
        if not self.report:  # another rank has freed this one before it took its own: see expire()
            self.take_report()
        if self.reason == "interrupt":
            return RevokedError(
                f"{self.what}: interrupted by the user; the other ranks were freed. "
                f"{advice.START_AGAIN}{shared_report.ending(self.report)}"
            )
        if self.reason == "end":
            return RevokedError(
                f"{self.what}: {self.without_hope}.{shared_report.ending(self.report)}"
            )
        return DeadlineError(
            f"{self.what}: Timed out after {round(self.seconds, 2):g} s; "
            f"{'another rank did not do its part' if self.comm.Get_size() > 1 else 'stuck'}. "
            f"{advice.START_AGAIN}{shared_report.ending(self.report)}"
        )


class Runner:
    """An object that makes MPI calls one after another, as a channel does.

    From :func:`watch_over` to :func:`forget`, the watcher looks at the call that is running, so
    each call only has to set ``running``, on the thread that runs it.
    """

    running: Operation | None = None


_runners: set[Runner] = set()
_single: set[Operation] = set()  # those of no runner
_start_lock = threading.Lock()
_watcher: threading.Thread | None = None
_wakeup_read = -1
_previous_wakeup = -1


def watch_over(runner: Runner) -> None:
    """Have the watcher look at the calls of ``runner``."""
    watch()
    _runners.add(runner)


def forget(runner: Runner) -> None:
    """Remove ``runner``, which will run nothing more, from the watcher's list."""
    _runners.discard(runner)


def runners() -> list[Runner]:
    """Return all runners at whose calls the watcher looks."""
    return list(_runners)  # copied in one go: other threads add and take away


def under_way() -> Iterator[Operation]:
    """Yield the calls that this process is in, except those that end in the meantime."""
    running = [runner.running for runner in runners()]
    for one in (*list(_single), *running):
        if one is not None and one.in_mpi:
            yield one


def revoke(comm: MPI.Comm) -> bool:
    """Free every rank stuck in ``comm``, if this MPI can; return whether it can.

    The state of every rank is recorded first: see :mod:`torch_mpi4py.log.shared_report`.
    """
    if comm != MPI.COMM_NULL and not MPI.Is_finalized():
        shared_report.reach(comm)
    if not has_ulfm():
        return False
    try:
        comm.Revoke()
    except MPI.Exception:
        # Already revoked, freed, or its ranks are dead: no rank is left to free.
        return comm != MPI.COMM_NULL
    return True


def expire(spared: MPI.Comm) -> None:
    """End this process's calls on all comms but ``spared`` as if their time were over.

    Ranks that wait for each other do so at the same time. None is freed before all have had a
    moment to mark their calls: a send that is swept away might look like a success. Where the MPI
    can't free ranks, only calls that wait outside it end.
    """
    given_up = [
        one
        for one in under_way()
        if one.reason is None and one.comm != spared and (has_ulfm() or one.outside_mpi)
    ]
    for operation in given_up:
        operation.seconds = time.perf_counter() - operation.started
        operation.polls_left = _STUCK_POLLS
        if has_ulfm():  # elsewhere they end as soon as they have a reason
            operation.reason = "deadline"
    time.sleep(_MARKED_WITHIN_SECONDS)
    for operation in given_up:
        operation.take_report()
        operation.reason = operation.reason or "deadline"
        revoke(operation.comm)


def call(
    comm: MPI.Comm, what: str, seconds: float, function: Callable[..., Any], *args: Any
) -> Any:
    """Return ``function(*args)``, a blocking MPI call on ``comm``, within ``seconds``.

    Raises:
        DeadlineError: if it did not finish in time (its communicator is then unusable).
        RevokedError: if another rank gave up.
        RankFailedError: if a rank died.
    """
    __tracebackhide__ = True
    return carry_out(Operation(comm, what, seconds), function, *args)


def carry_out(operation: Operation, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, as :func:`call` does, for an operation that is begun already."""
    __tracebackhide__ = True
    comm, what = operation.comm, operation.what
    if not has_ulfm() and comm.Get_size() > 1:
        return carry_out_apart(operation, function, *args)
    if _watcher is None:
        watch()
    operation.in_mpi = True
    _single.add(operation)
    try:
        result = function(*args)
    except MPI.Exception as error:
        if operation.reason:
            raise operation.freed_error() from None
        raise translate(error, what, comm) from error
    except CommunicationError:
        raise
    except Exception as error:  # as of an object whose bytes never came: see confirm_collective()
        if operation.reason:
            raise operation.freed_error() from error
        if is_broken(comm):
            raise freed(what, comm) from error
        raise
    finally:
        _single.discard(operation)
        operation.in_mpi = False
    if operation.reason:
        raise operation.freed_error()
    return result


@contextlib.contextmanager
def watched(operation: Operation) -> Iterator[None]:
    """Have the watcher look at ``operation`` in this block, in which it waits outside MPI."""
    watch()
    try:
        operation.in_mpi = True
        _single.add(operation)
        yield
    finally:
        _single.discard(operation)
        operation.in_mpi = False


def confirm_sent(comm: MPI.Comm, what: str) -> None:
    """Check that a send which MPI calls complete was not just swept away by a revocation.

    When a communicator is revoked, Open MPI 5.0.11 ends synchronous and long sends that have not
    been received, and sometimes (17 of 120 in a trial) reports them as successful. Where it does so
    before the revocation itself has come, which takes microseconds, the next call fails instead.

    Raises:
        RevokedError: if ``comm`` has been revoked, so that the message may never have arrived.
    """
    if is_revoked(comm):
        raise freed(what, comm)


def confirm_collective(comm: MPI.Comm, what: str) -> None:
    """Check that a collective which MPI calls complete was not cut short by a death.

    The usual algorithm of Open MPI 5.0.11 for a short Allgatherv, which mpi4py's allgather and
    allreduce of objects call, too, is a gather and a broadcast, and the result of the broadcast is
    never checked: after a death or a revocation it returns without an error, and leaves the buffer
    as it was. Our ranks use another algorithm (``launch.SEES_DEATHS``), but they may not if MPI was
    initialised before this package, or with the user's own settings.

    Raises:
        RankFailedError: if a rank of ``comm`` is known to have died.
        RevokedError: if ``comm`` has been revoked.
    """
    if is_broken(comm):
        raise freed(what, comm)


def on_thread(name: str, function: Callable[..., Any], *args: Any) -> Future:
    """Run ``function(*args)`` on a thread of its own, which may be abandoned in MPI."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=f"torch_mpi4py {name}", daemon=True).start()
    return future


def in_time(what: str, seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, a call of MPI that nothing can end, within ``seconds``.

    Raises:
        DeadlineError: if it did not finish in time. Its thread stays behind in MPI.
    """
    future = on_thread(what, function, *args)
    if not wait([future], bounded(seconds)).done:
        leave_mpi_unfinalized()
        raise DeadlineError(
            f"{what}: Timed out: not finished within {seconds:g} s, and nothing can end it. "
            f"{advice.RESTART}"
        )
    return future.result()


def carry_out_apart(operation: Operation, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, as :func:`carry_out` does, for a call that no revocation ends.

    It runs on a thread of its own, which is left behind in MPI if the operation is given up.
    """
    __tracebackhide__ = True
    watch()
    operation.in_mpi = True
    _single.add(operation)
    future = on_thread(operation.what, function, *args)
    try:
        while not (wait([future], _POLL_SECONDS).done or operation.reason):
            pass
    finally:  # also after the user's interrupt
        _single.discard(operation)
        operation.in_mpi = False
        if not future.done():
            leave_mpi_unfinalized()
    if not future.done():
        raise operation.freed_error()
    try:
        return future.result()
    except MPI.Exception as error:
        raise translate(error, operation.what, operation.comm) from error


_stuck = False


def leave_mpi_unfinalized() -> None:
    """Remember that a thread is stuck in MPI for good, so that exit must not wait for it."""
    global _stuck
    _stuck = True


def has_abandoned_a_thread() -> bool:
    """Return whether a thread of this process was abandoned inside MPI."""
    return _stuck


def watch() -> None:
    """Start the watcher if it does not run yet.

    Call it on the main thread first: only there can it learn of interrupts.
    """
    global _watcher
    with _start_lock:
        if _watcher is not None:
            return
        _listen_for_interrupts()
        _watcher = threading.Thread(target=_watch, name="torch_mpi4py watcher", daemon=True)
        _watcher.start()


def _listen_for_interrupts() -> None:
    """Have the C signal handler write to a pipe, which the watcher can read at any time.

    A Python signal handler only runs when the main thread is back in Python, which a thread
    stuck in MPI never is.
    """
    global _wakeup_read, _previous_wakeup
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may install it; deadlines work without
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    _wakeup_read = read
    _previous_wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    # The signals of a forked child are its own: it would write them into this pipe as well.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


def _watch() -> None:
    interrupted_at: float | None = None
    now = time.perf_counter()
    while True:
        interrupted_at = _await_next_look() or interrupted_at
        _try(heartbeat.note)
        _try(crowding.look)
        before, now = now, time.perf_counter()
        _stand_still(now - before)
        _end_late_operations(now)
        if interrupted_at is not None and now > interrupted_at + _INTERRUPT_GRACE_SECONDS:
            _end_interrupted_operations(interrupted_at)
            interrupted_at = None


# Separate functions: a local variable of the watcher would keep the last operation's tensors.


def _end_late_operations(now: float) -> None:
    for operation in under_way():
        if operation.reason is None and operation.is_late(now):
            _expire(operation, "deadline")
        elif operation.reason is not None and not operation.outside_mpi:
            operation.polls_left -= 1
            if operation.polls_left == -1:
                _try(operation.give_up)


def _end_interrupted_operations(interrupted_at: float) -> None:
    for operation in under_way():
        if operation.reason is None and operation.started < interrupted_at:
            _expire(operation, "interrupt")


def _stand_still(seconds: float) -> None:
    """Discount the time since the last look, if deadlines are suspended."""
    global _stood_still
    if peer_boards.directory is None or not standstill.is_on(peer_boards.directory):
        return
    _stood_still += seconds
    for operation in under_way():
        operation.stood_still += seconds


def _await_next_look() -> float | None:
    """Wait a tenth of a second; return when the user interrupted in it, if at all.

    Other signals do not shorten it: a profiler's timer may send hundreds a second, and looks are
    counted.
    """
    interrupted_at = None
    due = time.perf_counter() + _POLL_SECONDS
    if _wakeup_read < 0:
        time.sleep(_POLL_SECONDS)
        return None
    signals = select.poll()  # select() takes no descriptor above 1023
    signals.register(_wakeup_read, select.POLLIN)
    while (left := due - time.perf_counter()) > 0:
        if signals.poll(math.ceil(1000 * left)) and _interrupt_arrived():
            interrupted_at = time.perf_counter()
    return interrupted_at


def _interrupt_arrived() -> bool:
    signals = os.read(_wakeup_read, 4096)
    if _previous_wakeup >= 0:
        with contextlib.suppress(OSError):  # the reader has closed it, or is behind
            os.write(_previous_wakeup, signals)
    return signal.SIGINT in signals and _interrupts_end_calls()


def _interrupts_end_calls() -> bool:
    """Return whether Ctrl-C should end the program's current call.

    The program's own handler, which may only set a flag, can't run while the main thread is in MPI.
    In a notebook an interrupt always ends the cell.
    """
    return heartbeat.has_cells() or signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _try(function: Callable[..., None], *args: Any) -> None:
    """Call ``function``, and go on if it fails: only this thread can free the rank."""
    try:
        function(*args)
    except Exception:
        traceback.print_exc()


def end(operation: Operation, why: str) -> None:
    """End a call that can never complete, as if its time were over; the watcher calls this."""
    operation.without_hope = why
    _expire(operation, "end")


def _expire(operation: Operation, reason: str) -> None:
    operation.take_report()
    if not operation.in_mpi:  # it has ended meanwhile: a report may take seconds
        return
    withdraw = operation.withdraw  # read once: the thread that waits changes it
    if withdraw is not None and not withdraw():
        return
    operation.reason = reason
    ends_by_itself = revoke(operation.comm) or withdraw is not None
    operation.polls_left = _STUCK_POLLS if ends_by_itself else 0
