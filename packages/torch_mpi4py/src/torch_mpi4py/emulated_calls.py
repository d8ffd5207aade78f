"""Mpi4py calls of the library's communicator take as long as the emulated link says.

The timing is that of :mod:`torch_mpi4py.link_emulation`; here is which argument of which call is
the message. Python objects are as long as they are pickled. A non-blocking collective is priced
from this rank's own start, since it may not wait for the others. Persistent requests
(``Send_init``) and one-sided communication are not emulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .collective_costs import collective_seconds
from .link_emulation import Link, depart, start_collective, take_in
from .link_queue import Departure, HeldRequest, LateRequest, Promise, sleep_until
from .message_bytes import bytes_of, bytes_of_object, whole_number
from .requests import GuardedRequest
from .runtime import MPI

__all__ = ["HeldGuardedRequest", "call_on_link", "start_on_link"]

_RECEIVE_STATUS = {"Recv": 3, "recv": 3, "Sendrecv": 6, "sendrecv": 6, "Sendrecv_replace": 5}
_PICKLED_STARTS = {"isend": "Isend", "issend": "Issend", "ibsend": "Ibsend"}
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

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


def call_on_link(
    link: Link, comm: MPI.Intracomm, name: str, plain: Callable[..., Any], args, kwargs
) -> Any:
    """Return ``plain(comm, *args, **kwargs)``, the blocking call ``name``, on ``link``."""
    given = (args, kwargs)
    if "send" in name.lower():
        dest = _argument(given, 1, "dest")
        if _is_other(comm, dest):
            depart(link, comm, dest, _sent_bytes(name, given)).wait_for_turn()
    if name in _RECEIVE_STATUS:
        return _receive(comm, name, plain, given)
    collective = _COLLECTIVES.get(name.lower())
    if collective is None:
        return plain(comm, *args, **kwargs)
    size_bytes = _part_bytes(comm, name, collective, given)
    due = start_collective(link, comm, collective, size_bytes)
    result = plain(comm, *args, **kwargs)
    sleep_until(due, comm)
    return result


def start_on_link(
    link: Link, comm: MPI.Intracomm, name: str, plain: Callable[..., Any], args, kwargs
) -> MPI.Request | HeldGuardedRequest:
    """Return the request of the non-blocking call ``name`` on ``link``."""
    given = (args, kwargs)
    if "send" in name.lower():
        dest = _argument(given, 1, "dest")
        if not _is_other(comm, dest):
            return plain(comm, *args, **kwargs)
        start, size_bytes = _starter(comm, name, plain, given)
        held = HeldRequest(depart(link, comm, dest, size_bytes, start))
        return HeldGuardedRequest(held, comm, name)
    collective = _COLLECTIVES.get(name.lower().removeprefix("i"))
    if collective is None:  # irecv, Irecv: the message is late by itself
        return plain(comm, *args, **kwargs)
    size_bytes = _part_bytes(comm, name[1:].capitalize(), collective, given)
    seconds = collective_seconds(
        collective, comm.Get_size(), size_bytes, link.latency, 1 / link.bandwidth
    )
    due = time.perf_counter() + seconds
    late = Departure.late(comm, plain(comm, *args, **kwargs), due)
    return HeldGuardedRequest(LateRequest(late), comm, name)


class HeldGuardedRequest(GuardedRequest):
    """The request of a message that is kept back, or of a collective that has time left.

    To MPI it is a generalised request, so ``MPI.Request.Waitall``, ``Testany`` and the like are
    right about it, too; then the courier of :mod:`torch_mpi4py.link_queue` does the sending.
    """

    def __new__(cls, held: HeldRequest, comm: Any = None, name: str = "") -> HeldGuardedRequest:
        promise = Promise(held.departure)
        self = super().__new__(cls, promise.request, comm, name)
        self._held, self._promise = held, promise
        return self

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the message has arrived."""
        __tracebackhide__ = True
        self.Wait(status)

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the buffer may be used again; always true."""
        __tracebackhide__ = True
        return self._guarded(self._wait, status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Return whether the message has arrived, and None."""
        return self.Test(status), None

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the buffer may be used again."""
        status = MPI.Status() if status is None else status
        if self:
            if not self._held.Test(status):
                return False
            self._release()
            self._end(status)
        return True

    def Cancel(self) -> None:
        """Ask MPI to cancel the message, once it has left."""
        self._held.Cancel()

    def _wait(self, status: MPI.Status) -> bool:
        if not self:  # it has ended in one of MPI's own waits
            return True
        try:
            self._held.Wait(status)
        except BaseException:
            if self._held.departure.taken:  # otherwise the courier still cares for it
                self._release()
            raise
        self._release()
        return True

    def _release(self) -> None:
        """Become a request that has ended, also to MPI."""
        self._promise.end()
        if self:
            self.Free()

    def __del__(self) -> None:
        super().__del__()
        if self and not MPI.Is_finalized():
            self.Free()


def _is_other(comm: MPI.Comm, dest: Any) -> bool:
    """Whether there is a link to ``dest``; what is no rank is left to MPI to refuse."""
    dest = whole_number(dest)
    return dest is not None and 0 <= dest < comm.Get_size() and dest != comm.Get_rank()


def _argument(given: Arguments, place: int, *names: str, default: Any = None) -> Any:
    args, kwargs = given
    if place < len(args):
        return args[place]
    return next((kwargs[name] for name in names if name in kwargs), default)


def _sent_bytes(name: str, given: Arguments) -> int:
    sent = _argument(given, 0, "buf", "obj", "sendbuf", "sendobj")
    return bytes_of_object(sent) if name.islower() else bytes_of(sent)


def _receive(comm: MPI.Intracomm, name: str, plain: Callable[..., Any], given: Arguments) -> Any:
    args, kwargs = given
    status = _argument(given, _RECEIVE_STATUS[name], "status")
    if status is None:
        status = MPI.Status()
        args = args[: _RECEIVE_STATUS[name]]
        kwargs = {**kwargs, "status": status}
    received = plain(comm, *args, **kwargs)
    if status.Get_source() not in (comm.Get_rank(), MPI.PROC_NULL):
        take_in(comm, status.Get_count(MPI.BYTE))
    return received


def _starter(comm, name: str, plain, given: Arguments) -> tuple[Callable[[], MPI.Request], int]:
    args, kwargs = given
    if name not in _PICKLED_STARTS:
        return lambda: plain(comm, *args, **kwargs), _sent_bytes(name, given)
    data = MPI.pickle.dumps(_argument(given, 0, "obj"))  # now: the object may change later
    dest, tag = _argument(given, 1, "dest"), _argument(given, 2, "tag", default=0)
    start = getattr(MPI.Intracomm, _PICKLED_STARTS[name])
    return lambda: start(comm, [data, MPI.BYTE], dest, tag), len(data)


def _part_bytes(comm: MPI.Intracomm, name: str, collective: str, given: Arguments) -> float:
    """Bytes as :func:`collective_seconds` wants them; the largest of all ranks will count."""
    if collective == "barrier":
        return 0
    sent = _argument(given, 0, "buf", "obj", "sendbuf", "sendobj")
    if name.islower():
        return _object_bytes(comm, collective, sent, given)
    if collective == "broadcast":
        return bytes_of(sent)
    received = _argument(given, 1, "recvbuf")
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
    if collective in ("broadcast", "scatter"):
        root = _argument(given, 1, "root", default=0)
        if comm.Get_rank() != root:
            return 0
    if collective in ("scatter", "all_to_all"):
        return max(map(bytes_of_object, sent), default=0)
    return bytes_of_object(sent)
