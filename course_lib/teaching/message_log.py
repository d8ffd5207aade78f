"""Records every message of a rank, so that a check can judge a method.

:class:`LoggedComm` passes every call on to a real mpi4py communicator and appends a
:class:`LoggedCall` to its log. :func:`observe` runs a learner's function on every rank with such
a communicator and gives every rank the same :class:`Observation`: what each rank returned or
raised, and every message of every rank. :mod:`.distributed_log` does the same for
``torch.distributed``.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch_mpi4py import MPI, DeadlineError, GuardedComm, RevokedError
from torch_mpi4py.comm.call_arguments import (
    arguments_of,
    bytes_sent,
    is_accepted,
    messages_of,
    with_status,
)
from torch_mpi4py.comm.guarded_comm import BLOCKING
from torch_mpi4py.comm.requests import NON_BLOCKING
from torch_mpi4py.log.events import log

from .deadlock import ended_early
from .exercise import CALL_SECONDS
from .judges.failures import text_of

PROBES = ("probe", "Probe", "mprobe", "Mprobe")
_POLLS = ("iprobe", "Iprobe", "improbe", "Improbe")
_LOGGED = {*BLOCKING, *NON_BLOCKING, *_POLLS}


@dataclass
class LoggedCall:
    """One call of one rank.

    Attributes:
        kind: "send", "recv", "probe", "collective" or "mark".
        call: the function's or method's name, e.g. "Isend".
        peer: the destination, or the rank that the message came from; None: not known, or a receive
            from any source that no rank answered.
        tag: the message's tag.
        nbytes: bytes of this rank's own data.
        any_source: whether a receive named no source.
        content: the object of a pickled call of mpi4py.
        finished: False: the rank was still in this call when the deadline passed.
        waited: False: a non-blocking call whose request was never waited for.
        on_group: whether a call of torch.distributed was on the group that is observed.
        sent, waits: the phase in which a call of torch.distributed was made, and each in which
            its end was waited for.
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
    sent: object = None
    waits: list[object] = field(default_factory=list)


@dataclass
class Observation:
    """What happened on every rank: index r of each list is rank r's."""

    results: list
    errors: list[BaseException | None]
    logs: list[list[LoggedCall]]

    @property
    def hung(self) -> bool:
        return any(isinstance(error, (DeadlineError, RevokedError)) for error in self.errors)

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

    def sent(self) -> list[tuple[int, int | None]]:
        """Return ``(source, dest)`` of every message sent."""
        return [(rank, event.peer) for rank, event in self.events("send")]


@dataclass
class LoggedComm:
    """Stand in for ``comm``: the same methods, and each call is written to ``log``."""

    comm: GuardedComm
    log: list[LoggedCall] = field(default_factory=list)
    requests: list[tuple[LoggedCall, object]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.comm, name)
        return functools.partial(self._call, name, method) if name in _LOGGED else method

    def mark(self, what: object) -> None:
        """Log something other than a message, such as a printed line."""
        self.log.append(LoggedCall("mark", "mark", content=what, finished=True))

    def mark_unwaited(self) -> list[LoggedCall]:
        """Return the log, with each non-blocking call marked as waited for or not."""
        for event, request in self.requests:
            event.waited = not request  # MPI empties a request when it completes
        return self.log

    def _call(self, name: str, method: Callable, *args: Any, **kwargs: Any) -> Any:
        if not is_accepted(name, args, kwargs):
            return method(*args, **kwargs)  # mpi4py reports the error
        events = _described(name, arguments_of(name, args, kwargs))
        if name not in _POLLS:
            # No message goes to or from PROC_NULL.
            self.log.extend(event for event in events if event.peer != MPI.PROC_NULL)
        args, kwargs, status = with_status(name, args, kwargs)
        answer = method(*args, **kwargs)
        if name in _POLLS and answer:  # there may be thousands without an answer
            self.log.extend(events)
        for event in events:
            event.finished = True
        if isinstance(answer, MPI.Request):
            _note_waits(answer, events[-1])
            self.requests += [(event, answer) for event in events]
        elif status is not None:
            received = events[-1]
            received.peer, received.tag, received.nbytes = status.source, status.tag, status.count
            received.content = answer
        return answer


def _note_waits(request: MPI.Request, event: LoggedCall) -> None:
    def noted(wait: Callable, status: MPI.Status | None = None) -> Any:
        event.finished = False
        status = status or MPI.Status()
        answer = wait(status)
        event.finished = True
        if event.call == "irecv" and status.source >= 0:  # not so where it had ended already
            event.peer, event.tag, event.content = status.source, status.tag, answer
        return answer

    for name in ("wait", "Wait"):
        setattr(request, name, functools.partial(noted, getattr(request, name)))


def _described(name: str, given: dict) -> list[LoggedCall]:
    """Return the entry of a call before it is made; a ``Sendrecv`` makes two entries."""
    found = []
    for kind, peer, tag, data in messages_of(name, given):
        event = LoggedCall(kind, name, peer, tag)
        if kind == "send":
            event.nbytes = bytes_sent(name, data)
            event.content = data if name.islower() else None
        elif tag == MPI.ANY_TAG:
            event.tag = None if "status" in given else 0  # the status will say
        found.append(event)
    if name in (*PROBES, *_POLLS):
        found.append(LoggedCall("probe", name, given["source"]))
    for event in found:
        if event.kind != "send" and event.peer == MPI.ANY_SOURCE:
            event.peer, event.any_source = None, True
    return found or [LoggedCall("collective", name)]


def observe(
    function: Callable, comm: GuardedComm, *args: Any, timeout: float = CALL_SECONDS
) -> Observation:
    """Call ``function(logged_comm, *args)`` on every rank; return what happened, on every rank.

    To be called by all ranks of ``comm``. The function gets a communicator of its own, whose
    calls have ``timeout`` seconds, less if all wait for each other; only that communicator is lost.
    """
    own = comm.Dup()
    own.timeout = timeout
    logged = LoggedComm(own)
    with ended_early(log.group_of(own).ranks):
        result, error = attempt(function, logged, *args)
    seen = tell_all(comm, result, error, logged.mark_unwaited())
    if not seen.hung:
        own.Free()
    return seen


def attempt(function: Callable, *args: Any) -> tuple[object, Exception | None]:
    """Return the result and the exception of ``function(*args)``, which the caller judges."""
    try:
        return function(*args), None
    except Exception as raised:
        return None, raised


def tell_all(comm: GuardedComm, result: Any, error: Any, log: list[LoggedCall]) -> Observation:
    """Tell every rank of ``comm`` what happened on each; all ranks must call this."""
    everyone = comm.allgather((portable(result), portable(error), log))
    return Observation(*(list(column) for column in zip(*everyone, strict=True)))


def portable(value: Any) -> Any:
    """Return ``value``, or a stand-in of the same text where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # any class may refuse to be pickled, in any way
        kind = type(value).__name__
        if isinstance(value, BaseException):
            return RuntimeError(f"{kind}: {text_of(value)}")
        return text_of(value, repr)
    return value
