"""Make mpi4py calls of the library's communicator take as long as the emulated link says.

The timing is that of :mod:`torch_mpi4py.emulation.link_emulation`; this module knows which argument
of each call is the message. Python objects count with their pickled size. Calls that are neither a
blocking collective nor a plain send or receive, such as ``Iallreduce`` and ``Sendrecv_replace``,
raise an error. Persistent requests (``Send_init``) and one-sided communication are not emulated.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..comm.call_arguments import (
    Arguments,
    arguments_of,
    bytes_of,
    bytes_of_object,
    is_accepted,
    is_receive,
    is_send,
    sent_in,
    whole_number,
)
from ..comm.requests import RequestWithDeadline
from ..core.links import Link
from ..core.runtime import MPI
from .link_queue import HeldSend

if TYPE_CHECKING:
    from ..comm.guarded_comm import GuardedComm

_COLLECTIVES = {
    "barrier": "barrier",
    "bcast": "broadcast",
    "reduce": "reduce",
    "allreduce": "all_reduce",
    "gather": "gather",
    "scatter": "scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_block": "reduce_scatter",
    "scan": "scan",
    "exscan": "scan",
}
_INSTEAD = {
    "Sendrecv_replace": "Sendrecv",
    "Isendrecv": "Isend and Irecv",
    "Isendrecv_replace": "Isend and Irecv",
}


class HeldRequest(RequestWithDeadline, HeldSend):
    """The request of a delayed message, with the methods of ``GuardedRequest``.

    It isn't an ``MPI.Request``, which MPI could wait for by itself: only its own methods, and
    ``comm.wait``, know when the message leaves.
    """

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the message has arrived."""
        __tracebackhide__ = True
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Return whether the message has arrived, and None."""
        return self.Test(status), None


def call_on_link(link: Link, name: str, comm: GuardedComm, /, *args: Any, **kwargs: Any) -> Any:
    """Return ``comm.name(*args, **kwargs)``, a blocking call, on ``link``.

    A call that receives must have been given a status.

    Raises:
        NotImplementedError: if it is ``Sendrecv_replace``.
    """
    plain = functools.partial(getattr(MPI.Intracomm, name), comm)
    given = arguments_of(name, args, kwargs)
    collective = _COLLECTIVES.get(name.lower().rstrip("vw"))
    if collective is not None:
        size_bytes = _part_bytes(comm, name, collective, given)
        run = functools.partial(plain, *args, **kwargs)
        return link.collective(collective, comm, size_bytes, run)
    held = _send(link, comm, name, args, kwargs)
    received = None
    if held is None:
        received = plain(*args, **kwargs)
    elif is_receive(name):
        receive = MPI.Intracomm.recv if name.islower() else MPI.Intracomm.Recv
        into = (given[one] for one in ("recvbuf", "source", "recvtag", "status"))
        received = receive(comm, *into)
    if is_receive(name):
        status = given["status"]
        if status.Get_source() not in (comm.Get_rank(), MPI.PROC_NULL):
            link.take_in(comm, status.Get_count(MPI.BYTE))
    if held is not None:
        held.Wait()
    return received


def start_on_link(link: Link, name: str, comm: GuardedComm, /, *args: Any, **kwargs: Any) -> Any:
    """Return the request of ``comm.name(*args, **kwargs)``, a non-blocking call, on ``link``.

    Raises:
        NotImplementedError: if it is neither a send nor a receive.
    """
    if not (is_send(name) or is_receive(name)):
        raise NotImplementedError(
            f"comm.{name} is not emulated: within emulated_link call {name[1:].capitalize()}, "
            "which blocks, or torch.distributed with async_op=True"
        )
    held = _send(link, comm, name, args, kwargs, HeldRequest)
    # Received messages are late by themselves.
    return getattr(MPI.Intracomm, name)(comm, *args, **kwargs) if held is None else held


def _send(
    link: Link,
    comm: GuardedComm,
    name: str,
    args: Sequence[Any],
    kwargs: Arguments,
    kind: type[Any] | None = None,
) -> Any:
    """Have the message that a call sends carried; return None if there is no link for it."""
    if name in _INSTEAD:
        raise NotImplementedError(
            f"comm.{name} is not emulated: within emulated_link call {_INSTEAD[name]}"
        )
    given = arguments_of(name, args, kwargs)
    if not (is_send(name) and is_accepted(name, args, kwargs) and _is_other(comm, given["dest"])):
        return None
    data, tag = sent_in(given), given.get("tag", given.get("sendtag"))
    if name.islower():
        data = [MPI.pickle.dumps(data), MPI.BYTE]
    plain = "Isend" if is_receive(name) else f"I{name.lower().removeprefix('i')}"
    dest, isend = given["dest"], getattr(MPI.Intracomm, plain)

    def start() -> MPI.Request:
        request = isend(comm, data, dest, tag)
        comm.bells.sent(dest)
        return request

    return link.send(start, comm, dest, bytes_of(data), kind)


def _is_other(comm: MPI.Comm, dest: Any) -> bool:
    """Whether there is a link to ``dest``; MPI refuses it if it is no rank."""
    dest = whole_number(dest)
    return dest is not None and 0 <= dest < comm.Get_size() and dest != comm.Get_rank()


# --- what a collective moves --------------------------------------------------------------


def _part_bytes(comm: MPI.Intracomm, name: str, collective: str, given: Arguments) -> float:
    """Bytes as :func:`collective_seconds` wants them; the largest of all ranks will count."""
    if collective == "barrier":
        return 0
    sent, received = sent_in(given), given.get("recvbuf")
    if name.islower():
        return _object_bytes(comm, collective, sent, given)
    if collective in ("scatter", "reduce_scatter"):
        return bytes_of(received)
    if collective == "all_to_all" or (sent is MPI.IN_PLACE and collective == "all_gather"):
        spec = received if sent is MPI.IN_PLACE else sent
        return _largest_of(spec, comm.Get_size())
    return bytes_of(received if sent is MPI.IN_PLACE else sent)


def _largest_of(spec: Any, ranks: int) -> float:
    """Bytes of the largest part in a buffer for all ranks."""
    counts = spec[1] if isinstance(spec, (list, tuple)) and len(spec) > 1 else None
    if isinstance(counts, tuple) and counts and isinstance(counts[0], Sequence):
        counts = counts[0]
    if isinstance(counts, Sequence) and not isinstance(counts, str) and sum(counts):
        return bytes_of(spec) * max(counts) / sum(counts)
    return bytes_of(spec) / ranks


def _object_bytes(comm: MPI.Intracomm, collective: str, sent: Any, given: Arguments) -> int:
    if collective in ("broadcast", "scatter") and comm.Get_rank() != given["root"]:
        return 0
    if collective in ("scatter", "all_to_all"):
        return max(map(bytes_of_object, sent), default=0)
    return bytes_of_object(sent)
