"""A handle on one operation under way, as torch.distributed expects it."""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..core.call import Call
from ..core.errors import DeadlineError, RevokedError
from ..core.links import Link
from ..faults.deadlines import Operation, bounded
from ..log.events import Token, log
from ..log.profiling import Record
from .collectives import Plan
from .futures import CallbackQueue, OrderedFuture, raise_at_end_of_backward, settle


def devices_of(tensors: list[torch.Tensor]) -> list[torch.device]:
    """Return the CUDA devices of ``tensors``."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))


def seconds_of(timeout: timedelta | None) -> float:
    """Return seconds, or -1 where torch means no timeout of its own (None, zero, negative)."""
    if timeout is None:
        return -1
    seconds = bounded(timeout.total_seconds())
    return seconds if seconds > 0 else -1


def too_late(what: str, seconds: float) -> DeadlineError:
    """Return the error of a wait whose own timeout has passed; the operation goes on."""
    return DeadlineError(
        f"{what}: Timed out after the {seconds:g} s given to wait(). The operation is still "
        "running: wait again, or the group's own timeout will end it."
    )


future_lock = threading.Lock()
"""Held while a handle makes its future: one for all, because that takes microseconds."""


class Handle(dist._Work):
    """Base class of the handles on a collective, on a message and on several of them.

    Attributes:
        done: whether it has ended, well or not.
        error: why it failed, None while it has not.
        tensors: the output tensors, or the one sent or received.
    """

    done = False
    error: BaseException | None = None
    tensors: list[torch.Tensor]

    def is_completed(self) -> bool:
        """Return whether the operation has ended, well or not."""
        return self.done

    def is_success(self) -> bool:
        """Return whether the operation has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error, None if there is none so far."""
        return self.error

    def synchronize(self) -> None:
        """The same as ``wait()``: results are in place when it returns."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors, or the one sent or received."""
        return self.tensors


