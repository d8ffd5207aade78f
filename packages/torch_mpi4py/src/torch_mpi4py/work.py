"""A handle on one operation under way, as torch.distributed expects it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import hang_report
from .channel import Channel, deadline_error
from .errors import CommunicationError, RevokedError
from .events import log
from .futures import CallbackQueue, OrderedFuture, raise_at_end_of_backward
from .task import Task

__all__ = ["CollectiveWork", "CombinedWork", "future_of_task", "future_of_works"]


def settle(future: OrderedFuture, result: Any, error: BaseException | None) -> None:
    """Complete ``future``."""
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def devices_of(result: Any) -> list[torch.device]:
    """Return the CUDA devices of the tensors in a possibly nested list."""
    if isinstance(result, torch.Tensor):
        return [result.device] if result.is_cuda else []
    if isinstance(result, (list, tuple)):
        found = [device for item in result for device in devices_of(item)]
        return list(dict.fromkeys(found)) if found else found
    return []


def seconds_of(timeout: timedelta | None) -> float:
    """Return seconds, or -1 where torch means no time-out of its own (None, zero, negative)."""
    if timeout is None:
        return -1
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else -1


_future_lock = threading.Lock()  # one for all: what it guards takes microseconds


class CollectiveWork(dist._Work):
    """Handle on a collective."""

    def __init__(self, task: Task, channel: Channel, callbacks: CallbackQueue) -> None:
        super().__init__()
        self._task = task
        self._channel = channel
        self._callbacks = callbacks
        self._future: OrderedFuture | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is done.

        Args:
            timeout: give up earlier than the group's own deadline.

        Raises:
            CommunicationError: what went wrong, as the subclass that says how.
        """
        task = self._task
        if not task.done:
            self._wait_until_done(task, seconds_of(timeout))
        if task.error is not None:
            raise task.error
        return True

    def _wait_until_done(self, task: Task, seconds: float) -> None:
        log.waits(task.event, True)
        report = ""
        try:
            if seconds < 0:
                self._channel.help_with(task)
            else:  # this thread must be free to give up
                self._channel.hurry()
            in_time = task.wait(seconds)
            if not in_time:
                report = hang_report.reach(self._channel.comm)
        except KeyboardInterrupt:
            self._channel.fail(
                RevokedError(f"{task.call.name}: interrupted by the user while waiting")
            )
            raise
        finally:
            log.waits(task.event, False)
        if not in_time:
            error = deadline_error(task.call, seconds, report)
            self._channel.fail(error)
            raise error

    def is_completed(self) -> bool:
        """Return whether the operation has ended, well or not."""
        return self._task.done

    def is_success(self) -> bool:
        """Return whether the operation has ended well."""
        return self._task.done and self._task.error is None

    def exception(self) -> BaseException | None:
        """Return the error, None if there is none so far."""
        return self._task.error

    def synchronize(self) -> None:
        """The same as :meth:`wait`: results are in place when it returns."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors."""
        return self._task.result

    def get_future(self) -> OrderedFuture:
        """Return a future of the list of output tensors."""
        if not raise_at_end_of_backward(self.wait):
            self._channel.hurry()  # one who waits for a future in C++ cannot help
        with _future_lock:
            if self._future is None:
                self._future = future_of_task(self._task, self._callbacks)
            return self._future


def future_of_task(task: Task, callbacks: CallbackQueue) -> OrderedFuture:
    """Return a future that completes when ``task`` does."""
    future = OrderedFuture(callbacks, devices_of(task.result))
    once = threading.Lock()

    def complete() -> None:
        if once.acquire(blocking=False):
            settle(future, task.result, task.error)

    task.on_done.append(complete)
    if task.done:
        complete()
    return future


def future_of_works(works: list[dist._Work], callbacks: CallbackQueue) -> OrderedFuture:
    """Return a future of all output tensors of ``works``, complete when they all are."""
    tensors = [tensor for work in works for tensor in work.result()]
    future = OrderedFuture(callbacks, devices_of(tensors))
    together = torch.futures.collect_all([work.get_future() for work in works])

    def complete(done: torch.futures.Future) -> None:
        error = next((work.exception() for work in works if work.exception()), None)
        settle(future, tensors, error)

    together.add_done_callback(complete)
    return future


class CombinedWork(dist._Work):
    """Handle on several operations that were issued together."""

    def __init__(self, works: list[dist._Work], future: Callable[[list], OrderedFuture]) -> None:
        super().__init__()
        self._works = works
        self._make_future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them; the first error is raised after all have ended."""
        first_error: CommunicationError | None = None
        for work in self._works:
            try:
                work.wait() if timeout is None else work.wait(timeout)
            except CommunicationError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return True

    def is_completed(self) -> bool:
        """Return whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all have ended well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first error, None if there is none so far."""
        return next((error for work in self._works if (error := work.exception())), None)

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors of all."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> OrderedFuture:
        """Return a future of the list of all output tensors."""
        raise_at_end_of_backward(self.wait)
        return self._make_future(self._works)
