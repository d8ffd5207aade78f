"""A communicator for lessons that raises errors and never blocks for ever.

:func:`world` hands out a duplicate of the world of living ranks whose blocking methods are guarded:
they keep mpi4py's names and arguments, and each has a deadline.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import advice, comm_reaper, deadlines, emulated_calls, link_emulation, peer_boards
from .base_comm import base
from .call_arguments import with_status
from .comm_events import MAKE_COMMUNICATORS, begin_call, end_call, pickled_once
from .errors import DeadlineError
from .events import log
from .matched_probe import GuardedMessage
from .mpi_errors import translate
from .requests import NON_BLOCKING, GuardedRequest
from .runtime import MPI

__all__ = ["GuardedComm", "duplicate_world", "library", "renew_world", "world"]

DEFAULT_TIMEOUT_SECONDS = 30.0

_BLOCKING = (
    *("Send", "Recv", "Ssend", "Rsend", "Bsend", "Sendrecv", "Sendrecv_replace"),
    *("send", "recv", "ssend", "bsend", "sendrecv", "Probe", "probe", "Mprobe", "mprobe"),
    *("Barrier", "barrier", "Bcast", "bcast", "Reduce", "reduce", "Allreduce", "allreduce"),
    *("Gather", "Gatherv", "gather", "Scatter", "Scatterv", "scatter"),
    *("Allgather", "Allgatherv", "allgather", "Alltoall", "Alltoallv", "Alltoallw", "alltoall"),
    *("Reduce_scatter", "Reduce_scatter_block", "Scan", "scan", "Exscan", "exscan"),
)


def library() -> str:
    """Return the running MPI library's name and version, e.g. ``"Open MPI 5.0.11"``."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


class GuardedComm(MPI.Intracomm):
    """An mpi4py communicator whose blocking calls have a deadline.

    Attributes:
        timeout: seconds that one blocking call may take (default 30).

    Blocking calls raise :class:`~torch_mpi4py.DeadlineError` when the deadline passes,
    :class:`~torch_mpi4py.RevokedError` when another rank gave up, and
    :class:`~torch_mpi4py.RankFailedError` when a rank died.
    """

    timeout: float

    def __new__(cls, comm: MPI.Intracomm | None = None) -> GuardedComm:
        self = super().__new__(cls, comm)
        self.timeout = DEFAULT_TIMEOUT_SECONDS
        return self

    def wait(self, *requests: MPI.Request) -> list[object]:
        """Wait for ``requests``, each within the deadline, and return what each received."""
        received = []
        for request in requests:
            if isinstance(request, GuardedRequest):
                received.append(request.wait())
                continue
            received.append(deadlines.call(self, "wait", self.timeout, _wait_for_request, request))
            deadlines.confirm_sent(self, "wait")
        return received

    def Improbe(self, *args: Any, **kwargs: Any) -> GuardedMessage | None:
        """Return a message that has come, None if there is none."""
        found = super().Improbe(*args, **kwargs)
        return None if found is None else GuardedMessage(found, self)

    def improbe(self, *args: Any, **kwargs: Any) -> GuardedMessage | None:
        """Return an object's message that has come, None if there is none."""
        found = super().improbe(*args, **kwargs)
        return None if found is None else GuardedMessage(found, self)


def _wait_for_request(request: MPI.Request) -> object:
    return request.wait()


def _guarded(name: str) -> Callable[..., Any]:
    plain = getattr(MPI.Intracomm, name)
    sends = "send" in name.lower()

    @functools.wraps(plain)
    def method(self: GuardedComm, *given_args: Any, **given_kwargs: Any) -> Any:
        __tracebackhide__ = True  # a learner's traceback ends in the learner's cell
        link = link_emulation.current()
        call = plain
        args: Sequence[Any] = given_args
        kwargs: Mapping[str, Any] = given_kwargs
        if link is None:
            call, args, kwargs = pickled_once(name, plain, args, kwargs)
        events = begin_call(self, name, args, kwargs, waiting=True)
        args, kwargs, status = with_status(name, args, kwargs)
        try:
            if link is None:
                result = deadlines.call(
                    self, name, self.timeout, lambda: call(self, *args, **kwargs)
                )
            else:
                on_link = emulated_calls.call_on_link
                given = (link, self, name, plain, args, kwargs)
                result = deadlines.call(self, name, self.timeout, on_link, *given)
            if sends:
                deadlines.confirm_sent(self, name)
        except BaseException as error:
            end_call(events, None, error)
            raise
        end_call(events, status)
        return GuardedMessage(result, self) if isinstance(result, MPI.Message) else result

    return method


for _name in _BLOCKING:
    if hasattr(MPI.Intracomm, _name):
        setattr(GuardedComm, _name, _guarded(_name))


