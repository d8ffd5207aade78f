"""Requests whose waits have the same deadline as the blocking calls.

Non-blocking mpi4py calls on the library's communicator return a :class:`GuardedRequest`, and its
``Mprobe`` returns a :class:`GuardedMessage`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from ..board.call_site import call_site
from ..core import advice, links
from ..core.errors import DeadlineError, RevokedError
from ..core.runtime import MPI
from ..faults import deadlines, pending_requests
from ..log.events import Token, log
from ..meeting.doorbell import Awaited, wait
from .comm_events import end_call

NON_BLOCKING = (
    *("isend", "issend", "ibsend", "irecv"),
    *("Isend", "Issend", "Irsend", "Ibsend", "Irecv", "Isendrecv", "Isendrecv_replace"),
    *("Ibarrier", "Ibcast", "Igather", "Igatherv", "Iscatter", "Iscatterv"),
    *("Iallgather", "Iallgatherv", "Ialltoall", "Ialltoallv", "Ialltoallw"),
    *("Ireduce", "Iallreduce", "Ireduce_scatter", "Ireduce_scatter_block", "Iscan", "Iexscan"),
)


# MPICH 5.0.2 completes it with a status that says nothing: the arguments have to do.
_STATUS_IS_NOT_FILLED = {"Isendrecv"} if MPI.get_vendor()[0] == "MPICH" else set()

if TYPE_CHECKING:
    _Base = MPI.Request
else:
    _Base = object


class RequestWithDeadline(_Base):
    """Gives a request's own waiting the deadline of its communicator, and logs its end."""

    _comm: Any
    _name: str
    _awaited: Callable[[], Awaited] | None = None
    _was_given_up = False
    events: Sequence[Token | None] = ()
    """Its entries in the event log."""

    def started_by(
        self,
        comm: Any,
        name: str,
        events: Sequence[Token | None],
        awaited: Callable[[], Awaited] | None = None,
    ) -> Self:
        """Note that the method ``name`` (e.g. ``"Irecv"``) of ``comm`` has started it.

        Args:
            awaited: returns its message, whose partner rings; None if MPI has to wait for it.
        """
        self._comm, self._name, self._awaited, self.events = comm, name, awaited, events
        return self

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait, and return the object received, None for a send."""
        __tracebackhide__ = True
        return self._guarded(super().wait, super().test, status)

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until the buffer may be used again; always true."""
        __tracebackhide__ = True
        self._guarded(super().Wait, super().Test, status)
        return True

    @classmethod
    def waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> list[Any]:
        """Wait for each of ``requests`` and return what each received."""
        __tracebackhide__ = True
        return [
            request.wait(statuses[index] if statuses else None)
            for index, request in enumerate(requests)
        ]

    @classmethod
    def Waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        """Wait for each of ``requests``; always true."""
        __tracebackhide__ = True
        for index, request in enumerate(requests):
            request.Wait(statuses[index] if statuses else None)
        return True

    def _guarded(self, wait: Any, test: Any, status: MPI.Status | None) -> Any:
        __tracebackhide__ = True
        what = f"wait of {self._name}"
        status = MPI.Status() if status is None else status
        for event in self.events:
            log.waits(event, True)
        try:
            operation = deadlines.Operation(self._comm, what, self._comm.timeout)
            self._require_not_given_up(what)
            if self._awaited is not None:
                result = self._sleep_until_end(operation, self._awaited, test, status)
            else:
                result = deadlines.carry_out(operation, wait, status)
            if "send" in self._name.lower():
                deadlines.confirm_sent(self._comm, what)
        except BaseException as error:
            end_call(self.events, None, error)
            raise
        self._end(status)
        return result

    def _sleep_until_end(
        self,
        operation: deadlines.Operation,
        awaited: Callable[[], Awaited],
        test: Any,
        status: MPI.Status,
    ) -> Any:
        """Return what was received."""
        received: list[Any] = []

        def look() -> bool:
            ended = test(status)
            if isinstance(ended, tuple):
                ended, *received[:] = ended
            return ended

        try:
            wait(operation, look, awaited)
        except (DeadlineError, RevokedError, KeyboardInterrupt):
            self._was_given_up = True
            message = awaited()
            if self and not (message.sends or message.is_matched):  # or it would come in later
                MPI.Request.Cancel(self)
            if self:  # MPI may use its memory until it has ended
                pending_requests.keep(self, None)
            raise
        return received[0] if received else None

    def _require_not_given_up(self, what: str) -> None:
        if self._was_given_up:  # a cancelled receive would appear to have ended
            raise RevokedError(
                f"{what}: this operation was abandoned earlier. {advice.START_AGAIN}"
            )

    def _end(self, status: MPI.Status) -> None:
        tells = self._name.lower().endswith("recv") and self._name not in _STATUS_IS_NOT_FILLED
        end_call(self.events, status if tells else None)
        if tells:
            self._comm.bells.received(status.Get_source())

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Return whether it has ended, and what was received."""
        self._require_not_given_up(f"test of {self._name}")
        status = MPI.Status() if status is None else status
        ended, received = super().test(status)
        if ended:
            self._end(status)
        return ended, received

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the buffer may be used again."""
        self._require_not_given_up(f"test of {self._name}")
        status = MPI.Status() if status is None else status
        ended = super().Test(status)
        if ended:
            self._end(status)
        return ended

    def __del__(self) -> None:
        for event in self.events:
            if self:
                log.drop(event)
            else:  # it has ended in a call of mpi4py's own, such as MPI.Request.Waitall
                log.end(event)


class GuardedRequest(RequestWithDeadline, MPI.Request):
    """An mpi4py request whose ``wait`` has its communicator's deadline.

    ``wait``, ``Wait``, ``waitall`` and ``Waitall`` raise
    :class:`~torch_mpi4py.DeadlineError`, :class:`~torch_mpi4py.RevokedError` and
    :class:`~torch_mpi4py.RankFailedError` as blocking calls do. Wait for several with
    ``GuardedRequest.waitall(requests)`` or ``comm.wait(*requests)``: mpi4py's own
    ``MPI.Request.waitall`` knows of no deadline.
    """


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
