"""Receive what ``comm.Mprobe`` has found with a deadline and a log entry, as ``comm.Recv``."""

from __future__ import annotations

from typing import Any

from . import deadlines, link_emulation
from .call_site import call_site
from .comm_events import end_call
from .events import Token, log
from .requests import GuardedRequest
from .runtime import MPI

__all__ = ["GuardedMessage"]


class GuardedMessage(MPI.Message):
    """An mpi4py message whose receiving calls have its communicator's deadline."""

    _comm: Any

    def __new__(cls, message: MPI.Message, comm: Any = None) -> GuardedMessage:
        """Take over ``message``, which a probe of ``comm`` has found."""
        self = super().__new__(cls, message)
        self._comm = comm
        return self

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        """Receive it into ``buf``."""
        __tracebackhide__ = True
        self._receive("Recv", lambda known: MPI.Message.Recv(self, buf, known), status)

    def recv(self, status: MPI.Status | None = None) -> Any:
        """Return the object received."""
        __tracebackhide__ = True
        return self._receive("recv", lambda known: MPI.Message.recv(self, known), status)

    def Irecv(self, buf: Any) -> GuardedRequest:
        """Start receiving it into ``buf``."""
        return self._start("Irecv", lambda: MPI.Message.Irecv(self, buf))

    def irecv(self) -> GuardedRequest:
        """Start receiving the object."""
        return self._start("irecv", lambda: MPI.Message.irecv(self))

    def _receive(self, name: str, receive: Any, status: MPI.Status | None) -> Any:
        __tracebackhide__ = True
        status = MPI.Status() if status is None else status
        comm, events = self._comm, [self._begin(name, True)]
        try:
            received = deadlines.call(comm, name, comm.timeout, receive, status)
            if status.Get_source() not in (comm.Get_rank(), MPI.PROC_NULL):
                link_emulation.take_in(comm, status.Get_count(MPI.BYTE))
        except BaseException as error:
            end_call(events, None, error)
            raise
        end_call(events, status)
        return received

    def _start(self, name: str, start: Any) -> GuardedRequest:
        event = self._begin(name, False)
        try:
            request = GuardedRequest(start(), self._comm, name)
        except BaseException as error:
            end_call([event], None, error)
            raise
        request.events = [event]
        return request

    def _begin(self, name: str, waiting: bool) -> Token | None:
        if not log.enabled:
            return None
        group = log.group_of(self._comm).place
        return log.begin(log.string(name), group, waiting, log.string(call_site(3)))
