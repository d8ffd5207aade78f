"""Runs the collectives of a group one after another, in the order of the calls.

A channel owns a communicator and, from the first asynchronous call on, a progress thread
(:mod:`.progress`). Where a stuck call can be freed, two shortcuts save thread switches: a
synchronous call on an idle channel runs on the caller's own thread; and a thread that waits for a
collective which has not begun runs it, and those before it, instead of waiting for another thread
to get a core. A sum that calls none of MPI's collectives can be freed under any MPI, other calls
only with ULFM.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import deque
from typing import Any
from weakref import WeakMethod, WeakSet, WeakValueDictionary

from ..core import collective_counts, crowding
from ..core.call import Call, mismatch
from ..core.errors import CommunicationError, DeliveryError, MismatchError
from ..core.runtime import MPI
from ..faults import deadlines
from ..faults.deaths import has_ulfm
from ..faults.mpi_errors import translate
from ..log.events import log
from ..meeting.arrivals import Arrivals, open_arrivals
from ..meeting.cores import cores_a_rank
from ..meeting.doorbell import Bells
from ..meeting.remote_arrivals import RemoteArrivals
from ..meeting.remote_sums import open_remote_sums
from ..meeting.shared_sums import open_shared_sums
from ..meeting.sums import Sums
from .futures import CallbackQueue
from .progress import ProgressThread, cores_are_taken
from .work import Collective


class Channel(deadlines.Runner):
    """Runs one group's collectives in order on one communicator.

    Args:
        comm: a communicator that nothing else uses for collectives.
        name: for thread names.
        depth: 0 for calls from the program, 1 for calls from callbacks of those, and so on.
        seconds: time allowed for the other ranks to make it, too.

    Attributes:
        failure: why the channel is unusable, None while it works.
        frees_all: whether any stuck call can be freed.
        survives_failures: whether a message to or from a dead rank fails alone, instead of
            making the channel unusable for all.
        open_receives: receives from any source that have not ended, in order of posting.
        checks_calls: whether ranks compare their calls before data moves.
        group: the name of the communicator in the event log.
        bells: with which its ranks wake each other when a message comes.
        callbacks: where those of the collectives' futures run.
        queues_of_messages: where those of each message's future run.
        ending: the lock under which a collective ends.
        made: how many collectives have been begun on the communicator.
        running: the collective that is run. The thread that sets it (under the lock) has the turn,
            and must clear it.
    """

    running: Collective | None = None

    def __init__(self, comm: MPI.Intracomm, name: str, depth: int, seconds: float) -> None:
        self.comm = comm
        self.depth = depth
        self.group = log.group_of(comm)
        self.bells = Bells(comm)
        self.failure: CommunicationError | None = None
        self.survives_failures = False
        self.open_receives: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.checks_calls = os.environ.get("TORCH_MPI4PY_CHECK_COLLECTIVES", "1") != "0"
        self.callbacks = CallbackQueue(name, depth)
        self.queues_of_messages: WeakSet[CallbackQueue] = WeakSet()
        self.ending = threading.RLock()
        self._lock = threading.Lock()
        # Those that have not ended; the first may be running. Any thread may add to it; the thread
        # that has the turn removes those that it has run.
        self._queue: deque[Collective] = deque()
        name = f"torch_mpi4py {name} depth {depth} progress"
        # A circle would keep the communicator where the program switches the garbage collector off.
        method = WeakMethod(self.run)

        def run_next() -> bool:
            bound = method()
            return bound is not None and bound()

        self._progress = ProgressThread(name, self._queue, run_next)
        self._abandoned = False
        self._arrivals: Arrivals | RemoteArrivals | None = open_arrivals(comm, seconds)
        if self._arrivals is None and comm.Get_size() > 1:
            self._arrivals = RemoteArrivals(comm)
        self._sums: Sums | None = None
        self._may_open_sums = self._arrivals is not None
        crowding.ranks_leave = min(cores_a_rank(), 1.0)
        self.made = 0
        collective_counts.count(comm, self)
        self.frees_all = has_ulfm() or comm.Get_size() == 1
        deadlines.watch_over(self)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or running; an abandoned collective never ends."""
        return self._abandoned or (self.running is None and not self._queue)

    def most_begun(self) -> int | None:
        """Return the final number of collectives, None if callbacks may add some."""
        return None if self.callbacks.is_open() else self.made + len(self._queue)

    def may_run_on_callers_thread(self, work: Collective) -> bool:
        """Return whether it could be freed there, should it be stuck, and is not left to others."""
        return not work.in_background and (self.frees_all or self.sums_up(work))

    def sums_up(self, work: Collective) -> bool:
        """Return whether it is a sum without MPI's collectives."""
        return work.link is None and self._sums_for(work.call) is not None

    def _sums_for(self, call: Call) -> Sums | None:
        sums = self._sums
        if sums is not None and call.may_be_shared and call.counts[0] <= sums.most:
            return sums
        return None

    def queue(self, work: Collective) -> None:
        """Have ``work`` run by the progress thread or by a thread that waits for it."""
        work.prepare_to_wait()
        with self._lock:
            abandoned = self._abandoned  # since the group was found usable
            if not abandoned:
                self._queue.append(work)
        if abandoned:  # nothing runs here any more
            work.finish(work.stopped(self.failure))
            return
        # The time of a slow link passes without a core, so it is always worth hiding.
        if self.may_run_on_callers_thread(work) and work.link is None and cores_are_taken():
            self._progress.look()
        else:
            self._progress.hurry()

    def help_with(self, work: Collective) -> None:
        """Run what is queued up to ``work`` on this thread, except what other threads run."""
        while self.run(until=work):
            pass

    def hurry(self) -> None:
        """Have the progress thread begin what is queued, for a waiting thread that can't help."""
        if self._queue:
            self._progress.hurry()

    def fail(self, error: BaseException) -> None:
        """Mark the channel unusable and free every rank that is stuck in it."""
        if self.failure is None:
            self.failure = _as_communication_error(error)
        deadlines.revoke(self.comm)
        if self._arrivals is not None:
            self._arrivals.leave()

    def close(self, seconds: float) -> bool:
        """Stop the progress thread once its queue is empty; return whether it stopped."""
        if self._abandoned:
            self._close_sums()  # the stuck thread is in MPI, not in a sum
            return False  # a wait for it would only delay the end of the process
        stopped = self._progress.stop(seconds)
        if stopped and self.running is None:
            deadlines.forget(self)
            self._close_sums()
            if self._arrivals is not None:
                self._arrivals.close()
        return stopped

    def _close_sums(self) -> None:
        if self._sums is not None:
            self._sums.close()
            self._sums = None

    def run(self, work: Collective | None = None, until: Collective | None = None) -> bool:
        """Run one collective on this thread, unless another thread runs one.

        An interrupt may arrive after any call, so nothing is called between taking the turn and
        recording that it has to be given back.

        Args:
            work: it is run if nothing is queued; None: the first that is queued.
            until: run nothing once this has ended. It tells that this is not the progress thread.

        Returns:
            Whether it was run.
        """
        queued = work is None
        mine: Collective | None = None
        try:
            with self._lock:
                if self.running is None and (until is None or not until.done):
                    if queued and self._queue:
                        first = self._queue[0]
                        if until is None or self.may_run_on_callers_thread(first):
                            self.running = mine = first
                    elif not queued and not self._queue:
                        self.running = mine = work
            if mine is None:
                return False
            if until is not None:
                mine.on_callers_thread = True
            if queued:
                mine.started = time.perf_counter()
                log.restart(mine.event, mine.started)
            if not mine.done:  # it is if an interrupt has kept it from being taken out
                mine.finish(self._call_mpi(mine))
        except BaseException as interrupt:  # Ctrl-C in the few lines around the MPI call
            if mine is not None:
                mine.finish(interrupt)
            raise
        finally:
            if mine is not None:
                try:
                    if queued:
                        self._take_out(mine)
                finally:
                    self.running = None
                if self._progress.hurries:  # it has looked, and found this one running
                    self._progress.hurry()
        return True

    def _take_out(self, work: Collective) -> None:
        with self._lock:
            if self._queue and self._queue[0] is work:
                self._queue.popleft()

    def _call_mpi(self, work: Collective) -> BaseException | None:
        """Perform a collective; return why it failed, None if it succeeded."""
        if self.failure is not None:
            return work.stopped(self.failure)
        comm = self.comm
        on: Any = comm
        error: BaseException | None
        self.made += 1
        work.in_mpi = True  # from here on the watcher looks at it
        try:
            signature = work.call.signature if self.checks_calls else 0
            sums = self._sums_for(work.call)
            if sums is None or work.link is not None:  # else they meet in the sum
                self._compare_calls(work, signature)
            if self._may_open_sums and work.call.may_be_shared:
                self._may_open_sums = False
                if isinstance(self._arrivals, Arrivals):
                    self._sums = open_shared_sums(comm, self._arrivals)
                elif self._arrivals is not None:
                    self._sums = open_remote_sums(comm, self._arrivals)
                sums = self._sums_for(work.call)
            if sums is not None:
                sums.work, sums.call, sums.signature = work, work.call, signature
                on = sums
            if work.link is None:
                if sums is not None:  # it is never stuck in MPI; asleep, it can be given up
                    work.withdraw = _goes_on
                work.plan(on)
            else:
                work.link.collective(
                    work.what.removesuffix("_single"),
                    comm,
                    work.call.largest_part_bytes(work.tensors, comm.Get_size()),
                    functools.partial(work.plan, on),
                    lambda: work.reason is not None,
                )
            error = work.freed_error() if work.reason else None
        except MPI.Exception as mpi_error:
            if work.reason:
                error = work.freed_error()
            else:
                error = translate(mpi_error, work.call.describe(), comm)
        except BaseException as other:
            error = other
        finally:
            work.in_mpi = False
            if on is not comm:
                del on.work  # it would keep its tensors until the next one
        if error is not None and not isinstance(error, (MismatchError, DeliveryError)):
            self.fail(error)
        return error

    def _compare_calls(self, work: Collective, signature: int) -> None:
        """Return once all ranks have come; raise MismatchError unless their calls are equal."""
        arrivals = self._arrivals
        if arrivals is None or (isinstance(arrivals, RemoteArrivals) and not self.checks_calls):
            return
        if not arrivals.meet(work, signature, work.call):
            raise mismatch(self.comm, work.call)

    def abandon(self, work: Collective) -> None:
        """Give up a call that could not be freed: its thread stays behind in MPI."""
        deadlines.leave_mpi_unfinalized()
        error = work.freed_error()
        self.failure = self.failure or error
        with self._lock:
            self._abandoned = True
            waiting = list(self._queue)
            self._queue.clear()
        work.finish(error)
        for one in waiting:
            one.finish(one.stopped(error))


def _goes_on() -> bool:
    return False


def _as_communication_error(error: BaseException) -> CommunicationError:
    if isinstance(error, CommunicationError):
        return error
    return CommunicationError(f"{type(error).__name__}: {error}")


def _fail_in_child() -> None:
    """Make all channels unusable in a child that the program forks: it would stand in for its rank.

    It shares the memory in which the ranks meet, and MPI's connections.
    """
    for runner in deadlines.runners():
        if isinstance(runner, Channel) and runner.failure is None:
            runner.failure = CommunicationError(
                "this process was forked from a rank; only the rank itself can communicate"
            )


os.register_at_fork(after_in_child=_fail_in_child)
