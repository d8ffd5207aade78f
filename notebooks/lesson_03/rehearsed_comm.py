"""The communicator of a rehearsed rank, which sends and receives as a real one does.

See :mod:`.rehearsal`, which brings both ends of a message together.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from course_lib.teaching.exercise import Staged

__all__ = [
    "CollectiveError",
    "Message",
    "RehearsedComm",
    "Stage",
    "Transfer",
    "UnrehearsedError",
]

_COLLECTIVES = {
    *("barrier", "bcast", "scatter", "scatterv", "gather", "gatherv", "allgather", "allgatherv"),
    *("reduce", "allreduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan"),
    *("alltoall", "alltoallv", "alltoallw"),
}


class CollectiveError(Staged):
    """A collective was called where single messages are asked for; its text is the name."""


class UnrehearsedError(Staged):
    """The function calls something that cannot be rehearsed; its text is the name."""


@dataclass
class Message:
    """One message that has arrived, or a call that still waits.

    Attributes:
        source, dest: ranks; source is None for a receive from any source, until a message arrives.
        nbytes: bytes sent.
        call: the sender's call; for a receive that still waits, the receiver's.
        end: the step by whose end the message had arrived.
        content: a copy of the numbers that were sent.
        changed: whether the sender changed them while they were on their way.
        not_yet_there: whether the sender was still receiving into them.
        waited: whether the sender waited for its call, at once or later.
    """

    source: int | None
    dest: int | None
    nbytes: int
    call: str
    end: int = 0
    content: np.ndarray | None = None
    changed: bool = False
    not_yet_there: bool = False
    waited: bool = True


class Stage(Protocol):
    """Matches sends with receives, and lets other ranks run meanwhile."""

    size: int
    comms: list[RehearsedComm]

    def post(self, transfer: Transfer) -> None: ...

    def wait(self, rank: int, until) -> None: ...


@dataclass(eq=False)
class Transfer:
    """One end of a message. ``data``: the buffer; None for a lower-case call."""

    stage: Stage
    rank: int
    peer: int | None
    tag: int | None
    data: np.ndarray | None
    sends: bool
    message: Message
    begun: int
    waited: bool = False
    done: bool = False
    end: int = 0
    object: object = None
    failure: ValueError | None = None

    def wait(self, status=None):
        """Wait until the transfer is done; a lower-case receive returns the object."""
        self.waited = self.message.waited = True
        if not self.done:
            self.stage.wait(self.rank, lambda: self.done)
        comm = self.stage.comms[self.rank]
        comm.now = max(comm.now, self.end)
        if self.failure is not None:
            raise self.failure
        if self.sends and self.data is not None:
            self.message.changed |= not np.array_equal(self.data, self.message.content)
        return self.object

    Wait = wait

    @staticmethod
    def waitall(requests, statuses=None):
        """Wait for each; see :func:`~.rehearsal.rehearse`."""
        return [request.wait() for request in requests]

    Waitall = waitall

    def test(self):
        raise UnrehearsedError("test")

    Test = test

    def shares_memory_with(self, other: Transfer) -> bool:
        """Tell whether both belong to one rank and share memory."""
        if self.rank != other.rank or self.data is None or other.data is None:
            return False
        return np.may_share_memory(self.data, other.data)  # exact, as buffers have no gaps

    def take(self, send: Transfer) -> None:
        """Copy what was sent into the receiver's buffer."""
        if (self.data is None) != (send.data is None):
            raise ValueError(
                "one side has a buffer (Send, Recv), the other one an object (send, recv)"
            )
        if send.data is None:
            self.object = send.message.content
            return
        content, room = send.message.content, self.data
        # What arrives is what the buffer holds when the message leaves, not when it was sent.
        send.message.changed |= not np.array_equal(send.data, content)
        if content.nbytes > room.nbytes:
            raise ValueError(
                f"message truncated: rank {send.rank} sends {content.nbytes} bytes, and rank "
                f"{self.rank} has room for {room.nbytes}"
            )
        raw = np.ascontiguousarray(send.data).view(np.uint8).reshape(-1)
        room.reshape(-1).view(np.uint8)[: len(raw)] = raw


