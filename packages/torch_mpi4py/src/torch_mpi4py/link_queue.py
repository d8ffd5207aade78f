"""Keep messages back until their time has come, and then let them leave in their order.

The times are :mod:`torch_mpi4py.link_emulation`'s. A message holds its sender's link to the
receiver until it leaves, so that none overtakes another; to each process there is one link,
whatever the group. A message leaves by the thread that waits for it or, if none does, by a
thread of this module, the courier.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable

from . import deadlines
from .runtime import MPI

__all__ = [
    "Departure",
    "HeldSend",
    "end_courier",
    "let_all_go",
    "port_in",
    "see_off",
    "sleep_until",
]

_SLICE_SECONDS = 0.05  # how long a wait goes on before it looks whether it was revoked
_PUSH_SECONDS = 0.0005
_clock = time.perf_counter

_change = threading.Condition()
_free_at: dict[int, float] = {}  # world rank -> when this process' link to it is free
_last: dict[int, Departure] = {}  # world rank -> the latest message to it
_port_out_free_at = _port_in_free_at = 0.0
_queue: list[HeldSend] = []  # a heap
_order = itertools.count()
_courier: threading.Thread | None = None
_ends = False


class Departure:
    """A message's place on the link to its receiver.

    Attributes:
        due: when it leaves, in seconds of ``time.perf_counter``.
        gone: set once it may no longer be overtaken by the next one to the same process.
    """

    def __init__(self, comm: MPI.Comm, dest: int, seconds: float, one_port: bool) -> None:
        """Take a place that is ``seconds`` long on the link to rank ``dest`` of ``comm``.

        Args:
            one_port: whether it must also wait for messages to other processes.
        """
        self.comm = comm
        self.gone = threading.Event()
        peer = _world_rank(comm, dest)
        with _change:
            self._take_place(peer, seconds, one_port)

    def _take_place(self, peer: int, seconds: float, one_port: bool) -> None:
        global _port_out_free_at
        begin = max(_clock(), _free_at.get(peer, 0.0), _port_out_free_at if one_port else 0.0)
        self.due = _free_at[peer] = _port_out_free_at = begin + seconds
        self._previous = _last.get(peer)
        _last[peer] = self

    def wait_for_turn(self) -> None:
        """Return when the message may leave; the caller then sends it.

        Raises:
            MPI.Exception: if the communicator was revoked meanwhile.
        """
        try:
            sleep_until(self.due, self.comm)
            self._wait_for_previous()
        finally:
            self._previous = None
            self.gone.set()

    def _wait_for_previous(self) -> None:
        if self._previous is not None:
            self._previous.wait_until_gone(self.comm)

    def wait_until_gone(self, comm: MPI.Comm) -> None:
        """Return when the message has left.

        Raises:
            MPI.Exception: if ``comm`` was revoked meanwhile.
        """
        while not self.gone.wait(_SLICE_SECONDS):
            _raise_if_revoked(comm)


class HeldSend(Departure):
    """A send that is kept back, with the methods of its ``MPI.Request``."""

    def __init__(
        self,
        comm: MPI.Comm,
        dest: int,
        seconds: float,
        one_port: bool,
        start: Callable[[], MPI.Request],
    ) -> None:
        """Take a place as :class:`Departure` does; ``start`` sends when the time has come."""
        self._start: Callable[[], MPI.Request] | None = start
        self._request: MPI.Request | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # of the request, once there is one
        self._is_waited_for = False
        self._has_sender = False
        super().__init__(comm, dest, seconds, one_port)

    def _take_place(self, peer: int, seconds: float, one_port: bool) -> None:
        super()._take_place(peer, seconds, one_port)
        self._number = next(_order)  # in the order of the link
        self._give_to_courier()

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the message has arrived and its memory may be used again."""
        if self.may_send():
            try:
                sleep_until(self.due, self.comm)
            except BaseException:
                with _change:
                    self._has_sender = False
                    self._give_to_courier()
                raise
            self.leave()
        self.wait_until_gone(self.comm)
        with self._lock:
            self._is_waited_for = True  # the courier need not care for it any more
        return self._started().Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether that is so already."""
        if not self.gone.is_set():
            return False
        with self._lock:
            return self._started().Test(status)

    def Cancel(self) -> None:
        """Ask MPI to cancel the message, once it has left."""
        self.wait_until_gone(self.comm)
        with self._lock:
            if self:  # one that has ended cannot be cancelled any more
                self._started().Cancel()

    def __lt__(self, other: HeldSend) -> bool:
        return (self.due, self._number) < (other.due, other._number)

    def __bool__(self) -> bool:
        if self._error is not None:
            return False
        return self._request is None or bool(self._request)

    def _started(self) -> MPI.Request:
        if self._error is not None:
            raise self._error
        assert self._request is not None
        return self._request

    def _give_to_courier(self) -> None:
        """Put it on the queue, at most a second time; the caller holds ``_change``."""
        heapq.heappush(_queue, self)
        _start_courier()
        _change.notify()

    def may_send(self) -> bool:
        """Return whether the caller is the one who is to send it; only one is told so."""
        with _change:
            first, self._has_sender = not self._has_sender, True
        return first

    def leave(self) -> None:
        """Start the real message, whose time has come."""
        assert self._start is not None
        try:
            self._wait_for_previous()
            _raise_if_revoked(self.comm)  # else a short one may seem to have been sent
            self._request = self._start()
        except BaseException as error:  # raised on the thread that waits for the message
            self._error = error
        self._start = self._previous = None
        self.gone.set()

    def push(self) -> bool:
        """Help a long message on its way; return whether it needs more of that."""
        with self._lock:
            if self._is_waited_for or self._error is not None:
                return False
            try:
                return not self._started().Test()
            except MPI.Exception as error:
                self._error = error
                return False


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


def let_all_go() -> None:
    """Let all messages that the courier has leave at once, in their order."""
    global _port_out_free_at
    with _change:
        for held in _queue:
            held.due = 0.0
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
    group = comm.Get_remote_group() if isinstance(comm, MPI.Intercomm) else comm.Get_group()
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
    global _ends
    with _change:
        _ends = True
        _change.notify()
    if _courier is not None:
        _courier.join(seconds)


def _carry() -> None:
    """Start the messages that nobody waits for, and help long ones on their way.

    MPI moves a long message only while it is called; a network card needs no such help.
    """
    on_the_way: list[HeldSend] = []
    while True:
        with _change:
            if not (_ready() or _ends):
                _change.wait(_idle_seconds(bool(on_the_way)))
            leaving: list[HeldSend] = []
            while _ready():
                leaving.append(heapq.heappop(_queue))
        if _ends or MPI.Is_finalized():
            return
        for held in leaving:
            if held.may_send():
                held.leave()
                on_the_way.append(held)
        on_the_way = [held for held in on_the_way if held.push()]


def _ready() -> bool:
    return bool(_queue) and _queue[0].due <= _clock()


def _idle_seconds(pushes: bool) -> float | None:
    waits = [_PUSH_SECONDS] if pushes else []
    if _queue:
        waits.append(_queue[0].due - _clock())
    return max(min(waits), 0.0) if waits else None
