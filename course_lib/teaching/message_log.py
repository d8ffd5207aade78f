"""A communicator that writes down every message, so that a check can judge a method.

:class:`LoggedComm` passes every call on to a real mpi4py communicator and appends an
:class:`Event` to its log. :func:`observe` runs a learner's function on every rank with such a
communicator and gives every rank the same :class:`Observation`: what each rank returned or
raised, and every message of every rank. :meth:`Observation.happens_before` orders events of
different ranks by their messages alone (Lamport 1978), never by clocks, so that a verdict does
not depend on how fast the machine is.
"""

from __future__ import annotations

import pickle
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from torch_mpi4py import MPI, DeadlineError, GuardedComm, RevokedError

__all__ = ["Event", "LoggedComm", "Observation", "observe", "portable"]

SENDS = ("send", "ssend", "bsend", "isend", "issend", "Send", "Ssend", "Bsend", "Isend", "Issend")
COLLECTIVES = {
    *("barrier", "bcast", "scatter", "scatterv", "gather", "gatherv", "allgather", "allgatherv"),
    *("reduce", "allreduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan"),
    *("alltoall", "alltoallv", "alltoallw"),
}


@dataclass
class Event:
    """One call of one rank. ``peer`` is the destination, or the rank that the message came from."""

    kind: str  # "send", "recv", "probe", "collective" or "mark"
    call: str  # the method's name, e.g. "Isend"
    peer: int | None = None
    tag: int | None = None
    nbytes: int | None = None
    any_source: bool = False  # a receive that named no source
    content: object = None  # what a pickled call carried
    finished: bool = False  # False: the rank was still in this call when the deadline passed
    waited: bool = True  # False: a non-blocking call whose request was never waited for


