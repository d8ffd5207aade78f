"""Callbacks run in the order they were attached, on a thread of their own.

``work.get_future().then(callback)`` is how DDP's communication hooks chain computation to a
collective, and PowerSGD's callbacks issue further collectives. Collectives must be issued in
the same order on every rank, so it must not depend on timing which callback runs first, nor
whether it runs before or after the program's next call. Here callbacks run strictly in the
order in which ``then`` was called, and the collectives they issue go to a channel of their
own (:mod:`torch_mpi4py.channel`, depth + 1).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

callback_depths: dict[int, int] = {}
"""Of the threads that run callbacks, by their number; each enters itself."""


def current_depth() -> int:
    """Return 0 in the program, d + 1 in callbacks of collectives of depth d."""
    return callback_depths.get(threading.get_ident(), 0)


class OrderedFuture(torch.futures.Future):
    """A torch future whose callbacks run in order on its queue's thread."""

    def __init__(self, callbacks: CallbackQueue, devices: list[torch.device]) -> None:
        super().__init__(devices=[*devices])
        self._callbacks = callbacks
        self._devices = devices

    def then(self, callback: Callable[[OrderedFuture], Any]) -> OrderedFuture:
        """Return a future of ``callback(self)``, run once this future is complete."""
        child = OrderedFuture(self._callbacks, self._devices)
        self._callbacks.put(self, callback, child)
        raise_at_end_of_backward(child.wait)
        return child

    def add_done_callback(self, callback: Callable[[OrderedFuture], None]) -> None:
        """Run ``callback(self)`` once this future is complete."""
        self.then(callback)


def raise_at_end_of_backward(wait: Callable[[], Any]) -> bool:
    """Inside a backward pass, have it call ``wait()`` at its end; return whether it will.

    DDP's reducer waits for futures in C++, where no interrupt arrives, and takes the value of
    a failed Python future for a tensor, which crashes. This wait comes before that one, in
    Python: it is interruptible, and its error leaves ``backward()`` as it is.
    """
    inside = torch._C._current_graph_task_id() != -1
    if inside:
        torch.autograd.Variable._execution_engine.queue_callback(wait)
    return inside


class CallbackQueue:
    """Runs callbacks one after another; its thread starts with the first one."""

    def __init__(self, name: str, depth: int) -> None:
        self._name = f"torch_mpi4py {name} callbacks depth {depth}"
        self._depth = depth + 1
        self._queue: SimpleQueue[tuple | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    def put(self, parent: OrderedFuture, callback: Callable, child: OrderedFuture) -> None:
        """Run ``callback(parent)`` when its turn has come and ``parent`` is complete."""
        with self._start_lock:  # two threads would not keep the order
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
        self._queue.put((parent, callback, child))

    def is_open(self) -> bool:
        """Return whether callbacks may run yet."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, seconds: float) -> bool:
        """Stop after the callbacks queued so far; return whether it stopped."""
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        callback_depths[threading.get_ident()] = self._depth
        while (item := self._queue.get()) is not None:
            parent, callback, child = item
            try:
                _wait_until_complete(parent)
                value = callback(parent)
            except BaseException as error:
                child.set_exception(_as_exception(error))
            else:
                child.set_result(value)
        del callback_depths[threading.get_ident()]  # another thread may get the same number


def _wait_until_complete(future: OrderedFuture) -> None:
    # The callback itself decides what to do about a failed parent, as in torch.
    try:
        future.wait()
    except Exception:
        if not future.done():
            raise


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(repr(error))
