"""Blocking sends, receives and probes of the library's ``comm``, which sleep while they wait.

Each is mpi4py's non-blocking call of the same kind, and then the wait of :mod:`.doorbell`. So no
call gets stuck inside MPI: a deadline ends it under any MPI, and a receive that no rank sends to is
cancelled.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ..core.runtime import MPI
from ..faults import pending_requests
from ..faults.deadlines import Operation
from ..meeting import doorbell
from ..meeting.doorbell import Awaited
from .call_arguments import Arguments, argument_of, bytes_sent, is_receive, is_send

_EAGER_BYTES = 2048  # an object this short has arrived once its message is found
_OBJECT_BYTES = 1 << 15  # the memory that mpi4py provides for an object of unknown size

Call = Callable[[Operation], Any]


class CommWithBells(MPI.Intracomm):
    """A communicator whose ranks wake each other when a message comes."""

    @functools.cached_property
    def bells(self) -> doorbell.Bells:
        """By which they do that."""
        return doorbell.Bells(self)


def sleeping_call(
    comm: CommWithBells, name: str, args: Sequence[Any], kwargs: Arguments
) -> Call | None:
    """Return a function that makes the blocking call ``comm.name(*args, **kwargs)``.

    None if it is no message, or if mpi4py has to make the call: it reports wrong arguments, and a
    call with PROC_NULL does not wait. A call that receives needs a status.
    """
    prepare = _CALLS.get(name)
    if prepare is None:
        return None
    try:
        return prepare(comm, *args, **kwargs)
    except (TypeError, ValueError):
        return None


def tell_partner(
    comm: CommWithBells, name: str, args: Sequence[Any], kwargs: Arguments
) -> Callable[[], Awaited] | None:
    """Wake the partner of ``comm.name(*args, **kwargs)``, a non-blocking call that was made.

    Returns:
        A function that returns the message, from any source if there are two; None if there is
        none, or its partner is PROC_NULL.
    """
    sends, receives = is_send(name), is_receive(name)
    if not (sends or receives):
        return None
    bells, peer = comm.bells, MPI.PROC_NULL
    buffer = argument_of(name, "recvbuf" if name == "Isendrecv" else "buf", args, kwargs)
    if sends:
        peer = operator.index(argument_of(name, "dest", args, kwargs))
        bells.sent(peer)
    if receives:
        source = operator.index(argument_of(name, "source", args, kwargs))
        if bells.may_sleep(source):  # the size takes a microsecond or two
            bells.receives(source, _size_of(buffer))
        peer = MPI.ANY_SOURCE if sends else source
    if not bells.is_peer(peer):
        return None
    least = _OBJECT_BYTES if name == "irecv" else 0
    return lambda: Awaited(bells, peer, max(_size_of(buffer), least), sends)


def _size_of(buffer: Any) -> int:
    """Return the bytes of a buffer argument that MPI has accepted, 0 if unknown."""
    return bytes_sent("Recv", buffer) or 0


# --- one message --------------------------------------------------------------------------------


def _send(start: Any, comm: CommWithBells, buf: Any, dest: int, tag: int = 0) -> Call | None:
    def run(operation: Operation) -> None:
        request = start(comm, buf, dest, tag)
        comm.bells.sent(dest)
        _await(operation, comm, request, request.Test, buf, dest, sends=True)

    return run if comm.bells.is_peer(dest) else None


def _buffered_send(comm: CommWithBells, buf: Any, dest: int, tag: int = 0) -> Call | None:
    def run(operation: Operation) -> None:
        MPI.Intracomm.Bsend(comm, buf, dest, tag)  # does not wait
        comm.bells.sent(dest)

    return run if comm.bells.is_peer(dest) else None


def _receive(
    comm: CommWithBells,
    buf: Any,
    source: int = MPI.ANY_SOURCE,
    tag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> Call | None:
    assert status is not None

    def run(operation: Operation) -> None:
        request = MPI.Intracomm.Irecv(comm, buf, source, tag)
        _await(operation, comm, request, functools.partial(request.Test, status), buf, source)
        comm.bells.received(status.Get_source())

    return run if comm.bells.is_peer(source) else None


def _receive_object(
    comm: CommWithBells,
    buf: Any = None,
    source: int = MPI.ANY_SOURCE,
    tag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> Call | None:
    probe = _probe(MPI.Intracomm.improbe, comm, source, tag, status)
    if probe is None or buf is not None:
        return None
    assert status is not None

    def run(operation: Operation) -> Any:
        found = probe(operation)
        came_from, size = status.Get_source(), status.Get_count(MPI.BYTE)
        if size <= _EAGER_BYTES:
            received = found.recv(status)
        else:
            received = _take_in(operation, comm, found, status, came_from, size)
        comm.bells.received(came_from)
        return received

    return run


def _take_in(
    operation: Operation,
    comm: CommWithBells,
    found: MPI.Message,
    status: MPI.Status,
    source: int,
    size: int,
) -> Any:
    """Return the object whose message was found."""
    request = found.irecv()
    received: list[Any] = []

    def test() -> bool:
        ended, *received[:] = request.test(status)
        return ended

    _await(operation, comm, request, test, None, source, size, is_matched=True)
    return received[0]


def _probe(
    look: Any,
    comm: CommWithBells,
    source: int = MPI.ANY_SOURCE,
    tag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> Call | None:
    def ask() -> Any:
        # Open MPI 5.0.11 (mca_pml_ob1_improbe) and MPICH 5.0.2 take in what has arrived after they
        # have looked for it: the first of two calls never finds a message that has just come.
        return look(comm, source, tag, status) or look(comm, source, tag, status)

    def run(operation: Operation) -> Any:
        return doorbell.wait(operation, ask, functools.partial(Awaited, comm.bells, source))

    return run if comm.bells.is_peer(source) else None


def _await(
    operation: Operation,
    comm: CommWithBells,
    request: MPI.Request,
    test: Callable[[], bool],
    memory: Any,
    peer: int,
    size: int = -1,
    sends: bool = False,
    is_matched: bool = False,
) -> None:
    """Return when ``request``, whose buffer argument is ``memory``, has ended."""

    def awaited() -> Awaited:
        size_bytes = _size_of(memory) if size < 0 else size
        if not sends:
            comm.bells.receives(peer, size_bytes)
        return Awaited(comm.bells, peer, size_bytes, sends)

    try:
        doorbell.wait(operation, test, awaited)
    except BaseException:
        pending_requests.give_up(request, memory, withdraw=not (sends or is_matched))
        raise


# --- two at once --------------------------------------------------------------------------------


def _exchange(
    comm: CommWithBells,
    sendbuf: Any,
    dest: int,
    sendtag: int = 0,
    recvbuf: Any = None,
    source: int = MPI.ANY_SOURCE,
    recvtag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> Call | None:
    receive = _receive(comm, recvbuf, source, recvtag, status)
    return _both(comm, sendbuf, dest, sendtag, receive)


def _exchange_objects(
    comm: CommWithBells,
    sendobj: Any,
    dest: int,
    sendtag: int = 0,
    recvbuf: Any = None,
    source: int = MPI.ANY_SOURCE,
    recvtag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> Call | None:
    receive = _receive_object(comm, recvbuf, source, recvtag, status)
    return _both(comm, [MPI.pickle.dumps(sendobj), MPI.BYTE], dest, sendtag, receive)


def _both(comm: CommWithBells, sent: Any, dest: int, tag: int, receive: Call | None) -> Call | None:
    def run(operation: Operation) -> Any:
        assert receive is not None
        request = MPI.Intracomm.Isend(comm, sent, dest, tag)
        comm.bells.sent(dest)
        try:
            received = receive(operation)
        except BaseException:
            pending_requests.give_up(request, sent, withdraw=False)
            raise
        _await(operation, comm, request, request.Test, sent, dest, sends=True)
        return received

    return run if receive is not None and comm.bells.is_peer(dest) else None


# Not Sendrecv_replace: MPICH 5.0.2 reports a wrong source, tag and size for its non-blocking form.
_CALLS: dict[str, Callable[..., Call | None]] = {
    "Send": functools.partial(_send, MPI.Intracomm.Isend),
    "Ssend": functools.partial(_send, MPI.Intracomm.Issend),
    "Rsend": functools.partial(_send, MPI.Intracomm.Irsend),
    "Bsend": _buffered_send,
    "Recv": _receive,
    "recv": _receive_object,
    "Probe": functools.partial(_probe, MPI.Intracomm.Iprobe),
    "probe": functools.partial(_probe, MPI.Intracomm.iprobe),
    "Mprobe": functools.partial(_probe, MPI.Intracomm.Improbe),
    "mprobe": functools.partial(_probe, MPI.Intracomm.improbe),
    "Sendrecv": _exchange,
    "sendrecv": _exchange_objects,
}
