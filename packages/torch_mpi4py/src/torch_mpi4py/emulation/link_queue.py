"""Hold messages until their time has come, and then release them in order.

The times are :mod:`torch_mpi4py.emulation.link_emulation`'s. There is one link to each process,
whatever the group. One thread, the courier, sends all held messages, so none overtakes another.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable

from ..core import links
from ..core.runtime import MPI
from ..faults.deaths import is_revoked

_SLICE_SECONDS = 0.05  # how long a wait goes on before it checks for a revocation
_PUSH_SECONDS = 0.0005
_clock = time.perf_counter

_change = threading.Condition()
_free_at: dict[int, float] = {}  # world rank -> when this process' link to it is free
_port_out_free_at = _port_in_free_at = 0.0
# A heap, sorted by departure time and order.
_queue: list[tuple[float, int, HeldSend]] = links.held
_order = itertools.count()
_courier: threading.Thread | None = None
_ends = False


class HeldSend:
    """A delayed send, with the methods of its ``MPI.Request``.

    Attributes:
        gone: set once it has left, or has failed to leave.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        dest: int,
        seconds: float,
        one_port: bool,
        start: Callable[[], MPI.Request],
    ) -> None:
        """Reserve ``seconds`` on the link to rank ``dest`` of ``comm``.

        Args:
            one_port: whether it must also wait for messages to other processes.
            start: sends it when its time has come.
        """
        global _port_out_free_at
        self.comm = comm
        self.gone = threading.Event()
        self._start: Callable[[], MPI.Request] | None = start
        self._request: MPI.Request | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # of the request, once there is one
        self._is_waited_for = False
        peer = _world_rank(comm, dest)
        with _change:
            begin = max(_clock(), _free_at.get(peer, 0.0), _port_out_free_at if one_port else 0.0)
            due = _free_at[peer] = _port_out_free_at = begin + seconds
            heapq.heappush(_queue, (due, next(_order), self))
            _start_courier()
            _change.notify()

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the message has arrived and its memory may be used again.

        Raises:
            MPI.Exception: if the communicator was revoked meanwhile.
        """
        while not self.gone.wait(_SLICE_SECONDS):
            _raise_if_revoked(self.comm)
        with self._lock:
            self._is_waited_for = True  # the courier can ignore it from now on
        return self._started().Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether that is so already."""
        if not self.gone.is_set():
            return False
        with self._lock:
            return self._started().Test(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return the same, and leave the request as it is."""
        if not self.gone.is_set():
            return False
        with self._lock:
            return self._started().Get_status(status)

    def __bool__(self) -> bool:
        if self._error is not None:
            return False
        return self._request is None or bool(self._request)

    def _started(self) -> MPI.Request:
        if self._error is not None:
            raise self._error
        assert self._request is not None
        return self._request

    def leave(self) -> None:
        """Start the real message, whose time has come."""
        assert self._start is not None
        try:
            _raise_if_revoked(self.comm)  # else a short one may seem to have been sent
            self._request = self._start()
        except BaseException as error:  # raised on the thread that waits for the message
            self._error = error
        self._start = None
        self.gone.set()

    def push(self) -> bool:
        """Help a long message to progress; return whether it needs more help."""
        with self._lock:
            if self._is_waited_for or self._error is not None:
                return False
            try:
                return not self._started().Test()
            except MPI.Exception as error:
                self._error = error
                return False


def port_in(seconds: float) -> float:
    """Return the time at which a message of ``seconds`` has come through the one port."""
    global _port_in_free_at
    with _change:
        _port_in_free_at = max(_clock(), _port_in_free_at + seconds)
        return _port_in_free_at


def see_off(messages: Iterable[HeldSend]) -> None:
    """Return when all have left."""
    for message in list(messages):
        while not message.gone.wait(_SLICE_SECONDS):
            pass


def let_all_go() -> None:
    """Let all held messages leave at once, in order."""
    global _port_out_free_at
    with _change:
        _queue[:] = [(0.0, number, held) for _, number, held in _queue]
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
    if is_revoked(comm):
        raise MPI.Exception(MPI.ERR_REVOKED)


_world_group = MPI.COMM_WORLD.Get_group()


def _world_rank(comm: MPI.Comm, rank: int) -> int:
    group = comm.Get_group()
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


links.ends.append(end_courier)


def _carry() -> None:
    """Start the messages whose time has come, and help long ones to progress.

    MPI moves a long message only while it is called; a network card needs no such help.
    """
    on_the_way: list[HeldSend] = []
    while True:
        with _change:
            if not (_ready() or _ends):
                _change.wait(_idle_seconds(bool(on_the_way)))
            leaving: list[HeldSend] = []
            while _ready():
                leaving.append(heapq.heappop(_queue)[2])
        if _ends or MPI.Is_finalized():
            return
        for held in leaving:
            held.leave()
        on_the_way = [held for held in on_the_way + leaving if held.push()]


def _ready() -> bool:
    return bool(_queue) and _queue[0][0] <= _clock()


def _idle_seconds(pushes: bool) -> float | None:
    waits = [_PUSH_SECONDS] if pushes else []
    if _queue:
        waits.append(_queue[0][0] - _clock())
    return max(min(waits), 0.0) if waits else None
