"""A message leaves when its time has come, by who waits for it or by a courier.

The times are :mod:`torch_mpi4py.link_emulation`'s. A message holds its sender's link to the
receiver until it leaves, so that none overtakes another; to each process there is one link,
whatever the group.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable

from . import deadlines
from .runtime import MPI

__all__ = [
    "Departure",
    "HeldRequest",
    "LateRequest",
    "Promise",
    "end_courier",
    "port_in",
    "see_off",
    "send_at_once",
    "sleep_until",
]

_SLICE_SECONDS = 0.05  # how long a wait goes on before it looks whether it was revoked
_PUSH_SECONDS = 0.0005
_clock = time.perf_counter

_change = threading.Condition()
_free_at: dict[int, float] = {}  # world rank -> when this process' link to it is free
_last: dict[int, Departure] = {}  # world rank -> the latest message to it
_port_out_free_at = _port_in_free_at = 0.0
_queue: list[tuple[float, int, Departure]] = []
_order = itertools.count()
_on_the_way: list[Departure] = []
_courier: threading.Thread | None = None
_ends = threading.Event()


class Departure:
    """One message that is kept back.

    Attributes:
        due: when it leaves, in seconds of ``time.perf_counter``.
        gone: set once it may no longer be overtaken by the next one to the same process.
        ended: called by the courier when the real message has ended, or failed.
    """

    __slots__ = (
        *("comm", "due", "ended", "error", "gone", "lock"),
        *("number", "previous", "request", "start", "taken"),
    )

    def __init__(
        self,
        comm: MPI.Comm,
        dest: int,
        seconds: float,
        one_port: bool,
        start: Callable[[], MPI.Request] | None,
    ) -> None:
        """Take the message's place, ``seconds`` long, on the link to rank ``dest`` of ``comm``.

        Args:
            one_port: whether it must also wait for messages to other processes.
            start: starts the real message, called when its time has come; None for a caller
                that waits by :meth:`wait_for_turn` and then sends it.
        """
        global _port_out_free_at
        self._set(comm, start)
        peer = _world_rank(comm, dest)
        with _change:
            begin = max(_clock(), _free_at.get(peer, 0.0), _port_out_free_at if one_port else 0.0)
            self.due = _free_at[peer] = _port_out_free_at = begin + seconds
            self.previous = _last.get(peer)
            _last[peer] = self
            # Numbers follow the link's order, and no later message is on the queue before this one.
            self.number = next(_order)
            if start is not None:
                self._put_on_the_queue()

    @classmethod
    def late(cls, comm: MPI.Comm, request: MPI.Request, due: float) -> Departure:
        """Return one that is nobody's message: ``request``, started, is to end at ``due``."""
        self = cls.__new__(cls)
        self._set(comm, lambda: request)
        self.due, self.request, self.previous, self.number = due, request, None, next(_order)
        self._put_on_the_queue()
        return self

    def _set(self, comm: MPI.Comm, start: Callable[[], MPI.Request] | None) -> None:
        self.comm = comm
        self.start = start
        self.gone = threading.Event()
        self.lock = threading.Lock()
        self.request: MPI.Request | None = None
        self.error: BaseException | None = None
        self.ended: Callable[[], None] | None = None
        self.taken = False

    def wait_for_turn(self) -> None:
        """Return when the message may leave.

        Raises:
            MPI.Exception: if the communicator was revoked meanwhile.
        """
        try:
            sleep_until(self.due, self.comm)
            self._wait_for_previous()
        finally:
            self.previous = None
            self.gone.set()

    def wait_until_gone(self) -> MPI.Request:
        """Return the real request once there is one; the courier need not care any more."""
        if self._take_off_the_queue():
            try:
                sleep_until(self.due, self.comm)
            except BaseException:
                self._put_on_the_queue()
                raise
            self.leave()
        while not self.gone.wait(_SLICE_SECONDS):
            _raise_if_revoked(self.comm)
        return self.take()

    def take(self) -> MPI.Request:
        """Return the request of a message that has left; nobody else may use it from now on."""
        with self.lock:
            self.taken = True
            if self.error is not None:
                raise self.error
            return self.request

    def leave(self) -> None:
        """Start the real message, whose time has come."""
        try:
            self._wait_for_previous()
            _raise_if_revoked(self.comm)  # else a short one may seem to have been sent
            self.request = self.start()
        except BaseException as error:  # raised on the thread that waits for the message
            self.error = error
        self.start = self.previous = None
        self.gone.set()

    def push(self) -> bool:
        """Help a long message on its way; return whether it needs more of that."""
        with self.lock:
            if self.taken or self.error is not None:
                return False
            try:
                return not self.request.Test()
            except MPI.Exception as error:
                self.error = error
                return False

    def carry(self) -> bool:
        """Do what the courier does for it once it has left; return whether to come again."""
        if self.push():
            return True
        if self.ended is not None and not self.taken:
            self.ended()
        return False

    def test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the real request, which there must be, has ended."""
        with self.lock:
            if self.error is not None:
                raise self.error
            return self.request.Test(status)

    def has_failed(self) -> bool:
        """Return whether nothing can be sent on its communicator any more."""
        try:
            return deadlines.is_revoked(self.comm)
        except MPI.Exception:  # freed
            return True

    def _put_on_the_queue(self) -> None:
        with _change:
            heapq.heappush(_queue, (self.due, self.number, self))
            _start_courier()
            _change.notify()

    def _take_off_the_queue(self) -> bool:
        with _change:
            kept = [entry for entry in _queue if entry[2] is not self]
            found = len(kept) < len(_queue)
            if found:
                _queue[:] = kept
                heapq.heapify(_queue)
        return found

    def _wait_for_previous(self) -> None:
        previous = self.previous
        while previous is not None and not previous.gone.wait(_SLICE_SECONDS):
            _raise_if_revoked(self.comm)


class HeldRequest:
    """Stands for the request of a message that is kept back; same methods as ``MPI.Request``."""

    def __init__(self, departure: Departure) -> None:
        self.departure = departure
        self._request: MPI.Request | None = None

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the message has arrived and its memory may be used again."""
        if self._request is None:
            self._request = self.departure.wait_until_gone()
        return self._request.Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether that is so already."""
        return self.departure.gone.is_set() and self.departure.test(status)

    def Cancel(self) -> None:
        """Ask MPI to cancel the message, once it has left."""
        while not self.departure.gone.wait(_SLICE_SECONDS):
            _raise_if_revoked(self.departure.comm)
        with self.departure.lock:
            if self:  # one that has ended cannot be cancelled any more
                self.departure.request.Cancel()

    def __bool__(self) -> bool:
        request = self.departure.request
        return request is None or bool(request)


class LateRequest(HeldRequest):
    """Stands for a started request that must not end before its time (:meth:`Departure.late`)."""

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until both the request has ended and its time has come."""
        ended = self.departure.take().Wait(status)
        sleep_until(self.departure.due, self.departure.comm)
        return ended

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether that is so already."""
        return self.departure.test(status) and _clock() >= self.departure.due

    def Cancel(self) -> None:
        """Ask MPI to cancel the request."""
        with self.departure.lock:
            if self:
                self.departure.request.Cancel()


class Promise:
    """A request for MPI's own waits and tests, which ends with a message that is kept back.

    Attributes:
        request: the request; whoever waits for it in MPI relies on the courier.
    """

    def __init__(self, departure: Departure) -> None:
        def query(status: MPI.Status) -> None:
            if departure.error is not None:  # mpi4py prints it, and hands MPI its code
                raise departure.error.with_traceback(None)

        self.request = MPI.Grequest.Start(query)
        self._open = [self.request]
        with _change:
            departure.ended = self.end
            _change.notify()
        if departure.gone.is_set() and not departure.carry():  # the courier came before us
            self.end()

    def end(self) -> None:
        """Let the request end; a second call changes nothing."""
        with contextlib.suppress(IndexError):  # a pop is atomic: one thread completes it
            self._open.pop().Complete()


def port_in(seconds: float) -> float:
    """Return when a message that has come and takes ``seconds`` is in, through the one port."""
    global _port_in_free_at
    with _change:
        _port_in_free_at = max(_clock(), _port_in_free_at + seconds)
        return _port_in_free_at


def see_off(departures: Iterable[Departure]) -> None:
    """Return when all have left."""
    for departure in list(departures):
        while not departure.gone.wait(_SLICE_SECONDS):
            pass


def send_at_once(departures: Iterable[Departure]) -> None:
    """Let go of messages that are still kept back, and of all that were before them."""
    global _port_out_free_at
    with _change:
        held = {id(departure) for departure in departures if not departure.gone.is_set()}
        latest = max((n for _, n, departure in _queue if id(departure) in held), default=-1)
        if latest >= 0:
            _queue[:] = [(0.0 if n <= latest else due, n, d) for due, n, d in _queue]
            heapq.heapify(_queue)
            _free_at.clear()
            _port_out_free_at = 0.0
            _change.notify()


def sleep_until(due: float, comm: MPI.Comm, given_up: Callable[[], bool] = lambda: False) -> None:
    """Sleep until ``due``; return early if ``given_up()``.

    Raises:
        MPI.Exception: if ``comm`` was revoked meanwhile.
    """
    while (remaining := due - _clock()) > 0 and not given_up():
        time.sleep(min(remaining, _SLICE_SECONDS))
        if remaining > _SLICE_SECONDS:
            _raise_if_revoked(comm)


def _raise_if_revoked(comm: MPI.Comm) -> None:
    if deadlines.has_ulfm() and comm.Is_revoked():
        raise MPI.Exception(MPI.ERR_REVOKED)


_world_group = MPI.COMM_WORLD.Get_group()


def _world_rank(comm: MPI.Comm, rank: int) -> int:
    group = comm.Get_remote_group() if comm.Is_inter() else comm.Get_group()
    (world_rank,) = MPI.Group.Translate_ranks(group, [rank], _world_group)
    group.Free()
    return world_rank


# --- the courier --------------------------------------------------------------------------


def _start_courier() -> None:
    global _courier
    if _courier is None:
        _courier = threading.Thread(target=_carry, name="torch_mpi4py courier", daemon=True)
        _courier.start()


def end_courier(seconds: float) -> None:
    """Have the courier stop, as it must before MPI_Finalize; wait for it at most ``seconds``."""
    with _change:
        _ends.set()
        _change.notify()
    if _courier is not None:
        _courier.join(seconds)


def _carry() -> None:
    """Start the messages that nobody waits for, and help long ones on their way.

    MPI moves a long message only while it is called; a network card needs no such help.
    """
    while True:
        with _change:
            if not (_ready() or _ends.is_set()):
                _change.wait(_idle_seconds())
            _bring_forward_what_has_failed()
            leaving = []
            while _ready():
                leaving.append(heapq.heappop(_queue)[2])
        if _ends.is_set() or MPI.Is_finalized():
            return
        for departure in leaving:
            departure.leave()
        _on_the_way[:] = [one for one in (*_on_the_way, *leaving) if one.carry()]


def _ready() -> bool:
    return bool(_queue) and _queue[0][0] <= _clock()


def _idle_seconds() -> float | None:
    waits = [_PUSH_SECONDS] if _on_the_way else []
    if _queue:
        waits.append(_queue[0][0] - _clock())
        if any(departure.ended is not None for _, _, departure in _queue):
            waits.append(_SLICE_SECONDS)  # someone may wait in MPI, where no deadline is known
    return max(min(waits), 0.0) if waits else None


def _bring_forward_what_has_failed() -> None:
    """Have fail at once what could only fail when its time has come."""
    global _port_out_free_at
    failed = {n for _, n, one in _queue if one.ended is not None and one.has_failed()}
    if failed:
        _queue[:] = [(0.0 if n in failed else due, n, one) for due, n, one in _queue]
        heapq.heapify(_queue)
        _free_at.clear()
        _port_out_free_at = 0.0
