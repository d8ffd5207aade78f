"""Sends and receives as MPI requests, started at once and waited for later.

They never queue behind a collective, or behind each other. A message that is longer or shorter than
the receiver's tensor is an error on the receiver.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from ..core import links
from ..core.buffers import MAX_COUNT, Staging, message
from ..core.dtypes import element_type
from ..core.errors import CommunicationError, DeadlineError, RankFailedError, RevokedError
from ..core.runtime import MPI
from ..faults import deadlines, pending_requests
from ..faults.deaths import is_broken, is_revoked
from ..faults.mpi_errors import translate
from ..log.events import ANY, Token, begin_message, log
from ..log.profiling import Record
from ..meeting.doorbell import Awaited, wait, wait_unwatched
from .channel import Channel
from .futures import (
    DEPTH_OF_MESSAGES,
    CallbackQueue,
    OrderedFuture,
    raise_at_end_of_backward,
    settle,
)
from .work import Handle, devices_of, future_lock, seconds_of, too_late

_SEND, _RECV = log.string("send"), log.string("recv")
_FATAL = (DeadlineError, RevokedError, RankFailedError)


def start_send(
    tensor: torch.Tensor, dest: int, tag: int, channel: Channel, seconds: float
) -> PointToPointWork:
    """Start sending ``tensor`` to rank ``dest`` of the channel's communicator."""
    staging = Staging()
    host = staging.read(tensor)
    staging.arrive()
    what = f"send of {_describe(tensor)} to rank {dest} with tag {tag}"
    event = begin_message(_SEND, channel.group.place, tensor, dest, tag)
    send = message(host)

    def isend() -> MPI.Request:
        request = channel.comm.Isend(send, dest, tag)
        channel.bells.sent(dest)
        return request

    def start(comm: MPI.Intracomm) -> Any:
        link = links.current()
        return isend() if link is None else link.send(isend, comm, dest, host.nbytes)

    return PointToPointWork(what, event, start, dest, tensor, host, staging, channel, seconds)


def start_receive(
    tensor: torch.Tensor, source: int, tag: int, channel: Channel, seconds: float
) -> PointToPointWork:
    """Start receiving into ``tensor`` from rank ``source`` (or ``MPI.ANY_SOURCE``)."""
    staging = Staging()
    host = staging.write(tensor)
    sender = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
    what = f"recv of {_describe(tensor)} from {sender} with tag {tag}"
    peer = ANY if source == MPI.ANY_SOURCE else source
    event = begin_message(_RECV, channel.group.place, tensor, peer, tag)

    def start(comm: MPI.Intracomm) -> MPI.Request:
        request = comm.Irecv(message(host), source, tag)
        channel.bells.receives(source, host.nbytes)
        return request

    work = PointToPointWork(what, event, start, source, tensor, host, staging, channel, seconds)
    work.receives = True
    if source == MPI.ANY_SOURCE:
        channel.open_receives[next(_order)] = work
    return work


_order = itertools.count()


def post_again(channel: Channel) -> None:
    """Replace the receives from any source that a death has touched, in their order.

    Call it once the death is acknowledged. In Open MPI 5.0.11 such a receive may go on to fail
    at once in every wait, and then no message is taken in any more.
    """
    # The last first: a message that comes meanwhile goes to the first, as it would have anyway.
    taken_back: list[PointToPointWork] = []
    try:
        for _, work in sorted(channel.open_receives.copy().items(), reverse=True):
            if work.take_back():
                taken_back.append(work)
    finally:
        for work in reversed(taken_back):
            work.post()


