"""Runs callbacks in the order in which they were attached, on a thread of their own.

``work.get_future().then(callback)`` is how DDP's communication hooks chain computation to a
collective, and PowerSGD's callbacks issue further collectives. Collectives must be issued in
the same order on every rank, so neither timing nor the arrival of messages may decide which
callback runs first, nor whether it runs before or after the program's next call. The rules:

1. Callbacks of a group's collectives run strictly in the order in which ``then`` was called.
   The collectives they issue go to a channel of their own (:mod:`torch_mpi4py.group.channel`,
   depth + 1).
2. A callback that attaches another one to a future of its own group runs that one there and
   then: it is complete when ``then`` returns, so waiting for it, in Python or in C++ (as in
   ``torch.futures.wait_all``), never waits for the callback itself.
3. A callback that waits, in Python, for one that the program has attached later runs what is
   queued up to that one first. A wait in C++ does not come through here: once it
   has kept others waiting for the group's timeout, they run on a second thread.
4. The arrival of a message orders nothing. Each message's callbacks have a queue of their own,
   so a late message holds back no others. The collectives they issue go to one more channel
   (depth :data:`DEPTH_OF_MESSAGES`): several messages whose callbacks issue collectives must be
   chained by ``then``, for they may arrive in another order on another rank.

Every future is completed, by an error if need be.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..core.cuda_copies import current_gpu

DEPTH_OF_MESSAGES = 1000
"""Of messages' callbacks: far from those of collectives' callbacks."""
# A thread without callbacks ends after this time; the next callback starts another.
_IDLE_SECONDS = 1.0

callback_depths: dict[int, int] = {}
"""Of the threads that run callbacks, by their number; each enters itself."""
_queues_of_threads: dict[int, CallbackQueue] = {}  # the same threads


def current_depth() -> int:
    """Return 0 in the program, d + 1 in callbacks of collectives of depth d."""
    return callback_depths.get(threading.get_ident(), 0)


class OrderedFuture(torch.futures.Future):
    """A torch future whose callbacks run in order on its queue's thread.

    Attributes:
        queued: whether it is that of a callback whose turn has not come.
        blocked_by: the thread that can't complete it now, because its callback, or one that must
            run before, is further up on that thread's stack.
    """

    queued = False
    blocked_by: int | None = None

    def __init__(self, callbacks: CallbackQueue, devices: list[torch.device]) -> None:
        super().__init__(devices=[*devices])
        self._callbacks = callbacks
        self.devices = devices

    def wait(self) -> Any:
        """Block until the value is ready, and return it or raise its error."""
        if not self.done():
            self._callbacks.run_up_to(self)
        return super().wait()

    def then(self, callback: Callable[[OrderedFuture], Any]) -> OrderedFuture:
        """Return a future of ``callback(self)``, run once this future is complete."""
        child = OrderedFuture(self._callbacks, self.devices)
        self._callbacks.put(Attached(self, callback, child))
        raise_at_end_of_backward(child.wait)
        return child

    def add_done_callback(self, callback: Callable[[OrderedFuture], None]) -> None:
        """Run ``callback(self)`` once this future is complete."""
        self.then(callback)


def settle(future: OrderedFuture, result: Any, error: BaseException | None = None) -> None:
    """Complete ``future``, unless the program has completed it itself."""
    if future.done():
        return
    with current_gpu(future.devices):
        if error is None:
            try:
                future.set_result(result)
                return
            except Exception as refused:  # as of a tensor on a device that it does not know
                error = refused
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def raise_at_end_of_backward(wait: Callable[[], Any]) -> bool:
    """Inside a backward pass, have it call ``wait()`` at its end; return whether it will.

    DDP's reducer waits for futures in C++, where no interrupt arrives, and treats the value of a
    failed Python future as a tensor, which crashes. This wait comes before that one, in Python: it
    is interruptible, and its error leaves ``backward()`` as it is.
    """
    inside = torch._C._current_graph_task_id() != -1
    if inside:
        torch.autograd.Variable._execution_engine.queue_callback(wait)
    return inside


class Attached(NamedTuple):
    """A callback, the future it is attached to, and the future of its value."""

    parent: OrderedFuture
    callback: Callable[[OrderedFuture], Any]
    child: OrderedFuture


class CallbackQueue:
    """Runs callbacks one after another, on a thread that exists only while there are some.

    Args:
        name: for the thread's name.
        depth: of the operations whose callbacks these are; the callbacks' own depth is one more.

    Attributes:
        seconds: how long one callback may keep others waiting.
    """

    seconds = math.inf

    _serial = itertools.count()

    def __init__(self, name: str, depth: int) -> None:
        self._name = f"torch_mpi4py {name} callbacks depth {depth}"
        self._depth = depth + 1
        self._number = next(self._serial)
        self._waiting: deque[Attached] = deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None  # takes what is queued; others only end
        self._closed = False
        self._running: Attached | None = None  # by that thread, not inside another callback
        self._seen: tuple[Attached | None, float] = None, 0.0  # running at a beat, and since when

    def put(self, attached: Attached) -> None:
        """Run a callback when its turn has come and its parent is complete."""
        mine = _queues_of_threads.get(threading.get_ident())
        # The thread that runs a callback may wait for this one, and this queue's thread may,
        # directly or not, wait for that callback. Callbacks that wait only for those of younger
        # queues, and run all others themselves, never wait in a circle.
        blocked = attached.parent.blocked_by == threading.get_ident()
        if mine is not None and self._number <= mine._number and not blocked:
            self._run_one(attached)
            return
        with self._change:
            if self._thread is None:
                self._start_thread()
            attached.child.queued = True
            self._waiting.append(attached)
            self._change.notify_all()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()  # may fail, at the end of the program
        self._thread = thread
        self._running = None

    def relieve(self, now: float) -> None:
        """Have another thread take over when one callback has kept others waiting too long."""
        running, since = self._seen
        if not self._waiting or self._running is not running or running is None:
            self._seen = self._running, now
        elif now > since + self.seconds:
            with self._change:
                if self._running is running and self._waiting:
                    self._start_thread()

    def is_open(self) -> bool:
        """Return whether callbacks may run yet."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, seconds: float) -> bool:
        """Stop after the callbacks queued so far; return whether it stopped."""
        with self._change:
            self._closed = True
            self._change.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def run_up_to(self, future: OrderedFuture) -> None:
        """On this queue's own thread, run the callbacks up to the one that completes ``future``.

        Raises:
            RuntimeError: if ``future`` can't be complete before this callback has returned.
        """
        here = threading.get_ident()
        if _queues_of_threads.get(here) is not self:
            return
        postponed: list[Attached] = []
        try:
            while future.queued and future.blocked_by != here:
                with self._change:
                    attached = self._waiting.popleft()
                if attached.parent.blocked_by == here:
                    attached.child.blocked_by = here
                    postponed.append(attached)
                else:
                    self._run_one(attached)
        finally:
            for attached in reversed(postponed):
                attached.child.blocked_by = None
                self._waiting.appendleft(attached)
        if future.blocked_by == here or any(future is one.child for one in postponed):
            raise RuntimeError(
                "a callback waits for a future that is complete only once the callback has returned"
            )

    def _run(self) -> None:
        here = threading.get_ident()
        callback_depths[here], _queues_of_threads[here] = self._depth, self
        try:
            while (attached := self._next()) is not None:
                self._run_one(attached)
                attached = None  # its tensors are not kept until the next one
        finally:
            del callback_depths[here], _queues_of_threads[here]  # another may get the same number

    def _next(self) -> Attached | None:
        with self._change:
            if self._thread is not threading.current_thread():  # relieved
                return None
            self._running = None
            self._change.wait_for(lambda: self._waiting or self._closed, _IDLE_SECONDS)
            if self._waiting:
                self._running = self._waiting.popleft()
                return self._running
            self._thread, self._seen = None, (None, 0.0)
            return None

    def _run_one(self, attached: Attached) -> None:
        parent, callback, child = attached
        here = threading.get_ident()
        depth_before = callback_depths.get(here, 0)
        callback_depths[here], child.blocked_by, child.queued = self._depth, here, False
        value, error = None, None
        with current_gpu(parent.devices):
            try:
                _wait_until_complete(parent)
                value = callback(parent)
            except BaseException as failed:
                error = failed
        callback_depths[here], child.blocked_by = depth_before, None
        settle(child, value, error)


def relieve_all() -> None:
    """Look, about ten times a second, for callbacks that keep others waiting."""
    now = time.perf_counter()
    for queue in set(_queues_of_threads.copy().values()):
        queue.relieve(now)


def _wait_until_complete(future: OrderedFuture) -> None:
    # The callback itself decides what to do about a failed parent, as in torch.
    try:
        future.wait()
    except Exception:
        if not future.done():
            raise
