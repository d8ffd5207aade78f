"""A thread that runs queued tasks at once, or if no other thread runs them soon.

If every core has a rank that computes, a thread that communicates in the background takes the core
from one of them, and costs more than it hides. In that case the thread is patient: it leaves queued
tasks to the thread that waits for them, and begins only those that have been queued for a while,
so that ranks that already wait for this one need not wait until its computing ends. Every look
costs the computing thread up to 0.1 ms, so a thread that finds nothing to do looks less often.

A DDP step of an MLP, 2 ranks on 2 cores, took 2.8 ms with a thread in the background and 2.0 ms
without. (Where other programs take the cores, it is the other way round: see
:mod:`~torch_mpi4py.core.crowding`.) A task that no thread waits for must begin all the same, within
2 ms, because two ranks may wait for two groups in different orders.

Where other programs take the cores, the thread also keeps to its rank's part of them. Linux likes
to put a thread that is woken beside the one that wakes it, so ranks that wake each other soon share
one core and leave the other to strangers. A thread that stays where it is draws those that it
wakes, its own rank's, to itself. Ranks that are not bound to cores, beside busy loops of other
sessions on both of two cores, means of a few seconds of each way in random order, in ms:

                                              2 ranks                  4 ranks
                                         before   now  gloo       before   now  gloo
5 ms of computing, all_reduce of 64 KiB    10.8   6.2  10.8         27.0  16.7  25.7
a DDP step of an MLP                       17.0   7.6  14.3         26.2  18.0  32.0
a DDP step of LeNet                        25.6  17.7  23.2         42.6  21.2  56.4

Before: threads anywhere, and with four ranks the callers ran the collectives.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ..core import crowding
from ..meeting.cores import cores_a_rank, own_cores

_PATIENCE_SECONDS = 1e-3
_LONGEST_PATIENCE = 8  # times that
# After this many looks at an empty queue the thread sleeps until it is called.
_QUIET_LOOKS = 20
_LOOK, _HURRY, _STOP = range(3)


class ProgressThread:
    """Runs tasks in order; it starts with the first call of :meth:`look` or :meth:`hurry`.

    Args:
        name: of the thread.
        tasks: those that have not ended, in order.
        run_next: runs the first of them, unless another thread runs one; returns whether it did.

    Attributes:
        hurries: whether it should run what is queued as soon as no other thread runs a task; a
            thread that ends one then calls :meth:`hurry`.
    """

    def __init__(self, name: str, tasks: deque[Any], run_next: Callable[[], bool]) -> None:
        self.hurries = False
        self._name = name
        self._tasks = tasks
        self._run_next = run_next
        self._calls: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._looks = False  # whether it looks at the tasks from time to time, without a call
        self._stops = False
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._all_cores: set[int] | None = None  # that it may use, while it keeps to some of them

    def look(self) -> None:
        """Have what is queued run within about two milliseconds, the first time in nine."""
        self._start()
        if not self._looks:
            self._calls.put(_LOOK)

    def hurry(self) -> None:
        """Have what is queued run now."""
        self._start()
        self._calls.put(_HURRY)

    def stop(self, seconds: float) -> bool:
        """End the thread once nothing is queued; return whether it ended in ``seconds``."""
        if self._thread is None:
            return True
        self._calls.put(_STOP)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self) -> None:
        if self._thread is not None:
            return
        with self._start_lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        before: object = None
        quiet_looks, patience = 0, 1
        while not (self._stops and not self._tasks):
            # What lies there is looked at again soon.
            call = self._next_call(patience if before is None else 1)
            self._stops |= call == _STOP
            self.hurries = call != _LOOK
            patience = min(2 * patience, _LONGEST_PATIENCE)
            if self.hurries or (before is not None and before is self._first()):
                self._choose_cores()
                while self._run_next():
                    patience = 1
            self.hurries = self._stops or (self.hurries and bool(self._tasks))
            before = self._first()
            quiet_looks = 0 if before is not None or call != _LOOK else quiet_looks + 1
            # A thread that queues a task reads this flag afterwards: one of the two sees the other.
            self._looks = quiet_looks < _QUIET_LOOKS
            self._looks = self._looks or self._first() is not None

    def _next_call(self, patience: int) -> int:
        seconds = patience * _PATIENCE_SECONDS if self._looks else None
        try:
            return self._calls.get(timeout=seconds)
        except queue.Empty:
            return _LOOK

    def _choose_cores(self) -> None:
        """Keep to this rank's own cores while other programs take some."""
        keeps = others_take_cores()
        if keeps == (self._all_cores is not None):
            return
        # Linux refuses cores that have been taken from this program meanwhile.
        with contextlib.suppress(OSError):
            if self._all_cores is None:
                self._all_cores = os.sched_getaffinity(0)  # of this thread
                os.sched_setaffinity(0, own_cores() & self._all_cores or self._all_cores)
            else:
                all_cores, self._all_cores = self._all_cores, None
                os.sched_setaffinity(0, all_cores)

    def _first(self) -> object:
        try:
            return self._tasks[0]
        except IndexError:
            return None


def others_take_cores() -> bool:
    """Return whether other programs take the cores."""
    return crowding.others_take_the_core


def takes_over(started: float, largest: int) -> bool:
    """Return whether the progress thread runs a collective that its caller waits for.

    Args:
        started: when it was called.
        largest: bytes of the largest part that one rank holds or receives.
    """
    return others_take_cores() and (
        largest >= crowding.COMPUTES_BYTES or crowding.has_computed(started)
    )


def cores_are_taken() -> bool:
    """Return whether the ranks here, and only they, leave no core for other threads."""
    return torch.get_num_threads() >= cores_a_rank() and not others_take_cores()