def _describe(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


class PointToPointWork(Handle):
    """Handle on one send or receive under way."""

    receives = False
    record: Record | None = None
    _request: Any = None

    def __init__(
        self,
        what: str,
        event: Token | None,
        start: Callable[[MPI.Intracomm], Any],
        peer: int,
        tensor: torch.Tensor,
        host: torch.Tensor,
        staging: Staging,
        channel: Channel,
        seconds: float,
    ) -> None:
        super().__init__()
        self._what = what
        self.event = event  # its entry in the event log
        self._start = start
        self._peer = peer
        self.tensors = [tensor]
        self._host = host
        self._staging = staging
        self._channel = channel
        self._seconds = seconds
        self._status = MPI.Status()
        self._lock = threading.Lock()
        self._future: OrderedFuture | None = None
        pending_requests.let_go()
        self.post()

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator that it is on."""
        return self._channel.comm

    def post(self) -> None:
        """Start it; a receive that was cancelled is started again, into the same tensor."""
        try:
            self._request = self._start(self._channel.comm)
        except MPI.Exception as error:
            translated = translate(error, self._what, self._channel.comm)
            log.end(self.event, translated)
            raise translated from error

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the buffer may be used again.

        Args:
            timeout: stop waiting after this time. The message may be waited for again, as a
                collective may, and unlike with gloo.

        Raises:
            DeadlineError: if the other rank does not come within the group's timeout, and the
                group is unusable then; or within ``timeout``.
            CommunicationError: if the message does not fit the tensor, or a rank died.
        """
        seconds = seconds_of(timeout)
        allowed = self._seconds
        if seconds >= 0 and not self.done:
            allowed = self._wait_for_end(seconds)
        with self._lock:
            if not self.done:
                log.waits(self.event, True)
                try:
                    self._finish(allowed)
                except KeyboardInterrupt as interrupt:
                    log.end(self.event, interrupt)
                    raise
                finally:
                    log.waits(self.event, False)
        if self.error is not None:
            raise self.error
        return True

    def _wait_for_end(self, seconds: float) -> float:
        """Return once MPI's wait would return at once, or raise DeadlineError.

        Returns:
            How long MPI may wait: once a rank has died, only MPI's own wait shows whether this
            message is affected, and it gets the rest of ``seconds``.
        """
        until = time.monotonic() + seconds

        def can_end_or_never_will() -> bool:
            return self._can_end() or is_broken(self._channel.comm)

        def require_time() -> float:
            left = until - time.monotonic()
            if left <= 0:
                raise too_late(self._what, seconds)
            return left

        log.waits(self.event, True)
        try:
            wait_unwatched(can_end_or_never_will, require_time, self._awaited())
            return self._seconds if self._can_end() else require_time()
        finally:
            log.waits(self.event, False)

    def _can_end(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False  # another thread waits, and ends it
        try:
            failed = self._channel.failure is not None
            return self.done or failed or self._request.Get_status()
        except MPI.Exception:
            return True
        finally:
            self._lock.release()

    def _finish(self, seconds: float) -> None:
        failure = self._channel.failure
        try:
            if failure is None:
                self._await_end(seconds)
            # What has come before the group failed is in: a wait would make its status empty.
            elif not self._request.Test(self._status):
                raise RevokedError(f"{self._what}: the group failed earlier: {failure}")
            self._take_delivery()
        except MPI.Exception as error:
            self.error = translate(error, self._what, self._channel.comm)
        except Exception as error:  # such as a failed copy to a GPU, which affects only this rank
            self.error = error
        except KeyboardInterrupt:
            self._channel.fail(RevokedError(f"{self._what}: interrupted by the user"))
            raise
        if self._is_of_a_death_alone():
            self._end_alone()
            return
        # A message that does not fit affects only this receive; a revoked communicator, or an
        # abandoned request, affects the group.
        if isinstance(self.error, _FATAL) or (self.error and self._request):
            self._channel.fail(self.error)
        self._end()

    def _await_end(self, seconds: float) -> None:
        comm, what = self._channel.comm, self._what
        is_held = not isinstance(self._request, MPI.Request)  # MPI may not know it yet
        if not is_held and self._request.Test(self._status):
            pass
        elif not is_held and self._channel.bells.is_peer(self._peer):
            self._sleep_until_end(deadlines.Operation(comm, what, seconds))
        else:
            deadlines.call(comm, what, seconds, self._request.Wait, self._status)
        link = links.current()
        if self.receives and link is not None:
            deadlines.call(comm, what, seconds, link.take_in, comm, self._host.nbytes)

    def _sleep_until_end(self, operation: deadlines.Operation) -> None:
        test = functools.partial(self._request.Test, self._status)
        try:
            wait(operation, test, self._awaited)
        except (DeadlineError, RevokedError):
            if self.receives and self._request:  # nothing may come into the tensor any more
                self._request.Cancel()
            if self._request:  # MPI may use its memory until it has ended
                pending_requests.keep(self._request, self._host, operation.comm)
            raise

    def _awaited(self) -> Awaited:
        return Awaited(self._channel.bells, self._peer, self._host.nbytes, not self.receives)

    def _end(self) -> None:
        self.done = True
        log.end(self.event, self.error)
        if self.record is not None:
            self.record.end()

    def __del__(self) -> None:
        log.drop(self.event)
        if not self.done and self._request:
            pending_requests.keep(self._request, self._host, self._channel.comm)

    def _is_of_a_death_alone(self) -> bool:
        return (
            isinstance(self.error, RankFailedError)
            and self._channel.survives_failures
            and not is_revoked(self._channel.comm)
        )

    def _end_alone(self) -> None:
        """After a death that the group survives: a request still active can be waited for."""
        if not self._request:
            self._end()
            return
        error, self.error = self.error, None
        if error is not None and not self._has_ended_after_all():
            raise error
        self._complete_tested()

    def _has_ended_after_all(self) -> bool:
        """Return whether a request that reports a death has ended nevertheless; then free it.

        The mark of a death is taken off a receive from any source only when MPI looks at it
        again, which it does not once a message is in, or the receive is cancelled.
        """
        if not self._request.Get_status(self._status):
            return False
        self._request.Free()
        return True

    def cancel(self) -> bool:
        """Give up a receive and its claim on the tensor; return False if a message came first."""
        with self._lock:
            if self.done:
                return False
            taken_back = self._take_back()
            self.done = True
            if taken_back:
                log.drop(self.event)
            else:
                self._note_arrival()
                log.end(self.event)
            return taken_back

    def take_back(self) -> bool:
        """Cancel a receive in order to post it again; return False if it has ended.

        A receive that another thread waits for is left alone: the death itself ends that wait.
        """
        if self.done or not self._lock.acquire(blocking=False):
            return False
        try:
            if self._take_back():
                return True
            self._complete_tested()
            return False
        finally:
            self._lock.release()

    def _take_back(self) -> bool:
        self._request.Cancel()
        wait, comm = self._request.Wait, self._channel.comm
        try:
            deadlines.call(comm, f"cancel of {self._what}", self._seconds, wait, self._status)
        except RankFailedError:
            if not (self._request and self._has_ended_after_all()):
                raise
        return self._status.Is_cancelled()

    def _take_delivery(self) -> None:
        if not self.receives:
            deadlines.confirm_sent(self._channel.comm, self._what)
            return
        self._note_arrival()
        received = self._status.Get_elements(element_type(self._host.dtype))
        if self._host.numel() > MAX_COUNT:
            received = self._host.numel()  # the count of a large datatype does not fit an int
        if received != self._host.numel():
            raise CommunicationError(
                f"{self._what}: the message holds {received} elements, but the tensor has room for "
                f"{self._host.numel()}. Give the receiver a tensor of the sender's shape and dtype."
            )
        self._staging.finish()

    def _note_arrival(self) -> None:
        status = self._status
        log.arrived(self.event, status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE))
        self._channel.bells.received(status.Get_source())

    def is_completed(self) -> bool:
        """Return whether the operation has ended; a receive makes progress by this call."""
        if self.done:
            return True
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self.done and self._request.Test(self._status):
                self._complete_tested()
        except MPI.Exception as error:
            if self._request and self._channel.survives_failures:
                if self._has_ended_after_all():
                    self._complete_tested()
            else:
                self.error = translate(error, self._what, self._channel.comm)
                self._end()
        finally:
            self._lock.release()
        return self.done

    def _complete_tested(self) -> None:
        try:
            self._take_delivery()
        except Exception as error:
            self.error = error
        self._end()

    def source_rank(self) -> int:
        """Return the rank in the group from which the message came."""
        return self._status.Get_source()

    _source_rank = source_rank

    def get_future(self) -> OrderedFuture:
        """Return a future of the list of the tensor; a thread of its own waits for it."""
        raise_at_end_of_backward(self.wait)
        with future_lock:
            if self._future is None:
                callbacks = CallbackQueue(self._what, DEPTH_OF_MESSAGES - 1)
                callbacks.seconds = self._seconds
                future = OrderedFuture(callbacks, devices_of(self.tensors))
                threading.Thread(
                    target=self._complete, args=(future,), name=self._what, daemon=True
                ).start()
                self._channel.queues_of_messages.add(callbacks)
                self._future = future
            return self._future

    def _complete(self, future: OrderedFuture) -> None:
        error: BaseException | None = None
        try:
            self.wait()
        except BaseException as failed:  # the future must complete with it
            error = failed
        settle(future, self.tensors, error)
