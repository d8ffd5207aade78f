"""The one idea: the collectives of a group run one after another, in the order of the calls.

A channel owns a communicator and, from the first asynchronous call on, a progress thread that
runs collectives in order. A synchronous call on an idle channel runs on the caller's own
thread, which saves two thread switches; that is safe where a stuck call can be freed.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from . import guard
from .agreement import Agreement, Call
from .errors import CommunicationError, DeadlineError, MismatchError, RevokedError, translate
from .runtime import MPI

__all__ = ["Channel", "Task"]


class Task:
    """One collective on its way: what to run, and how it ended.

    Attributes:
        call: what all ranks must agree on.
        run: does the MPI calls, given the communicator.
        seconds: time allowed from the moment it starts.
        result: the tensors a future of this task holds.
        error: why it failed, None while it has not.
        done: whether it has ended, well or not.
    """

    __slots__ = ("_baton", "call", "done", "error", "on_done", "result", "run", "seconds")

    def __init__(
        self,
        call: Call,
        run: Callable[[MPI.Intracomm], None],
        seconds: float,
        result: list[Any],
    ) -> None:
        self.call = call
        self.run = run
        self.seconds = seconds
        self.result = result
        self.error: BaseException | None = None
        self.done = False
        self.on_done: list[Callable[[], None]] = []
        self._baton = None

    def prepare_to_wait(self) -> None:
        """Make the task waitable from another thread."""
        self._baton = allocate_lock()
        self._baton.acquire()

    def finish(self, error: BaseException | None) -> None:
        """Record the end once; later calls change nothing."""
        if self.done:
            return
        self.error = error
        self.done = True
        if self._baton is not None:
            self._baton.release()
        while self.on_done:
            self.on_done.pop()()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until the task has ended, at most ``seconds`` (-1: as long as it takes)."""
        if not self.done and self._baton.acquire(timeout=seconds):
            self._baton.release()  # pass the baton on to the next who waits
        return self.done


class Channel:
    """Runs one group's collectives in order on one communicator.

    Args:
        comm: a communicator that nobody else uses for collectives.
        name: for thread names.
        depth: 0 for calls from the program, 1 for calls from callbacks of those, and so on.

    Attributes:
        survives_failures: whether a message to or from a dead rank fails alone, instead of
            making the channel unusable for all.
    """

    def __init__(self, comm: MPI.Intracomm, name: str, depth: int) -> None:
        self.comm = comm
        self.depth = depth
        self.failure: CommunicationError | None = None
        self.survives_failures = False
        self.agreement = Agreement(comm)
        self._name = f"course_lib.mpi {name} depth {depth}"
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._pending = 0
        self._count_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running: Task | None = None
        self._abandoned = False
        self._inline_allowed = guard.has_ulfm() or comm.Get_size() == 1

    @property
    def idle(self) -> bool:
        """Whether no task is queued or running."""
        return self._pending == 0

    def run_now(self, task: Task) -> bool:
        """Run ``task`` on this thread if that is safe; return whether it was run."""
        if self._pending or not self._inline_allowed:
            return False
        with self._count_lock:
            if self._pending:
                return False
            self._pending += 1
        try:
            self._execute(task)
        finally:
            with self._count_lock:
                self._pending -= 1
        return True

    def submit(self, task: Task) -> None:
        """Queue ``task`` for the progress thread."""
        task.prepare_to_wait()
        with self._count_lock:
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._progress, name=f"{self._name} progress", daemon=True
                )
                self._thread.start()
        self._queue.put(task)

    def fail(self, error: CommunicationError) -> None:
        """Mark the channel unusable and free every rank that is stuck in it."""
        if self.failure is None:
            self.failure = error
        guard.revoke(self.comm)

    def close(self, seconds: float) -> bool:
        """Stop the progress thread once its queue is empty; return whether it stopped."""
        if self._thread is None:
            return True
        if self._abandoned:
            return False  # waiting for it would only delay the end of the process
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _progress(self) -> None:
        while True:
            task = self._queue.get()
            if task is None:
                return
            self._running = task
            self._execute(task)
            self._running = None
            with self._count_lock:
                self._pending -= 1

    def _execute(self, task: Task) -> None:
        if self.failure is not None:
            task.finish(_stopped(task.call, self.failure))
            return
        comm = self.comm
        operation = guard.Operation(comm, task.call.name, task.seconds, self._abandon)
        guard.begin(operation)
        try:
            self.agreement.check(task.call)
            task.run(comm)
            error = operation.error() if operation.reason else None
        except MPI.Exception as mpi_error:
            if operation.reason:
                error = operation.error()
            else:
                error = translate(mpi_error, task.call.describe(), comm)
        except BaseException as other:
            error = other
        finally:
            guard.end(operation)
        if error is not None and not isinstance(error, MismatchError):
            self.fail(_as_communication_error(error))
        task.finish(error)

    def _abandon(self, operation: guard.Operation) -> None:
        """Give up a call that could not be freed: its thread stays behind in MPI."""
        guard.leave_mpi_unfinalized()
        self._abandoned = True
        error = operation.error()
        self.failure = self.failure or error
        task = self._running
        if task is not None:
            task.finish(error)
        while not self._queue.empty():
            waiting = self._queue.get()
            if waiting is not None:
                waiting.finish(_stopped(waiting.call, error))


def _stopped(call: Call, failure: CommunicationError) -> RevokedError:
    return RevokedError(f"{call.name}: not run, because the group failed before: {failure}")


def _as_communication_error(error: BaseException) -> CommunicationError:
    if isinstance(error, CommunicationError):
        return error
    return CommunicationError(f"{type(error).__name__}: {error}")


def deadline_error(call: Call, seconds: float) -> DeadlineError:
    """Return the error for a wait that gave up before the operation did."""
    return DeadlineError(f"{call.name}: not finished within the {seconds:g} s given to wait()")
