"""Receive what ``comm.Mprobe`` has found with a deadline and a log entry, as ``comm.Recv``."""

from __future__ import annotations

from typing import Any

from ..board.call_site import call_site
from ..core import links
from ..core.runtime import MPI
from ..log.events import log
from ..meeting.doorbell import Awaited
from .requests import GuardedRequest


class GuardedMessage(MPI.Message):
    """An mpi4py message whose receiving calls have its communicator's deadline."""

    _comm: Any
    _awaited: Awaited

    def __new__(
        cls, message: MPI.Message, comm: Any = None, status: MPI.Status | None = None
    ) -> GuardedMessage:
        """Take over ``message``, which a probe of ``comm`` has found with this status."""
        self = super().__new__(cls, message)
        self._comm = comm
        if status is not None:
            source, size = status.Get_source(), status.Get_count(MPI.BYTE)
            self._awaited = Awaited(comm.bells, source, size, is_matched=True)
        return self

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        """Receive it into ``buf``."""
        __tracebackhide__ = True
        self._take_in(self._started("Recv", super().Irecv(buf)), status)

    def recv(self, status: MPI.Status | None = None) -> Any:
        """Return the object received."""
        __tracebackhide__ = True
        return self._take_in(self._started("recv", super().irecv()), status)

    def Irecv(self, buf: Any) -> GuardedRequest:
        """Start receiving it into ``buf``."""
        return self._started("Irecv", super().Irecv(buf))

    def irecv(self) -> GuardedRequest:
        """Start receiving the object."""
        return self._started("irecv", super().irecv())

    def _started(self, name: str, request: MPI.Request) -> GuardedRequest:
        group = log.group_of(self._comm).place
        event = log.begin(log.string(name), group, False, call_site(3))
        self._comm.bells.receives(self._awaited.peer, self._awaited.size_bytes)
        return GuardedRequest(request).started_by(self._comm, name, [event], lambda: self._awaited)

    def _take_in(self, request: GuardedRequest, status: MPI.Status | None) -> Any:
        __tracebackhide__ = True
        status = MPI.Status() if status is None else status
        received = request.wait(status)
        link = links.current()
        if link is not None and status.Get_source() not in (self._comm.Get_rank(), MPI.PROC_NULL):
            link.take_in(self._comm, status.Get_count(MPI.BYTE))
        return received
