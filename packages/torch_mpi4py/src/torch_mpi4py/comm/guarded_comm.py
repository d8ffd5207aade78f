"""A communicator for lessons that raises errors and never blocks indefinitely.

:func:`world` hands out a duplicate of the world of living ranks whose blocking methods are guarded:
they keep mpi4py's names and arguments, and each has a deadline.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core import advice, base_comm, collective_counts, links, runtime
from ..core.errors import DeadlineError, RevokedError
from ..core.runtime import MPI
from ..exits import at_exit, ends
from ..faults import comm_reaper, deadlines
from ..faults.deaths import is_revoked
from ..faults.mpi_errors import translate
from ..log import peer_boards
from ..log.events import log
from .blocking_messages import CommWithBells, sleeping_call, tell_partner
from .call_arguments import is_receive, with_status
from .comm_arrivals import CommArrivals, open_comm_arrivals
from .comm_events import MAKE_COMMUNICATORS, begin_call, end_call, pickled_once
from .requests import NON_BLOCKING, GuardedMessage, GuardedRequest, RequestWithDeadline

DEFAULT_TIMEOUT_SECONDS = 30.0
_LONGEST_PAUSE = 1e-3

COLLECTIVES = (
    *("Barrier", "barrier", "Bcast", "bcast", "Reduce", "reduce", "Allreduce", "allreduce"),
    *("Gather", "Gatherv", "gather", "Scatter", "Scatterv", "scatter"),
    *("Allgather", "Allgatherv", "allgather", "Alltoall", "Alltoallv", "Alltoallw", "alltoall"),
    *("Reduce_scatter", "Reduce_scatter_block", "Scan", "scan", "Exscan", "exscan"),
)
BLOCKING = (
    *("Send", "Recv", "Ssend", "Rsend", "Bsend", "Sendrecv", "Sendrecv_replace"),
    *("send", "recv", "ssend", "bsend", "sendrecv", "Probe", "probe", "Mprobe", "mprobe"),
    *COLLECTIVES,
)


def library() -> str:
    """Return the running MPI library's name and version, e.g. ``"Open MPI 5.0.11"``."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


class GuardedComm(CommWithBells):
    """An mpi4py communicator whose blocking calls have a deadline.

    Attributes:
        timeout: seconds that one blocking call may take (default 30).
        counted: the calls in which all its ranks take part, in the same order.
        made: how many of them this rank has begun; no number (NaN) if one has failed.
        arrivals: where its ranks meet before a blocking one; None if they are not on one host.

    Blocking calls raise :class:`~torch_mpi4py.DeadlineError` when the deadline passes,
    :class:`~torch_mpi4py.RevokedError` when another rank gave up, and
    :class:`~torch_mpi4py.RankFailedError` when a rank died.
    """

    timeout: float
    counted: frozenset[str]
    made: float
    arrivals: CommArrivals | None

    def __new__(cls, comm: MPI.Intracomm | None = None) -> GuardedComm:
        self = super().__new__(cls, comm)
        self.timeout = DEFAULT_TIMEOUT_SECONDS
        self.made = 0
        self.arrivals = None
        return self

    def most_begun(self) -> float:
        """Return how many collectives this rank has begun."""
        return self.made

    @property
    def has_failed(self) -> bool:
        """Whether it was given up, so that no call on it can succeed any more."""
        return is_revoked(self) or (self.arrivals is not None and self.arrivals.failed)

    def stop_meeting(self) -> None:
        """Give the slot back; this rank makes no more collectives on this communicator."""
        if self.arrivals is not None:
            self.arrivals.close()
            self.arrivals = None

    def Free(self) -> None:
        """Free the communicator; each of its ranks must call this."""
        super().Free()
        self.stop_meeting()

    def wait(self, *requests: MPI.Request) -> list[object]:
        """Wait for ``requests``, each within the deadline, and return what each received."""
        received = []
        for request in requests:
            if isinstance(request, RequestWithDeadline):
                received.append(request.wait())
                continue
            received.append(deadlines.call(self, "wait", self.timeout, request.wait))
            deadlines.confirm_sent(self, "wait")
        return received

    def Improbe(self, *args: Any, **kwargs: Any) -> GuardedMessage | None:
        """Return a message that has arrived, None if there is none."""
        args, kwargs, status = with_status("Improbe", args, kwargs)
        found = super().Improbe(*args, **kwargs)
        return None if found is None else GuardedMessage(found, self, status)

    def improbe(self, *args: Any, **kwargs: Any) -> GuardedMessage | None:
        """Return an object's message that has come, None if there is none."""
        args, kwargs, status = with_status("improbe", args, kwargs)
        found = super().improbe(*args, **kwargs)
        return None if found is None else GuardedMessage(found, self, status)


