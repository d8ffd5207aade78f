"""What a call of mpi4py's methods will do can be read off its arguments.

So the calls of the library's ``comm`` are in the event log under mpi4py's own names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .call_site import call_site
from .events import ANY, Token, log
from .message_bytes import bytes_of, bytes_of_object, whole_number
from .runtime import MPI

__all__ = ["MAKE_COMMUNICATORS", "begin_call", "end_call", "pickled_once", "with_status"]

MAKE_COMMUNICATORS = ("Dup", "Split", "Split_type", "Create", "Create_group")

_SENDS = {"Send", "Ssend", "Rsend", "Bsend", "Isend", "Issend", "Irsend", "Ibsend"}
# What mpi4py itself makes of a call that sends an object, once it is pickled.
_OBJECT_SENDS = {
    "send": "Send",
    "ssend": "Ssend",
    "bsend": "Bsend",
    "isend": "Isend",
    "issend": "Issend",
    "ibsend": "Ibsend",
}
_RECEIVES = {"Recv", "Irecv"}
_OBJECT_RECEIVES = {"recv", "irecv"}
_PROBES = {"Probe", "probe", "Mprobe", "mprobe"}
# Positions of (buffer sent, dest, tag, buffer received, source, tag, status), and their names.
_BOTH_WAYS = {
    "Sendrecv": ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status"),
    "sendrecv": ("sendobj", "dest", "sendtag", "recvbuf", "source", "recvtag", "status"),
    "Isendrecv": ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag"),
    "Sendrecv_replace": ("buf", "dest", "sendtag", "source", "recvtag", "status"),
    "Isendrecv_replace": ("buf", "dest", "sendtag", "source", "recvtag"),
}
_ROOT_AT = {
    "Bcast": 1,
    "bcast": 1,
    "Ibcast": 1,
    "Reduce": 3,
    "Ireduce": 3,
    "reduce": 2,
    "Gather": 2,
    "Gatherv": 2,
    "gather": 1,
    "Igather": 2,
    "Igatherv": 2,
    "Scatter": 2,
    "Scatterv": 2,
    "scatter": 1,
    "Iscatter": 2,
    "Iscatterv": 2,
}
_FROM_ROOT = {"Bcast", "Ibcast", "Scatter", "Scatterv", "Iscatter", "Iscatterv"}
_STATUS_AT = {"Recv": 3, "recv": 3}

Arguments = Mapping[str, Any]


def begin_call(
    comm: MPI.Comm, name: str, args: Sequence[Any], kwargs: Arguments, waiting: bool
) -> list[Token | None]:
    """Record that method ``name`` of ``comm`` is called; ``Sendrecv`` makes two events."""
    if not log.enabled:
        return []
    group = log.group_of(comm).place
    site = log.string(call_site(2))
    if name in _BOTH_WAYS:
        given = _named(_BOTH_WAYS[name], args, kwargs)
        sent = given.get("sendbuf", given.get("sendobj", given.get("buf")))
        received = given.get("recvbuf", given.get("buf"))
        there = _message(sent, given.get("dest"), given.get("sendtag", 0), name == "sendrecv")
        back = _message(received, given.get("source", MPI.ANY_SOURCE), given.get("recvtag", -1))
        kinds = ((f"{name}: send", there), (f"{name}: recv", back))
    elif name in _SENDS or name in _OBJECT_SENDS:
        given = _named(("buf", "dest", "tag"), args, kwargs)
        sent = given.get("buf", given.get("obj"))
        described = _message(sent, given.get("dest"), given.get("tag", 0), name in _OBJECT_SENDS)
        kinds = ((name, described),)
    elif name in _RECEIVES or name in _OBJECT_RECEIVES:
        given = _named(("buf", "source", "tag"), args, kwargs)
        source, tag = given.get("source", MPI.ANY_SOURCE), given.get("tag", MPI.ANY_TAG)
        buffer = given.get("buf") if name in _RECEIVES else None
        described = _message(buffer, source, tag)
        if described is not None and name in _OBJECT_RECEIVES:
            described["dtype"] = log.string("pickle")
        kinds = ((name, described),)
    elif name in _PROBES:
        given = _named(("source", "tag"), args, kwargs)
        source, tag = given.get("source", MPI.ANY_SOURCE), given.get("tag", MPI.ANY_TAG)
        kinds = ((name, _message(None, source, tag)),)
    elif name in MAKE_COMMUNICATORS:
        if name == "Create_group":  # only the members call it
            group = _place_of(comm, _named(("group",), args, kwargs).get("group"))
        kinds = ((name, {}),)
    else:
        kinds = ((name, _collective(comm, name, args, kwargs)),)
    return [
        log.begin(log.string(kind), group, waiting, site, **described)
        for kind, described in kinds
        if described is not None
    ]


def pickled_once(
    name: str, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: Arguments
) -> tuple[Callable[..., Any], tuple[Any, ...], Arguments]:
    """Return the call of ``plain`` in a form that tells the size of an object that is sent."""
    if name not in _OBJECT_SENDS:
        return plain, args, kwargs
    given = _named(("obj", "dest", "tag"), args, kwargs)
    dest = given.get("dest")
    if len(given) != 2 + ("tag" in given) or "obj" not in given or dest in (None, MPI.PROC_NULL):
        return plain, args, kwargs  # wrong, or nothing is sent: mpi4py shall say so
    data = [MPI.pickle.dumps(given["obj"]), MPI.BYTE]
    return getattr(MPI.Intracomm, _OBJECT_SENDS[name]), (data, dest, given.get("tag", 0)), {}


def end_call(
    tokens: Sequence[Token | None], status: MPI.Status | None, error: BaseException | None = None
) -> None:
    """Record that a call has ended; ``status`` says what the last event received."""
    if status is not None and error is None and tokens and tokens[-1] is not None:
        size = status.Get_count(MPI.BYTE)
        if status.Get_source() >= 0:  # not so for a send, whose status says nothing
            log.arrived(tokens[-1], status.Get_source(), status.Get_tag(), size)
    for token in tokens:
        log.end(token, error)


def with_status(
    name: str, args: Sequence[Any], kwargs: Arguments
) -> tuple[Arguments, MPI.Status | None]:
    """Return ``kwargs`` with a status for a receiving call, and that status; None elsewhere."""
    position = _STATUS_AT.get(name)
    if position is None and name in _BOTH_WAYS and "status" in _BOTH_WAYS[name]:
        position = _BOTH_WAYS[name].index("status")
    if position is None:
        return kwargs, None
    if len(args) > position:
        return kwargs, args[position]
    status = kwargs.get("status")
    if status is None:
        status = MPI.Status()
    return {**kwargs, "status": status}, status


def _place_of(comm: MPI.Comm, members: Any) -> int:
    """Return the place of the name of some ranks of ``comm``."""
    if not isinstance(members, MPI.Group):  # the call itself will say what is wrong with it
        return log.group_of(comm).place
    everyone = comm.Get_group()
    ranks = MPI.Group.Translate_ranks(members, None, everyone)
    everyone.Free()
    return log.part_of(comm, ranks)


def _named(names: Sequence[str], args: Sequence[Any], kwargs: Arguments) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _message(buffer: Any, peer: Any, tag: Any, pickled: bool = False) -> dict[str, int] | None:
    """Describe one message, None if it goes nowhere or cannot be told from the arguments."""
    peer, tag = whole_number(peer), whole_number(tag)
    if peer is None or tag is None or peer == MPI.PROC_NULL:
        return None
    peer = ANY if peer == MPI.ANY_SOURCE else peer
    tag = ANY if tag == MPI.ANY_TAG else tag
    described = {"peer": peer, "tag": tag}
    if pickled and _is_pickled(buffer):
        described |= {"size": len(buffer[0]), "dtype": log.string("pickle")}
    elif pickled:
        with contextlib.suppress(Exception):  # the call itself will say what is wrong with it
            described |= {"size": bytes_of_object(buffer), "dtype": log.string("pickle")}
    elif buffer is not None:
        described |= _buffer(buffer)
    return described


def _is_pickled(sent: Any) -> bool:
    """Whether this is what :func:`pickled_once` makes."""
    return isinstance(sent, list) and len(sent) == 2 and sent[1] is MPI.BYTE


def _buffer(buffer: Any) -> dict[str, int]:
    memory = buffer[0] if isinstance(buffer, (list, tuple)) and buffer else buffer
    described = {}
    if hasattr(memory, "dtype") and hasattr(memory, "shape"):
        described["dtype"] = log.string(str(memory.dtype).removeprefix("torch."))
        described["shape"] = log.string(str(tuple(memory.shape)))
    with contextlib.suppress(Exception):  # the call itself will say what is wrong with it
        described["size"] = bytes_of(buffer)
    return described


def _collective(
    comm: MPI.Comm, name: str, args: Sequence[Any], kwargs: Arguments
) -> dict[str, int]:
    described = {}
    root_at = _ROOT_AT.get(name)
    if root_at is not None:
        root = kwargs.get("root", args[root_at] if len(args) > root_at else 0)
        root = whole_number(root)
        described["root"] = ANY if root is None else root
    if name in {"Barrier", "barrier", "Ibarrier"}:
        return described
    if name[0].islower():
        described["dtype"] = log.string("pickle")
        if log.listeners:  # nobody else needs it so much that all is pickled twice
            with contextlib.suppress(Exception):  # the call itself will say what is wrong
                described["size"] = _pickled_bytes(comm, name, described, args, kwargs)
        return described
    given = [*args[:2], *(kwargs[key] for key in ("sendbuf", "recvbuf", "buf") if key in kwargs)]
    # In place, the data are in the receive buffer.
    buffer = next((item for item in given if item is not None and item is not MPI.IN_PLACE), None)
    if buffer is not None:
        described |= _buffer(buffer)
    if name in _FROM_ROOT and described["root"] != comm.Get_rank():
        described["size"] = 0
    return described


def _pickled_bytes(
    comm: MPI.Comm, name: str, described: dict[str, int], args: Sequence[Any], kwargs: Arguments
) -> int:
    """Return the bytes of the objects that this rank hands to the collective ``name``."""
    given = _named(("sendobj",), args, kwargs)
    sent = given.get("sendobj", given.get("obj"))
    if name in ("bcast", "scatter") and described["root"] != comm.Get_rank():
        return 0
    if name in ("scatter", "alltoall"):
        return sum(map(bytes_of_object, sent))
    return bytes_of_object(sent)
