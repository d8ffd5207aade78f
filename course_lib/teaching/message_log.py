"""Write down every message of a rank, so that a check can judge a method.

:class:`LoggedComm` passes every call on to a real mpi4py communicator and appends a
:class:`LoggedCall` to its log. :func:`observe` runs a learner's function on every rank with such
a communicator and gives every rank the same :class:`Observation`: what each rank returned or
raised, and every message of every rank. :meth:`Observation.happens_before` orders calls of
different ranks by their messages alone (Lamport 1978), never by clocks, so that a verdict does
not depend on how fast the machine is. :mod:`.distributed_log` does the same for
``torch.distributed``.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from torch_mpi4py import MPI, DeadlineError, GuardedComm, RevokedError
from torch_mpi4py.call_arguments import (
    arguments_of,
    bytes_of,
    bytes_of_object,
    is_accepted,
    is_receive,
    is_send,
    sent_in,
    with_status,
)

__all__ = [
    "COLLECTIVES",
    "LoggedCall",
    "LoggedComm",
    "Observation",
    "attempt",
    "observe",
    "portable",
    "tell_all",
]

PROBES = ("probe", "Probe")
COLLECTIVES = {
    *("barrier", "bcast", "scatter", "scatterv", "gather", "gatherv", "allgather", "allgatherv"),
    *("reduce", "allreduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan"),
    *("alltoall", "alltoallv", "alltoallw"),
}


@dataclass
class LoggedCall:
    """One call of one rank.

    Attributes:
        kind: "send", "recv", "probe", "collective", "mark", or "batch" of several messages.
        call: the function's or method's name, e.g. "Isend".
        peer: the destination, or the rank that the message came from; None: not known, or a
            receive from any source that nobody answered.
        tag: the message's tag.
        nbytes: bytes of this rank's own data.
        any_source: whether a receive named no source.
        content: what a pickled call of mpi4py carried, or the numbers of a short tensor.
        finished: False: the rank was still in this call when the deadline passed.
        waited: False: a non-blocking call whose request was never waited for.
        on_group: whether a call of torch.distributed was on the group that is observed.
        rank: who called, where :mod:`.distributed_log` wrote it.
        label: what the message is called in pictures.
        start: when the call began, in seconds of a clock that all processes of a machine share.
        end: when it returned; None if it never did.
    """

    kind: str
    call: str
    peer: int | None = None
    tag: int | None = None
    nbytes: int | None = None
    any_source: bool = False
    content: object = None
    finished: bool = False
    waited: bool = True
    on_group: bool = True
    rank: int | None = None
    label: str = ""
    start: float = 0.0
    end: float | None = None


@dataclass
class Observation:
    """What happened on every rank: index r of each list is rank r's."""

    results: list
    errors: list[BaseException | None]
    logs: list[list[LoggedCall]]

    @property
    def hung(self) -> bool:
        return any(isinstance(error, (DeadlineError, RevokedError)) for error in self.errors)

    def own_error(self) -> tuple[int, BaseException] | None:
        """Return the first rank that failed by itself, not because another kept it waiting."""
        for rank, error in enumerate(self.errors):
            if error is not None and not isinstance(error, (DeadlineError, RevokedError)):
                return rank, error
        return None

    def stuck(self) -> dict[int, LoggedCall]:
        """Return the call that each rank was still in when the deadline passed."""
        unfinished = {
            rank: next((event for event in log if not event.finished), None)
            for rank, log in enumerate(self.logs)
            if self.errors[rank] is not None
        }
        return {rank: event for rank, event in unfinished.items() if event is not None}

    def events(self, kind: str) -> list[tuple[int, LoggedCall]]:
        """Return ``(rank, event)`` for all events of a kind, in rank order."""
        return [
            (r, event) for r, log in enumerate(self.logs) for event in log if event.kind == kind
        ]

    def sent(self) -> list[tuple[int, int]]:
        """Return ``(source, dest)`` of every message sent."""
        return [(rank, event.peer) for rank, event in self.events("send")]

    def happens_before(self, first: tuple[int, int], then: tuple[int, int]) -> bool:
        """Whether messages force event ``first``, ``(rank, index)``, to come before ``then``."""
        arrivals = self._arrivals()
        seen, queue = set(), deque([first])
        while queue:
            rank, index = queue.popleft()
            if (rank, index) == then:
                return True
            if (rank, index) in seen or index >= len(self.logs[rank]):
                continue
            seen.add((rank, index))
            queue.append((rank, index + 1))
            queue.extend(arrivals.get((rank, index), ()))
        return False

    def _arrivals(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Join each send to its receive: messages of one pair and tag never overtake each other."""
        sends, receives = defaultdict(list), defaultdict(list)
        for rank, log in enumerate(self.logs):
            for index, event in enumerate(log):
                if event.kind == "send":
                    sends[rank, event.peer, event.tag].append((rank, index))
                elif event.kind == "recv" and event.finished:
                    receives[event.peer, rank, event.tag].append((rank, index))
        return {
            send: [receive]
            for channel, sent in sends.items()
            for send, receive in zip(sent, receives[channel], strict=False)
        }


class LoggedRequest(MPI.Request):
    """A request whose ``wait`` has the deadline of its communicator, and is written down."""

    def __new__(cls, request: MPI.Request, comm: GuardedComm, event: LoggedCall) -> LoggedRequest:
        self = super().__new__(cls, request)
        self.comm, self.event = comm, event
        return self

    def wait(self, status: MPI.Status | None = None) -> object:
        self.event.finished = False
        answer = self.comm.wait(_PlainWait(self, status))[0]
        self.event.finished = True
        return answer

    def Wait(self, status: MPI.Status | None = None) -> bool:
        self.wait(status)
        return True


@dataclass
class _PlainWait:
    """What ``GuardedComm.wait`` is to call: mpi4py's own wait, with its status."""

    request: LoggedRequest
    status: MPI.Status | None

    def wait(self) -> object:
        return MPI.Request.wait(self.request, self.status)


@dataclass
class LoggedComm:
    """Stand in for ``comm``: the same methods, and everything written down in ``log``."""

    comm: GuardedComm
    log: list[LoggedCall] = field(default_factory=list)
    requests: list[tuple[LoggedCall, object]] = field(default_factory=list)

    def __getattr__(self, name: str):
        method = getattr(self.comm, name)
        return functools.partial(self._call, name, method) if _is_logged(name) else method

    def mark(self, what: object) -> None:
        """Write down something that is no message, such as a printed line."""
        self.log.append(LoggedCall("mark", "mark", content=what, finished=True))

    def settle(self) -> list[LoggedCall]:
        """Return the log, with each non-blocking call marked as waited for or not."""
        for event, request in self.requests:
            event.waited = not request  # MPI empties a request when it completes
        return self.log

    def _call(self, name: str, method: Callable, *args, **kwargs):
        if not is_accepted(name, args, kwargs):
            return method(*args, **kwargs)  # mpi4py says what is wrong with it
        events = _described(name, arguments_of(name, args, kwargs))
        self.log.extend(events)
        args, kwargs, status = with_status(name, args, kwargs)
        answer = method(*args, **kwargs)
        for event in events:
            event.finished = True
        if isinstance(answer, MPI.Request):
            answer = LoggedRequest(answer, self.comm, events[-1])
            self.requests += [(event, answer) for event in events]
        elif status is not None:
            received = events[-1]
            received.peer, received.tag, received.nbytes = status.source, status.tag, status.count
            received.content = answer
        return answer


def _is_logged(name: str) -> bool:
    lower = name.lower()
    if lower.endswith("_init"):  # a persistent request
        return False
    if "send" in lower or "recv" in lower or name in PROBES:
        return True
    return lower in COLLECTIVES or lower.removeprefix("i") in COLLECTIVES


def _described(name: str, given: dict) -> list[LoggedCall]:
    """Return what is known of a call before it is made; a ``Sendrecv`` makes two entries."""
    found = []
    if is_send(name):
        sent, tag = sent_in(given), given.get("sendtag", given.get("tag"))
        event = LoggedCall("send", name, given["dest"], tag, _bytes_sent(name, sent))
        event.content = sent if name[0].islower() else None
        found.append(event)
    if is_receive(name) or name in PROBES:
        source = given["source"]
        event = LoggedCall("probe" if name in PROBES else "recv", name)
        event.any_source = source == MPI.ANY_SOURCE
        event.peer = None if event.any_source else source
        if is_receive(name) and "status" not in given:
            tag = given.get("recvtag", given.get("tag"))
            event.tag = 0 if tag == MPI.ANY_TAG else tag
        found.append(event)
    return found or [LoggedCall("collective", name)]


def _bytes_sent(name: str, sent: object) -> int | None:
    with contextlib.suppress(Exception):  # the call itself will say what is wrong with it
        return bytes_of_object(sent) if name[0].islower() else bytes_of(sent)
    return None


def observe(function: Callable, comm: GuardedComm, *args, timeout: float = 6.0) -> Observation:
    """Call ``function(logged_comm, *args)`` on every rank and tell every rank what happened.

    To be called by all ranks of ``comm``. The function gets a communicator of its own, whose
    calls have ``timeout`` seconds; if it hangs, only that communicator is lost.
    """
    own = comm.Dup()
    own.timeout = timeout
    logged = LoggedComm(own)
    result, error = attempt(function, logged, *args)
    seen = tell_all(comm, result, error, logged.settle())
    if not seen.hung:
        own.Free()
    return seen


def attempt(function: Callable, *args) -> tuple[object, Exception | None]:
    """Return what ``function(*args)`` returns, and what it raises, which the caller judges."""
    try:
        return function(*args), None
    except Exception as raised:
        return None, raised


def tell_all(comm: GuardedComm, result, error, log: list[LoggedCall]) -> Observation:
    """Tell every rank of ``comm`` what happened on each; all ranks must call this."""
    everyone = comm.allgather((portable(result), portable(error), log))
    return Observation(*(list(column) for column in zip(*everyone, strict=True)))


def portable(value):
    """Return ``value``, or a stand-in of the same text where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # any class may refuse to be pickled, in any way it likes
        kind = type(value).__name__
        return RuntimeError(f"{kind}: {value}") if isinstance(value, BaseException) else repr(value)
    return value
