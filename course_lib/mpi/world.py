"""The one idea: a communicator for lessons that raises errors and never blocks for ever.

:func:`world` hands out a duplicate of ``MPI.COMM_WORLD`` whose blocking methods are guarded:
they keep mpi4py's names and arguments, and each has a deadline.
"""

from __future__ import annotations

import functools
import threading
import time

from . import guard
from .errors import START_AGAIN, DeadlineError, translate
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

_MAKE_COMMUNICATORS = ["Dup", "Split", "Split_type", "Create", "Create_group"]


def library() -> str:
    """Return the running MPI library's name and version, e.g. ``"Open MPI 5.0.11"``."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


class GuardedComm(MPI.Intracomm):
    """An mpi4py communicator whose blocking calls have a deadline.

    Attributes:
        timeout: seconds that one blocking call may take (default 30).

    Blocking calls raise :class:`~course_lib.mpi.DeadlineError` when the deadline passes,
    :class:`~course_lib.mpi.RevokedError` when another rank gave up, and
    :class:`~course_lib.mpi.RankFailedError` when a rank died.
    """

    def __new__(cls, comm: MPI.Intracomm | None = None) -> GuardedComm:
        self = super().__new__(cls, comm)
        self.timeout = DEFAULT_TIMEOUT_SECONDS
        return self

    def wait(self, *requests: MPI.Request) -> list[object]:
        """Wait for ``requests``, each within the deadline, and return what each received."""
        received = []
        for request in requests:
            received.append(guard.call(self, "wait", self.timeout, _wait_for_request, request))
            guard.confirm_sent(self, "wait")
        return received


def _wait_for_request(request: MPI.Request) -> object:
    return request.wait()


def _guarded(name: str):
    plain = getattr(MPI.Intracomm, name)
    sends = "send" in name.lower()

    @functools.wraps(plain)
    def method(self, *args, **kwargs):
        __tracebackhide__ = True  # a learner's traceback ends in the learner's cell
        result = guard.call(self, name, self.timeout, lambda: plain(self, *args, **kwargs))
        if sends:
            guard.confirm_sent(self, name)
        return result

    return method


for _name in _BLOCKING:
    if hasattr(MPI.Intracomm, _name):
        setattr(GuardedComm, _name, _guarded(_name))


def _guarded_start(name: str):
    plain = getattr(MPI.Intracomm, name)

    @functools.wraps(plain)
    def method(self, *args, **kwargs):
        __tracebackhide__ = True  # a learner's traceback ends in the learner's cell
        try:
            return GuardedRequest(plain(self, *args, **kwargs), self, name)
        except MPI.Exception as error:
            raise translate(error, name, self) from error

    return method


for _name in NON_BLOCKING:
    if hasattr(MPI.Intracomm, _name):
        setattr(GuardedComm, _name, _guarded_start(_name))


def _guarded_maker(name: str):
    plain = getattr(MPI.Intracomm, name)

    @functools.wraps(plain)
    def method(self, *args, **kwargs):
        __tracebackhide__ = True  # a learner's traceback ends in the learner's cell
        made = guard.call(self, name, self.timeout, lambda: plain(self, *args, **kwargs))
        if made == MPI.COMM_NULL:  # this rank is not in the new group
            return made
        child = GuardedComm(made)
        child.timeout = self.timeout
        return child

    return method


for _name in _MAKE_COMMUNICATORS:
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
        # COMM_WORLD must never be revoked, so this is the one place that polls.
        fresh, request = _unfinished or MPI.COMM_WORLD.Idup()
        _unfinished = (fresh, request)
        deadline = time.monotonic() + seconds
        pause = 1e-5
        while not _test(request):
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the other ranks did not make their communicator within {seconds:g} s; "
                    f"all {MPI.COMM_WORLD.Get_size()} ranks must make the call. {START_AGAIN}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        _unfinished = None
    return fresh


def _test(request: MPI.Request) -> bool:
    global _unfinished
    try:
        return request.Test()
    except MPI.Exception as error:
        _unfinished = None
        raise translate(error, "new communicator", MPI.COMM_WORLD) from error


def world() -> GuardedComm:
    """Return this process's guarded communicator over all ranks; every rank must call this.

    The same object is returned until :func:`renew_world` replaces it.
    """
    return _world if _world is not None else renew_world()


def renew_world(seconds: float = DEFAULT_TIMEOUT_SECONDS) -> GuardedComm:
    """Replace the guarded communicator by a fresh one, as after a deadline; on every rank.

    Messages still under way on the old one are lost.
    """
    global _world
    _world = GuardedComm(duplicate_world(seconds))
    return _world