class Collective(Operation):
    """One collective on its way, from the call to its end.

    Any one thread runs it; any thread may wait for it. Its creator sets the attributes that have no
    value here before any other thread sees it: an ``__init__`` for that would take longer.

    Attributes:
        done: whether it has ended, well or not.
        error: why it failed, None while it has not.
        tensors: the output tensors.
        call: the description on which all ranks must agree.
        plan: does the MPI calls, given the communicator.
        options: torch's options of the call, until :meth:`take_options`.
        link: the link that carries it, None if MPI does.
        in_background: whether the progress thread runs it even if its caller waits.
        event: its entry in the event log.
        record: its entry in the profile of PyTorch's profiler.

    ``done`` and ``error`` are written by :meth:`finish`; where another thread may wait for it or
    run it, under the channel's lock for ends.
    """

    done = False
    error: BaseException | None = None
    tensors: list[torch.Tensor]
    call: Call
    plan: Plan
    options: Any = None
    link: Link | None = None
    in_background = False
    event: Token | None = None
    record: Record | None = None

    # Held until the end, if some other thread may run it.
    _baton: Any = None
    _on_done: Callable[[], None] | None = None

    __init__ = object.__init__

    def is_late(self, now: float) -> bool:
        """Return whether its time is over."""
        self.take_options()
        return super().is_late(now)

    def take_options(self) -> None:
        """Use the timeout of the options, if there is one, in place of the group's.

        If the caller waits, only the watcher asks for it: reading torch's options is slow.
        """
        seconds = seconds_of(getattr(self.options, "timeout", None))
        if seconds > 0:
            self.seconds = seconds
        self.options = None

    # --- for the channel ------------------------------------------------------------------

    def prepare_to_wait(self) -> None:
        """Make it waitable from another thread."""
        self._baton = allocate_lock()
        self._baton.acquire()

    def finish(self, error: BaseException | None) -> None:
        """Record the end once; later calls change nothing."""
        if self._baton is None:  # only this thread waits for it
            self.error = self.error or error
            log.end(self.event, error)
            if self.record is not None:
                self.record.end()
            self.done = True
            return
        # The watcher may give up a call at the very moment it returns after all. A thread may
        # re-enter: an interrupt in the middle of the first end is the error of a second one.
        with self.channel.ending:
            if self.done:
                return
            self.error = error
            log.end(self.event, error)
            if self.record is not None:
                self.record.end()
            self.done = True
            self._baton.release()
        if (on_done := self._on_done) is not None:
            on_done()

    def give_up(self) -> None:
        """End it for waiting threads, and the channel with it: its thread stays behind in MPI."""
        self.channel.abandon(self)

    def stopped(self, failure: BaseException | None) -> RevokedError:
        """Return its error if it is not run, because the group had failed before."""
        return RevokedError(f"{self.what}: not run, because the group failed earlier: {failure}")

    def end_if_given_up(self) -> None:
        """Raise its error if it was given up, or the group has failed meanwhile."""
        if self.channel.failure and not self.reason:
            raise self.stopped(self.channel.failure)
        super().end_if_given_up()

    # --- for the program ------------------------------------------------------------------

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is done.

        Args:
            timeout: stop waiting after this time. As with gloo, the operation goes on until the
                group's own deadline, and may be waited for again.

        Raises:
            DeadlineError: if it has not ended in time.
            CommunicationError: the subclass for what went wrong.
        """
        if not self.done:
            self._wait_until_done(seconds_of(timeout))
        if self.error is not None:
            raise self.error
        return True

    def _wait_until_done(self, seconds: float) -> None:
        log.waits(self.event, True)
        try:
            if seconds < 0:
                self.channel.help_with(self)
            else:  # this thread must be free to give up
                self.channel.hurry()
            if not self.done and self._baton.acquire(timeout=seconds):
                self._baton.release()  # pass the baton to the next waiting thread
        except KeyboardInterrupt:
            self.channel.fail(RevokedError(f"{self.what}: interrupted by the user while waiting"))
            raise
        finally:
            log.waits(self.event, False)
        if not self.done:
            raise too_late(self.what, seconds)


class CollectiveWork(Handle, Collective):
    """A collective that the caller does not wait for, and the handle on it."""

    wait = Collective.wait  # not torch's own

    _future: OrderedFuture | None = None

    def get_future(self) -> OrderedFuture:
        """Return a future of the list of output tensors."""
        if not raise_at_end_of_backward(self.wait):
            self.channel.hurry()  # a thread that waits for a future in C++ can't help
        with future_lock:
            if self._future is None:
                self._future = self._new_future()
            return self._future

    def _new_future(self) -> OrderedFuture:
        self.channel.callbacks.seconds = self.seconds
        future = OrderedFuture(self.channel.callbacks, devices_of(self.tensors))
        once = threading.Lock()

        def complete() -> None:
            if once.acquire(blocking=False):
                settle(future, self.tensors, self.error)
                self._on_done = None  # it holds this work, whose tensors would wait for the gc

        # The thread that ends it looks for this afterwards: one of the two sees the other.
        self._on_done = complete
        if self.done:
            complete()
        return future


class CombinedWork(Handle):
    """Handle on several operations that were issued together."""

    def __init__(self, works: list[dist._Work], callbacks: CallbackQueue) -> None:
        super().__init__()
        self._works = works
        self._callbacks = callbacks

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them; the first error is raised after all have ended.

        Args:
            timeout: stop waiting after this time; they go on.
        """
        seconds = seconds_of(timeout)
        until = time.monotonic() + seconds
        first_error: Exception | None = None
        for work in self._works:
            try:
                if seconds < 0:
                    work.wait()
                else:  # zero would be no timeout
                    work.wait(timedelta(seconds=max(until - time.monotonic(), 1e-6)))
            except Exception as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return True

    def is_completed(self) -> bool:
        """Return whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first error, None if there is none so far."""
        return next((error for work in self._works if (error := work.exception())), None)

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors of all."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> OrderedFuture:
        """Return a future of the list of all output tensors."""
        raise_at_end_of_backward(self.wait)
        tensors = self.result()
        future = OrderedFuture(self._callbacks, devices_of(tensors))
        together = torch.futures.collect_all([work.get_future() for work in self._works])
        together.add_done_callback(lambda _: settle(future, tensors, self.exception()))
        return future