def _guarded_start(name: str) -> Callable[..., Any]:
    plain = getattr(MPI.Intracomm, name)

    @functools.wraps(plain)
    def method(self: GuardedComm, *given_args: Any, **given_kwargs: Any) -> Any:
        __tracebackhide__ = True  # a learner's traceback ends in the learner's cell
        link = link_emulation.current()
        call = plain
        args: Sequence[Any] = given_args
        kwargs: Mapping[str, Any] = given_kwargs
        if link is None:
            call, args, kwargs = pickled_once(name, plain, args, kwargs)
        events = begin_call(self, name, args, kwargs, waiting=False)
        try:
            request: Any
            if link is None:
                request = GuardedRequest(call(self, *args, **kwargs), self, name)
            else:
                request = emulated_calls.start_on_link(link, self, name, plain, args, kwargs)
                if not isinstance(request, emulated_calls.HeldRequest):
                    request = GuardedRequest(request, self, name)
        except BaseException as error:
            end_call(events, None, error)
            if isinstance(error, MPI.Exception):
                raise translate(error, name, self) from error
            raise
        request.events = events
        return request

    return method


for _name in NON_BLOCKING:
    if hasattr(MPI.Intracomm, _name):
        setattr(GuardedComm, _name, _guarded_start(_name))


def _guarded_maker(name: str) -> Callable[..., Any]:
    plain = getattr(MPI.Intracomm, name)

    @functools.wraps(plain)
    def method(self: GuardedComm, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # a learner's traceback ends in the learner's cell
        events = begin_call(self, name, args, kwargs, waiting=True)
        try:
            made = deadlines.call(self, name, self.timeout, lambda: plain(self, *args, **kwargs))
        except BaseException as error:
            end_call(events, None, error)
            raise
        end_call(events, None)
        if made == MPI.COMM_NULL:  # this rank is not in the new group
            return made
        child = GuardedComm(made)
        log.name_group(child, f"{log.group_of(self).name}.{name}")
        child.timeout = self.timeout
        return child

    return method


for _name in MAKE_COMMUNICATORS:
    setattr(GuardedComm, _name, _guarded_maker(_name))


_lock = threading.Lock()
_unfinished: tuple[MPI.Intracomm, MPI.Request] | None = None
_world: GuardedComm | None = None


def duplicate_world(seconds: float) -> MPI.Intracomm:
    """Return a fresh duplicate of the world; every rank must call this.

    Raises:
        DeadlineError: if the other ranks did not call it within ``seconds``. The unfinished
            duplication is kept, and the next call on this rank goes on with it.
    """
    global _unfinished
    with _lock:
        # The base must never be revoked, so this is the one place that polls.
        fresh, request = _unfinished or base().Idup()
        _unfinished = (fresh, request)
        deadline = time.monotonic() + seconds
        pause = 1e-5
        while not _test(request):
            if time.monotonic() > deadline:
                raise DeadlineError(
                    "Timed out: the other ranks did not make their communicator within "
                    f"{seconds:g} s; all {base().Get_size()} ranks must make the call. "
                    f"{advice.START_AGAIN}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        _unfinished = None
    settle(fresh, seconds)
    comm_reaper.met()
    return fresh


def settle(fresh: MPI.Intracomm, seconds: float) -> None:
    """Return when every rank holds the communicator ``fresh``, which all have just made.

    If one had it and revoked it at once, Open MPI 5.0.11 would crash on one that is still busy
    making it.
    """
    deadlines.call(fresh, "new communicator", seconds, fresh.Barrier)


def _test(request: MPI.Request) -> bool:
    global _unfinished
    try:
        return request.Test()
    except MPI.Exception as error:
        _unfinished = None
        raise translate(error, "new communicator", base()) from error


def is_half_made() -> bool:
    """Return whether a duplication of the world was begun here and has not ended."""
    return _unfinished is not None


def forget_half_made() -> None:
    """Give up a duplication of a world that has been shrunk since."""
    global _unfinished
    _unfinished = None


def world() -> GuardedComm:
    """Return this process's guarded communicator over all ranks; every rank must call this.

    The same object is returned until :func:`renew_world` replaces it.
    """
    return _world if _world is not None else renew_world()


def current_world() -> GuardedComm | None:
    """Return the guarded communicator if this process has one already."""
    return _world


def tell_boards(comm: MPI.Intracomm, seconds: float) -> None:
    """Tell the ranks of ``comm`` where this rank's event board is; each of them must call this."""
    if peer_boards.needs_exchange():
        what, gather = "exchange of event boards", MPI.Intracomm.allgather
        peer_boards.exchange(
            deadlines.call(comm, what, seconds, gather, comm, peer_boards.address())
        )
        deadlines.call(comm, what, seconds, MPI.Intracomm.Barrier, comm)
        peer_boards.forget_path()


def renew_world(seconds: float = DEFAULT_TIMEOUT_SECONDS) -> GuardedComm:
    """Replace the guarded communicator by a fresh one, as after a deadline; on every rank.

    Messages still under way on the old one are lost.
    """
    global _world
    fresh = GuardedComm(duplicate_world(seconds))
    if _world is not None:
        log.forget(log.group_of(_world))
        comm_reaper.retire(_world)
    _world = fresh
    log.name_group(_world, "world")
    tell_boards(_world, seconds)
    return _world
