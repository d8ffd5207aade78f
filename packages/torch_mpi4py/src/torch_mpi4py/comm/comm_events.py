"""Write calls of the library's ``comm`` into the event log, under mpi4py's own names.

The details of a call are read from its arguments, before it is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ..board.call_site import call_site
from ..core.runtime import MPI
from ..log.events import ANY, Token, log
from .call_arguments import (
    Arguments,
    arguments_of,
    bytes_of_object,
    bytes_sent,
    is_accepted,
    is_receive,
    is_send,
    messages_of,
    sent_in,
    whole_number,
)

MAKE_COMMUNICATORS = ("Dup", "Split", "Split_type", "Create", "Create_group")
_PROBES = ("Probe", "probe", "Mprobe", "mprobe")
_BUFFERS = ("sendbuf", "buf", "recvbuf")


def begin_call(
    comm: MPI.Comm, name: str, plain: str, args: Sequence[Any], kwargs: Arguments, waiting: bool
) -> list[Token | None]:
    """Record that method ``name`` of ``comm`` is called; ``Sendrecv`` makes two events.

    Args:
        plain: mpi4py's method for which the arguments are: see :func:`pickled_once`.
    """
    if not log.enabled:
        return []
    group = log.group_of(comm).place
    site = call_site(2)
    given = arguments_of(plain, args, kwargs)
    messages = messages_of(plain, given)
    described: list[tuple[str, dict[str, int] | None]]
    if messages:
        described = [
            (
                f"{name}: {message[0]}" if len(messages) > 1 else name,
                _message(name, plain, *message),
            )
            for message in messages
        ]
    elif name in _PROBES:
        described = [(name, _envelope(given.get("source"), given.get("tag")))]
    elif name in MAKE_COMMUNICATORS:
        if name == "Create_group":  # only the members call it
            group = _place_of(comm, given.get("group"))
        described = [(name, {})]
    else:
        described = [(name, _collective(comm, name, given))]
    return [
        log.begin(log.string(kind), group, waiting, site, **numbers)
        for kind, numbers in described
        if numbers is not None
    ]


def pickled_once(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the call in a form that tells the size of an object that is sent."""
    if not (name.islower() and is_send(name)) or is_receive(name):
        return name, args, kwargs
    given = arguments_of(name, args, kwargs)
    if not is_accepted(name, args, kwargs) or given["dest"] in (None, MPI.PROC_NULL):
        return name, args, kwargs  # wrong, or nothing is sent: mpi4py reports it
    # mpi4py's ``isend`` is ``Isend`` of the bytes, and so are the others.
    data = [MPI.pickle.dumps(given["obj"]), MPI.BYTE]
    return name.capitalize(), (data, given["dest"], given["tag"]), {}


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


def _place_of(comm: MPI.Comm, members: Any) -> int:
    """Return the place of the name of some ranks of ``comm``."""
    if not isinstance(members, MPI.Group):  # the call itself will report the error
        return log.group_of(comm).place
    everyone = comm.Get_group()
    ranks = MPI.Group.Translate_ranks(members, None, everyone)
    everyone.Free()
    return log.part_of(comm, ranks)


# --- what a call moves --------------------------------------------------------------------


def _envelope(peer: Any, tag: Any) -> dict[str, int] | None:
    """Return where a message goes to or comes from; None if nowhere, or if unknown."""
    peer, tag = whole_number(peer), whole_number(tag)
    if peer is None or tag is None or peer == MPI.PROC_NULL:
        return None
    return {
        "peer": ANY if peer == MPI.ANY_SOURCE else peer,
        "tag": ANY if tag == MPI.ANY_TAG else tag,
    }


def _message(
    name: str, plain: str, end: str, peer: Any, tag: Any, data: Any
) -> dict[str, int] | None:
    described = _envelope(peer, tag)
    if described is None or (name.islower() and end == "recv"):  # an object yet to come
        return described and described | _contents(name, None)
    return described | _contents(name, data) | _size(plain, data)


def _contents(name: str, data: Any) -> dict[str, int]:
    if name.islower():
        return {"dtype": log.string("pickle")}
    memory = data[0] if isinstance(data, (list, tuple)) and data else data
    if not (hasattr(memory, "dtype") and hasattr(memory, "shape")):
        return {}
    return {"dtype": log.dtype(memory.dtype), "shape": log.shape(memory.shape)}


def _size(plain: str, data: Any) -> dict[str, int]:
    size = bytes_sent(plain, data)
    return {} if size is None else {"size": size}


def _collective(comm: MPI.Comm, name: str, given: Arguments) -> dict[str, int]:
    described = {}
    if "root" in given:
        root = whole_number(given["root"])
        described["root"] = ANY if root is None else root
    if name.lower().endswith("barrier"):
        return described
    only_root_gives = name.lower().removeprefix("i").startswith(("bcast", "scatter"))
    gives = not only_root_gives or described["root"] == comm.Get_rank()
    if name.islower():
        described |= _contents(name, None)
        if log.listeners:  # no one else needs it enough to pickle everything twice
            with contextlib.suppress(Exception):  # the call itself will say what is wrong
                described["size"] = _pickled_bytes(name, sent_in(given)) if gives else 0
        return described
    # In place, the data are in the receive buffer.
    buffers = [given[key] for key in _BUFFERS if given.get(key) is not None]
    data = next((one for one in buffers if one is not MPI.IN_PLACE), None)
    described |= _contents(name, data) | _size(name, data)
    return described if gives else described | {"size": 0}


def _pickled_bytes(name: str, sent: Any) -> int:
    """Return the bytes of the objects that this rank hands to the collective ``name``."""
    if name in ("scatter", "alltoall"):
        return sum(map(bytes_of_object, sent))
    return bytes_of_object(sent)