@dataclass
class Observation:
    """What happened on every rank: index r of each list is rank r's."""

    results: list
    errors: list[BaseException | None]
    logs: list[list[Event]]

    @property
    def hung(self) -> bool:
        return any(isinstance(error, (DeadlineError, RevokedError)) for error in self.errors)

    def own_error(self) -> tuple[int, BaseException] | None:
        """Return the first rank that failed by itself, not because another kept it waiting."""
        for rank, error in enumerate(self.errors):
            if error is not None and not isinstance(error, (DeadlineError, RevokedError)):
                return rank, error
        return None

    def stuck(self) -> dict[int, Event]:
        """Return the call that each rank was still in when the deadline passed."""
        unfinished = {
            rank: next((event for event in log if not event.finished), None)
            for rank, log in enumerate(self.logs)
            if self.errors[rank] is not None
        }
        return {rank: event for rank, event in unfinished.items() if event is not None}

    def events(self, kind: str) -> list[tuple[int, Event]]:
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

    def __new__(cls, request: MPI.Request, comm: GuardedComm, event: Event) -> LoggedRequest:
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
    log: list[Event] = field(default_factory=list)
    requests: list[tuple[Event, object]] = field(default_factory=list)

    def __getattr__(self, name: str):
        found = getattr(self.comm, name)
        if name in SENDS:
            return self._sender(name, found)
        if name.lower() in COLLECTIVES or name.lower().removeprefix("i") in COLLECTIVES:
            return self._collective(name, found)
        return found

    def mark(self, what: object) -> None:
        """Write down something that is no message, such as a printed line."""
        self.log.append(Event("mark", "mark", content=what, finished=True))

    def settle(self) -> list[Event]:
        """Return the log, with each non-blocking call marked as waited for or not."""
        for event, request in self.requests:
            event.waited = not request  # MPI empties a request when it completes
        return self.log

    def recv(self, buf=None, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        return self._receive("recv", lambda s: self.comm.recv(buf, source, tag, s), source, status)

    def Recv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        return self._receive("Recv", lambda s: self.comm.Recv(buf, source, tag, s), source, status)

    def irecv(self, buf=None, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG):
        return self._post("irecv", lambda: self.comm.irecv(buf, source, tag), source, tag)

    def Irecv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG):
        return self._post("Irecv", lambda: self.comm.Irecv(buf, source, tag), source, tag)

    def probe(self, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        return self._probe("probe", self.comm.probe, source, tag, status)

    def Probe(self, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        return self._probe("Probe", self.comm.Probe, source, tag, status)

    def sendrecv(
        self, sendobj, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG,
        status=None,
    ):  # fmt: skip
        event = self._sent("sendrecv", sendobj, dest, sendtag)
        got = self._receive(
            "sendrecv",
            lambda s: self.comm.sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, s),
            source,
            status,
        )
        event.finished = True
        return got

    def Sendrecv(
        self, sendbuf, dest, sendtag=0, recvbuf=None, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG,
        status=None,
    ):  # fmt: skip
        event = self._sent("Sendrecv", sendbuf, dest, sendtag)
        self._receive(
            "Sendrecv",
            lambda s: self.comm.Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, s),
            source,
            status,
        )
        event.finished = True

    def _sender(self, name: str, method: Callable):
        def send(message, dest, tag=0):
            event = self._sent(name, message, dest, tag)
            answer = method(message, dest, tag)
            event.finished = True
            if isinstance(answer, MPI.Request):
                answer = LoggedRequest(answer, self.comm, event)
                self.requests.append((event, answer))
            return answer

        return send

    def _sent(self, name: str, message, dest: int, tag: int) -> Event:
        pickled = name[0].islower()
        event = Event("send", name, dest, tag, _size(message, pickled))
        event.content = message if pickled else None
        self.log.append(event)
        return event

    def _receive(self, name: str, method: Callable, source: int, status: MPI.Status | None):
        status = MPI.Status() if status is None else status
        event = Event("recv", name, _named(source), any_source=source == MPI.ANY_SOURCE)
        self.log.append(event)
        answer = method(status)
        event.peer, event.tag, event.nbytes = status.source, status.tag, status.count
        event.content, event.finished = answer, True
        return answer

    def _post(self, name: str, method: Callable, source: int, tag: int):
        event = Event("recv", name, _named(source), any_source=source == MPI.ANY_SOURCE)
        event.tag = 0 if tag == MPI.ANY_TAG else tag
        self.log.append(event)
        request = LoggedRequest(method(), self.comm, event)
        event.finished = True
        self.requests.append((event, request))
        return request

    def _probe(self, name: str, method: Callable, source: int, tag: int, status):
        event = Event("probe", name, _named(source), any_source=source == MPI.ANY_SOURCE)
        self.log.append(event)
        answer = method(source, tag, status)
        event.finished = True
        return answer

    def _collective(self, name: str, method: Callable):
        def collective(*args, **kwargs):
            event = Event("collective", name)
            self.log.append(event)
            answer = method(*args, **kwargs)
            event.finished = True
            return answer

        return collective


def observe(function: Callable, comm: GuardedComm, *args, timeout: float = 6.0) -> Observation:
    """Call ``function(logged_comm, *args)`` on every rank and tell every rank what happened.

    To be called by all ranks of ``comm``. The function gets a communicator of its own, whose
    calls have ``timeout`` seconds; if it hangs, only that communicator is lost.
    """
    own = comm.Dup()
    own.timeout = timeout
    logged = LoggedComm(own)
    result = error = None
    try:
        result = function(logged, *args)
    except Exception as raised:  # told to every rank below, and judged by the caller
        error = raised
    everyone = comm.allgather((portable(result), portable(error), logged.settle()))
    results, errors, logs = (list(column) for column in zip(*everyone, strict=True))
    if not any(isinstance(e, (DeadlineError, RevokedError)) for e in errors):
        own.Free()
    return Observation(results, errors, logs)


def _named(source: int) -> int | None:
    return None if source == MPI.ANY_SOURCE else source


def _size(message, pickled: bool) -> int | None:
    """Bytes of an object when pickled, or of a buffer, alone or with its count and type."""
    if pickled:
        return len(pickle.dumps(message))
    buffer = message[0] if isinstance(message, (list, tuple)) else message
    return getattr(buffer, "nbytes", None)


def portable(value):
    """Return ``value``, or a stand-in of the same text where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # any class may refuse to be pickled, in any way it likes
        kind = type(value).__name__
        return RuntimeError(f"{kind}: {value}") if isinstance(value, BaseException) else repr(value)
    return value
