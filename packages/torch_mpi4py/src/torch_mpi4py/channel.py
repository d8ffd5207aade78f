"""The collectives of a group run one after another, in the order of the calls.

A channel owns a communicator and, from the first asynchronous call on, a progress thread
(:mod:`.progress`). Where a stuck call can be freed, two shortcuts save thread switches: a
synchronous call on an idle channel runs on the caller's own thread, and whoever waits for a
collective that nobody has begun runs it, and those before it, instead of waiting for a thread
that first has to get a core.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any
from weakref import WeakValueDictionary

from . import deadlines, hang_report, link_emulation, link_queue
from .call_check import Agreement, Call
from .errors import CommunicationError, DeadlineError, MismatchError
from .events import log
from .mpi_errors import translate
from .progress import ProgressThread, cores_are_taken
from .runtime import MPI
from .task import Task, stopped

__all__ = ["Channel"]


class Channel:
    """Runs one group's collectives in order on one communicator.

    Args:
        comm: a communicator that nobody else uses for collectives.
        name: for thread names.
        depth: 0 for calls from the program, 1 for calls from callbacks of those, and so on.

    Attributes:
        survives_failures: whether a message to or from a dead rank fails alone, instead of
            making the channel unusable for all.
        open_receives: receives from any source that have not ended, in order of posting.
        group: what the communicator is called in the event log.
    """

    def __init__(self, comm: MPI.Intracomm, name: str, depth: int) -> None:
        self.comm = comm
        self.depth = depth
        self.group = log.group_of(comm)
        self.failure: CommunicationError | None = None
        self.survives_failures = False
        self.open_receives: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.agreement = Agreement(comm)
        self._lock = threading.Lock()
        self._queue: deque[Task] = deque()  # those that have not ended; the first may be running
        self._running: Task | None = None
        name = f"torch_mpi4py {name} depth {depth} progress"
        self._progress = ProgressThread(name, self._queue, self._run)
        self._abandoned = False
        self._inline_allowed = deadlines.has_ulfm() or comm.Get_size() == 1

    @property
    def idle(self) -> bool:
        """Whether no task is queued or running."""
        return self._running is None and not self._queue

    def run_now(self, task: Task) -> bool:
        """Run ``task`` on this thread if that is safe; return whether it was run."""
        return self._inline_allowed and self.idle and self._run(task)

    def submit(self, task: Task) -> None:
        """Queue ``task``: the progress thread or whoever waits for it runs it."""
        task.prepare_to_wait()
        with self._lock:
            self._queue.append(task)
        if self._abandoned:  # since the group was found usable: nothing runs here any more
            task.finish(stopped(task.call, self.failure))
            return
        # The time of an emulated link passes without a core, so it is always worth hiding.
        if self._inline_allowed and task.link is None and cores_are_taken():
            self._progress.look()
        else:
            self._progress.hurry()

    def help_with(self, task: Task) -> None:
        """Run what is queued up to ``task`` on this thread, as far as nobody else does."""
        while self._inline_allowed and self._run(until=task):
            pass

    def hurry(self) -> None:
        """Have the progress thread begin what is queued now, for one who cannot help."""
        if self._queue:
            self._progress.hurry()

    def fail(self, error: CommunicationError) -> None:
        """Mark the channel unusable and free every rank that is stuck in it."""
        if self.failure is None:
            self.failure = error
        deadlines.revoke(self.comm)

    def close(self, seconds: float) -> bool:
        """Stop the progress thread once its queue is empty; return whether it stopped."""
        if self._abandoned:
            return False  # waiting for it would only delay the end of the process
        return self._progress.stop(seconds)

    def _run(self, task: Task | None = None, until: Task | None = None) -> bool:
        """Run one task on this thread, unless another thread runs one; return whether it did.

        An interrupt may arrive after any call, so nothing is called between taking the turn and
        knowing that it has to be given back.

        Args:
            task: it is run if nothing is queued; None: the first that is queued.
            until: run nothing once this has ended.
        """
        mine, queued = False, task is None
        try:
            with self._lock:
                if self._running is None and (until is None or not until.done):
                    if queued and self._queue:
                        self._running = task = self._queue[0]
                        mine = True
                    elif not queued and not self._queue:
                        self._running = task
                        mine = True
            if mine:
                if queued:
                    log.restart(task.event)
                self._execute(task)
        except BaseException as interrupt:  # Ctrl-C in the few lines around the MPI call
            if mine:
                task.finish(interrupt)
            raise
        finally:
            if mine:
                with self._lock:
                    if self._queue and self._queue[0] is task:
                        self._queue.popleft()
                    self._running = None
                if self._progress.hurries:
                    self._progress.hurry()
        return mine

    def _execute(self, task: Task) -> None:
        if self.failure is not None:
            task.finish(stopped(task.call, self.failure))
            return
        comm = self.comm
        operation = deadlines.Operation(comm, task.call.name, task.seconds, self._abandon)
        deadlines.begin(operation)
        try:
            self.agreement.check(task.call)
            if task.link is None:
                task.run(comm)
            else:
                _run_on_link(task, comm, operation)
            error = operation.error() if operation.reason else None
        except MPI.Exception as mpi_error:
            if operation.reason:
                error = operation.error()
            else:
                error = translate(mpi_error, task.call.describe(), comm)
        except BaseException as other:
            error = other
        finally:
            deadlines.end(operation)
        if error is not None and not isinstance(error, MismatchError):
            self.fail(_as_communication_error(error))
        task.finish(error)

    def _abandon(self, operation: deadlines.Operation) -> None:
        """Give up a call that could not be freed: its thread stays behind in MPI."""
        deadlines.leave_mpi_unfinalized()
        error = operation.error()
        self.failure = self.failure or error
        self._abandoned = True
        task = self._running
        if task is not None:
            task.finish(error)
        with self._lock:
            waiting = list(self._queue)
            self._queue.clear()
        for task in waiting:
            task.finish(stopped(task.call, error))


def _run_on_link(task: Task, comm: MPI.Intracomm, operation: deadlines.Operation) -> None:
    name = task.call.name.removesuffix("_single")
    size_bytes = task.call.largest_part_bytes(task.result, comm.Get_size())
    due = link_emulation.start_collective(task.link, comm, name, size_bytes)
    task.run(comm)
    link_queue.sleep_until(due, comm, lambda: operation.reason is not None)


def _as_communication_error(error: BaseException) -> CommunicationError:
    if isinstance(error, CommunicationError):
        return error
    return CommunicationError(f"{type(error).__name__}: {error}")


def deadline_error(call: Call, seconds: float, report: str) -> DeadlineError:
    """Return the error for a wait that gave up before the operation did."""
    text = f"{call.name}: Timed out: not finished within the {seconds:g} s given to wait()"
    return DeadlineError(text + hang_report.ending(report))