def _guarded(name: str) -> Callable[..., Any]:
    """Return mpi4py's method ``name`` with a deadline, a log entry and errors of ours."""
    starts = name in NON_BLOCKING
    counts = name in GuardedComm.counted
    # Open MPI 5.0.11 stays in Create_group even if the communicator is revoked.
    stays = name == "Create_group"
    carry_out = deadlines.carry_out_apart if stays else deadlines.carry_out

    @functools.wraps(getattr(MPI.Intracomm, name))
    def method(self: GuardedComm, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # a learner's traceback ends in the learner's cell
        plain, args, kwargs = pickled_once(name, args, kwargs)
        events = begin_call(self, name, plain, args, kwargs, waiting=not starts)
        args, kwargs, status = with_status(plain, args, kwargs)
        link = links.current()
        function = (
            getattr(MPI.Intracomm, plain)
            if link is None
            else functools.partial(link.start if starts else link.call, plain)
        )
        call = functools.partial(function, self, *args, **kwargs)
        made: Any
        arrivals = self.arrivals
        try:
            if arrivals is not None and arrivals.failed:
                raise arrivals.stopped(name)
            if counts:
                self.made += 1
            if starts:
                made = call()
                awaited = None if link else tell_partner(self, plain, args, kwargs)
            else:
                operation = deadlines.Operation(self, name, self.timeout)
                if counts and arrivals is not None:
                    arrivals.meet(operation, self.made, args, kwargs)
                sleeping = None if link else sleeping_call(self, plain, args, kwargs)
                made = carry_out(operation, call) if sleeping is None else sleeping(operation)
                if "send" in name.lower():
                    deadlines.confirm_sent(self, name)
                elif name in COLLECTIVES:
                    deadlines.confirm_collective(self, name)
        except BaseException as error:
            if counts:
                self.made = math.nan  # it may have failed before it was begun, or not
                if arrivals is not None:
                    arrivals.lose_count()
            end_call(events, None, error)
            if isinstance(error, MPI.Exception):
                raise translate(error, name, self) from error
            raise
        if starts:
            request = GuardedRequest(made) if isinstance(made, MPI.Request) else made
            return request.started_by(self, name, events, awaited)
        end_call(events, status if is_receive(plain) else None)
        if isinstance(made, MPI.Message):
            return GuardedMessage(made, self, status)
        return _child(self, name, made) if name in MAKE_COMMUNICATORS else made

    return method


def _child(comm: GuardedComm, name: str, made: MPI.Intracomm) -> MPI.Intracomm:
    if made == MPI.COMM_NULL:  # this rank is not in the new group
        return made
    child = GuardedComm(made)
    log.name_group(child, f"{log.group_of(comm).name}.{name}")
    child.timeout = comm.timeout
    child.arrivals = open_comm_arrivals(child, child.timeout)
    return child


GuardedComm.counted = frozenset(
    {*COLLECTIVES, *MAKE_COMMUNICATORS} - {"Create_group"}
    | {name for name in NON_BLOCKING if name.removeprefix("I").capitalize() in COLLECTIVES}
)

for _name in (*BLOCKING, *NON_BLOCKING, *MAKE_COMMUNICATORS):
    if hasattr(MPI.Intracomm, _name):
        setattr(GuardedComm, _name, _guarded(_name))

_create_group = GuardedComm.Create_group


@functools.wraps(_create_group)
def _with_tag_apart(self: GuardedComm, group: MPI.Group, tag: int = 0) -> MPI.Intracomm:
    __tracebackhide__ = True
    return _create_group(self, group, base_comm.tag_apart(tag))


GuardedComm.Create_group = _with_tag_apart  # type: ignore[assignment, method-assign]


_lock = threading.Lock()
_world: GuardedComm | None = None


def duplicate_world(seconds: float) -> MPI.Intracomm:
    """Return a fresh duplicate of the world; every rank must call this.

    Raises:
        DeadlineError: if the other ranks did not call it within ``seconds``. The unfinished
            duplication is kept, and the next call on this rank goes on with it.
    """
    steps, step = collective_counts.steps, collective_counts.DUPLICATIONS
    with _lock:
        # The base must never be revoked, so this is the one place that polls.
        if base_comm.half_made is None:
            base_comm.half_made = base_comm.base().Idup()
            steps[step] += 1
        fresh, request = base_comm.half_made
        number = steps[step]
        deadline = deadlines.clock() + seconds
        members, pause = base_comm.members(), 1e-5
        while not _test(request):
            if pause >= _LONGEST_PAUSE and (gone := ends.ended_before(members, step, number)):
                raise RevokedError(f"new communicator: {gone}.")
            if deadlines.clock() > deadline:
                raise DeadlineError(
                    f"communicator: Timed out after {seconds:g} s: the other ranks did not make "
                    f"theirs; all {base_comm.base().Get_size()} ranks must make the call. "
                    f"{advice.START_AGAIN}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        base_comm.half_made = None
        steps[collective_counts.SETTLED] = number
    with ends.awaiting(fresh, collective_counts.SETTLED, number):
        settle(fresh, seconds)
    if runtime.news_comm is None and base_comm.base() == MPI.COMM_WORLD:
        news = deadlines.call(fresh, "new communicator", seconds, MPI.Intracomm.Dup, fresh)
        runtime.news_comm = news
    comm_reaper.met()
    return fresh


def settle(fresh: MPI.Intracomm, seconds: float) -> None:
    """Return when every rank holds the communicator ``fresh``, which all have just made.

    If one rank had it and revoked it at once, Open MPI 5.0.11 would crash on a rank that is still
    making it. The ranks also agree on a number for it: see :mod:`.collective_counts`.
    """
    run = functools.partial(deadlines.call, fresh, "new communicator", seconds)
    collective_counts.agree_on_identity(fresh, run)


def _test(request: MPI.Request) -> bool:
    try:
        return request.Test()
    except MPI.Exception as error:
        base_comm.half_made = None
        raise translate(error, "new communicator", base_comm.base()) from error


_given_up: list[tuple[MPI.Intracomm, MPI.Request]] = []


def forget_half_made() -> None:
    """Give up a duplication of a world that has been shrunk since."""
    if base_comm.half_made is not None:
        # MPI writes to the first object of the pair whenever the duplication ends, if ever.
        _given_up.append(base_comm.half_made)
    base_comm.half_made = None


def world() -> GuardedComm:
    """Return this process's guarded communicator over all ranks; every rank must call this.

    The same object is returned until :func:`renew_world` replaces it.
    """
    if _world is None:
        at_exit.install()  # also for programs that have imported only this module of the package
        return renew_world()
    return _world


def current_world() -> GuardedComm | None:
    """Return the guarded communicator if this process has one already."""
    return _world


def introduce(comm: MPI.Intracomm, seconds: float) -> None:
    """Tell the ranks of ``comm`` where this one's event board is; each must call this."""
    if peer_boards.directory is None:
        what, own = "exchange of event boards", peer_boards.address()
        peer_boards.exchange(
            deadlines.call(comm, what, seconds, MPI.Intracomm.allgather, comm, own)
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
        collective_counts.close(_world, _world.made)
        _world.stop_meeting()
        comm_reaper.retire(_world)
    _world = fresh
    collective_counts.count(_world, _world)
    log.name_group(_world, "world")
    introduce(_world, seconds)
    _world.arrivals = open_comm_arrivals(_world, seconds)
    return _world
