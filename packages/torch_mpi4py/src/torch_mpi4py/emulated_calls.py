"""Make mpi4py calls of the library's communicator take as long as the emulated link says.

The timing is that of :mod:`torch_mpi4py.link_emulation`; here is which argument of which call is
the message. Python objects are as long as they are pickled. A non-blocking call may send or
receive; what else mpi4py has of that kind raises an error. Persistent requests (``Send_init``)
and one-sided communication are not emulated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import deadlines
from .call_arguments import (
    arguments_of,
    bytes_of,
    bytes_of_object,
    is_receive,
    is_send,
    sent_in,
    whole_number,
)
from .comm_events import end_call
from .events import Token, log
from .link_emulation import Link, hold_back, start_collective, take_in, take_place
from .link_queue import HeldSend, sleep_until
from .runtime import MPI

__all__ = ["HeldRequest", "call_on_link", "start_on_link"]

Given = Mapping[str, Any]
_COLLECTIVES = {
    "barrier": "barrier",
    "bcast": "broadcast",
    "reduce": "reduce",
    "allreduce": "all_reduce",
    "gather": "gather",
    "gatherv": "gather",
    "scatter": "scatter",
    "scatterv": "scatter",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallw": "all_to_all",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_block": "reduce_scatter",
    "scan": "scan",
    "exscan": "scan",
}


def call_on_link(
    link: Link,
    comm: MPI.Intracomm,
    name: str,
    plain: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Given,
) -> Any:
    """Return ``plain(comm, *args, **kwargs)``, the blocking call ``name``, on ``link``.

    A call that receives must have been given a status.
    """
    given = arguments_of(name, args, kwargs)
    collective = _COLLECTIVES.get(name.lower())
    if collective is not None:
        due = start_collective(link, comm, collective, _part_bytes(comm, name, collective, given))
        result = plain(comm, *args, **kwargs)
        sleep_until(due, comm)
        return result
    if is_send(name) and _is_other(comm, given.get("dest")):
        take_place(link, comm, given["dest"], _sent_bytes(name, given)).wait_for_turn()
    result = plain(comm, *args, **kwargs)
    if is_receive(name):
        status = given["status"]
        if status.Get_source() not in (comm.Get_rank(), MPI.PROC_NULL):
            take_in(comm, status.Get_count(MPI.BYTE))
    return result


def start_on_link(
    link: Link,
    comm: MPI.Intracomm,
    name: str,
    plain: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Given,
) -> MPI.Request | HeldRequest:
    """Return the request of the non-blocking call ``name`` on ``link``.

    Raises:
        NotImplementedError: if it is neither a send nor a receive.
    """
    if is_send(name) == is_receive(name):
        instead = "Isend and Irecv" if is_send(name) else f"{name[1:].capitalize()}, which blocks"
        raise NotImplementedError(
            f"comm.{name} is not emulated: within emulated_link call {instead}"
            + ("" if is_send(name) else ", or torch.distributed with async_op=True")
        )
    given = arguments_of(name, args, kwargs)
    if not is_send(name) or not _is_other(comm, given.get("dest")):
        return plain(comm, *args, **kwargs)  # what is received is late by itself
    if name[0].isupper():
        size_bytes = _sent_bytes(name, given)
        start = functools.partial(plain, comm, *args, **kwargs)
    else:
        data = MPI.pickle.dumps(given.get("obj"))  # now: the object may change later
        size_bytes = len(data)
        plain = getattr(MPI.Intracomm, name.capitalize())
        start = functools.partial(plain, comm, [data, MPI.BYTE], given["dest"], given["tag"])
    held = hold_back(link, comm, given["dest"], size_bytes, start)
    return HeldRequest(held, comm, name)


class HeldRequest:
    """The request of a message that is kept back, with the methods of ``GuardedRequest``.

    It is no ``MPI.Request``, for which MPI could wait by itself: only its own methods, and
    ``comm.wait``, know when the message leaves.
    """

    events: Sequence[Token | None] = ()
    """Its entries in the event log."""

    def __init__(self, held: HeldSend, comm: Any, name: str) -> None:
        self._held, self._comm, self._name = held, comm, name

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the message has arrived."""
        __tracebackhide__ = True
        self.Wait(status)

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the buffer may be used again; always true."""
        __tracebackhide__ = True
        what = f"wait of {self._name}"
        for event in self.events:
            log.waits(event, True)
        try:
            deadlines.call(self._comm, what, self._comm.timeout, self._held.Wait, status)
            deadlines.confirm_sent(self._comm, what)
        except BaseException as error:
            end_call(self.events, None, error)
            raise
        end_call(self.events, None)
        return True

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Return whether the message has arrived, and None."""
        return self.Test(status), None

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the buffer may be used again."""
        ended = self._held.Test(status)
        if ended:
            end_call(self.events, None)
        return ended

    def Cancel(self) -> None:
        """Ask MPI to cancel the message, once it has left."""
        self._held.Cancel()

    def __bool__(self) -> bool:
        return bool(self._held)

    def __del__(self) -> None:
        for event in self.events:
            log.drop(event)


# --- what a call moves --------------------------------------------------------------------


def _is_other(comm: MPI.Comm, dest: Any) -> bool:
    """Whether there is a link to ``dest``; what is no rank is left to MPI to refuse."""
    dest = whole_number(dest)
    return dest is not None and 0 <= dest < comm.Get_size() and dest != comm.Get_rank()


def _sent_bytes(name: str, given: Given) -> int:
    sent = sent_in(given)
    return bytes_of_object(sent) if name[0].islower() else bytes_of(sent)


def _part_bytes(comm: MPI.Intracomm, name: str, collective: str, given: Given) -> float:
    """Bytes as :func:`collective_seconds` wants them; the largest of all ranks will count."""
    if collective == "barrier":
        return 0
    sent, received = sent_in(given), given.get("recvbuf")
    if name[0].islower():
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


def _object_bytes(comm: MPI.Intracomm, collective: str, sent: Any, given: Given) -> int:
    if collective in ("broadcast", "scatter") and comm.Get_rank() != given["root"]:
        return 0
    if collective in ("scatter", "all_to_all"):
        return max(map(bytes_of_object, sent), default=0)
    return bytes_of_object(sent)