class RehearsedComm:
    """The communicator of one rehearsed rank; see :func:`rehearse`."""

    def __init__(self, stage: Stage, rank: int) -> None:
        self._stage = stage
        self.rank, self.size = rank, stage.size
        self.now = self.sends_until = self.receives_until = self.calls = 0

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def __getattr__(self, name: str):
        if name.lower() in _COLLECTIVES or name.lower().removeprefix("i") in _COLLECTIVES:
            raise CollectiveError(name)
        raise UnrehearsedError(name)

    def Isend(self, buf, dest, tag=0):
        array = _array(buf)
        return self._send("Isend", array, array.copy(), array.nbytes, dest, tag)

    def Irecv(self, buf, source=None, tag=None):
        return self._receive("Irecv", _array(buf), source, tag)

    def Send(self, buf, dest, tag=0):
        array = _array(buf)
        self._send("Send", array, array.copy(), array.nbytes, dest, tag).wait()

    Ssend, Issend = Send, Isend

    def Recv(self, buf, source=None, tag=None, status=None):
        self._receive("Recv", _array(buf), source, tag).wait()

    def Sendrecv(
        self, sendbuf, dest, sendtag=0, recvbuf=None, source=None, recvtag=None, status=None
    ):
        array, room = _array(sendbuf), _array(recvbuf)
        send = self._send("Sendrecv", array, array.copy(), array.nbytes, dest, sendtag)
        self._both(send, self._receive("Sendrecv", room, source, recvtag))

    def Sendrecv_replace(self, buf, dest, sendtag=0, source=None, recvtag=None, status=None):
        room = _array(buf)
        array = room.copy()  # what goes out stays as it is while the other comes in
        send = self._send("Sendrecv_replace", array, array.copy(), array.nbytes, dest, sendtag)
        self._both(send, self._receive("Sendrecv_replace", room, source, recvtag))

    def isend(self, obj, dest, tag=0):
        return self._send("isend", None, copy.deepcopy(obj), _nbytes(obj), dest, tag)

    def irecv(self, buf=None, source=None, tag=None):
        return self._receive("irecv", None, source, tag)

    def send(self, obj, dest, tag=0):
        self._send("send", None, copy.deepcopy(obj), _nbytes(obj), dest, tag).wait()

    ssend, issend = send, isend

    def recv(self, buf=None, source=None, tag=None, status=None):
        return self._receive("recv", None, source, tag).wait()

    def sendrecv(
        self, sendobj, dest, sendtag=0, recvbuf=None, source=None, recvtag=None, status=None
    ):
        content = copy.deepcopy(sendobj)
        send = self._send("sendrecv", None, content, _nbytes(sendobj), dest, sendtag)
        return self._both(send, self._receive("sendrecv", None, source, recvtag))

    def _both(self, send: Transfer, receive: Transfer) -> object:
        send.waited = receive.waited = True
        got = receive.wait()
        send.wait()
        return got

    def _send(self, call: str, data, content, nbytes: int, dest: int, tag: int) -> Transfer:
        self._need_rank(dest, "dest")
        message = Message(self.rank, int(dest), nbytes, call, content=content, waited=False)
        transfer = Transfer(self._stage, self.rank, int(dest), tag, data, True, message, self.now)
        self._stage.post(transfer)
        return transfer

    def _receive(self, call: str, room, source: int | None, tag: int | None) -> Transfer:
        # MPI's ANY_SOURCE and ANY_TAG are negative; which numbers they are depends on the MPI.
        source = None if source is None or _is_any(source) else source
        if source is not None:
            self._need_rank(source, "source")
        tag = None if tag is None or tag < 0 else tag
        message = Message(source, self.rank, 0, call)
        transfer = Transfer(self._stage, self.rank, source, tag, room, False, message, self.now)
        self._stage.post(transfer)
        return transfer

    def _need_rank(self, number: int, name: str) -> None:
        if not 0 <= number < self.size:
            raise ValueError(f"there is no rank {number}: {name} must be 0 to {self.size - 1}")


def _nbytes(obj: object) -> int:
    return np.asarray(obj).nbytes


def _is_any(source: int) -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and source == mpi.ANY_SOURCE


def _array(buffer) -> np.ndarray:
    array = buffer[0] if isinstance(buffer, (list, tuple)) else buffer
    if hasattr(array, "detach"):
        array = array.detach().numpy()
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a buffer must be an array, not {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise ValueError("ndarray is not contiguous")
    return array
