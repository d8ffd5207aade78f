"""Rehearses messages between any number of ranks in one process, the same way each time.

:func:`rehearse` calls a function for ranks 0 to p - 1, each with a communicator of its own. They
take turns (:class:`~course_lib.teaching.turns.Turns`): one rank runs at a time, until it has to
wait, so the result is the same each time. A message leaves when both its send and its receive have
begun, as large messages do in MPI. So a deadlock needs no time-out: when no rank can go on, every
call that waits raises an error. Checks use this for more ranks, or fewer, than there are engines.

Time is counted in steps: a message takes one step, and a rank sends one message and receives one
at the same time (the alpha-beta-gamma model with alpha = 1 and all else 0).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np

from course_lib.teaching.turns import StuckError, Turns

from .own_globals import OnRanks
from .rehearsed_comm import CollectiveError, Message, RehearsedComm, Transfer, UnrehearsedError

__all__ = ["CollectiveError", "Rehearsal", "StuckError", "UnrehearsedError", "rehearse"]

_LEFT_THERE = 113
MOST_CALLS = 400  # of one rank: no function that returns makes so many


@dataclass
class Rehearsal:
    """What happened on p ranks.

    Attributes:
        results, errors: by rank; an error is None, what the function raised, or StuckError.
        messages: in the order in which they arrived.
        stuck: by rank, the calls in which it waited when no rank could go on.
        lost: sends that no rank received, although all ranks finished.
        steps: the length of the longest chain of messages one after another.
    """

    results: list
    errors: list[BaseException | None]
    messages: list[Message]
    stuck: dict[int, list[Message]] = field(default_factory=dict)
    lost: list[Message] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return max((message.end for message in self.messages), default=0)

    def sent(self, rank: int) -> list[Message]:
        """Return the messages that ``rank`` sent."""
        return [message for message in self.messages if message.source == rank]

    def bytes_sent(self, rank: int) -> int:
        """Return the bytes that ``rank`` sent."""
        return sum(message.nbytes for message in self.sent(rank))


def rehearse(function: Callable | OnRanks, inputs: list[tuple]) -> Rehearsal:
    """Call ``function(comm, *inputs[r])`` for each rank r of ``len(inputs)``; return what happened.

    Each rank has globals of its own; with :class:`OnRanks`, it keeps them for the next call.

    The communicators know ``Send``, ``Recv``, ``Isend``, ``Irecv``, ``Sendrecv``, ``Ssend`` and
    the same in lower case, ``Sendrecv_replace``, ``rank``, ``size`` and requests with ``wait``;
    meanwhile, ``MPI.Request`` is the class of these requests, so its ``waitall`` waits for them.
    Collectives raise CollectiveError.
    """
    with _rehearsed_requests(), _memory_without_luck():
        functions = function if isinstance(function, OnRanks) else OnRanks(function)
        return _Stage(functions, inputs).play()


def _rehearsed_requests() -> contextlib.AbstractContextManager:
    mpi = sys.modules.get("mpi4py.MPI")  # None: so the function cannot name it
    return patch.object(mpi, "Request", Transfer) if mpi else contextlib.nullcontext()


def _memory_without_luck() -> contextlib.AbstractContextManager:
    """Fill what ``np.empty`` returns: it may hold the right result of an earlier call."""

    def filled(make: Callable) -> Callable:
        @functools.wraps(make)
        def call(*args, **kwargs):
            array = make(*args, **kwargs)
            if array.dtype != object:
                array.fill(_LEFT_THERE)
            return array

        return call

    return patch.multiple(np, empty=filled(np.empty), empty_like=filled(np.empty_like))


class _Stage:
    """Brings the ranks' sends and receives together."""

    def __init__(self, functions: OnRanks, inputs: list[tuple]) -> None:
        self.size = len(inputs)
        self.comms = [RehearsedComm(self, rank) for rank in range(self.size)]
        self.sends: list[Transfer] = []
        self.receives: list[Transfer] = []
        self.unread: list[Transfer] = []  # receives that no rank has waited for yet
        self.messages: list[Message] = []
        self.turns = Turns(
            [
                functools.partial(functions[comm.rank], comm, *given)
                for comm, given in zip(self.comms, inputs, strict=True)
            ]
        )

    def play(self) -> Rehearsal:
        with self.turns:
            stuck = {rank: self._waits(rank) for rank in self.turns.play()}
        lost = [send.message for send in self.sends] if not stuck else []
        return Rehearsal(self.turns.results, self.turns.errors, self.messages, stuck, lost)

    def _waits(self, rank: int) -> list[Message]:
        return [t.message for t in (*self.sends, *self.receives) if t.rank == rank and t.waited]

    def wait(self, rank: int, until: Callable[[], bool]) -> None:
        """Let others run until ``until`` holds, the least advanced first."""
        self.turns.wait(until, place=self.comms[rank].now)

    def post(self, transfer: Transfer) -> None:
        """Begin a send or a receive, and deliver what now has both ends."""
        comm = self.comms[transfer.rank]
        comm.calls += 1
        if self.turns.ending:
            self.turns.refuse(StuckError())
        if comm.calls > MOST_CALLS:
            error = f"rank {transfer.rank} made more than {MOST_CALLS} calls"
            self.turns.refuse(RuntimeError(error))
        self.unread = [receive for receive in self.unread if not receive.waited]
        if transfer.sends:
            transfer.message.not_yet_there = any(map(transfer.shares_memory_with, self.unread))
            self.sends.append(transfer)
        else:
            self.receives.append(transfer)
            self.unread.append(transfer)
        for send in list(self.sends):
            receive = next((r for r in self.receives if _fits(send, r)), None)
            if receive is not None:
                self.sends.remove(send)
                self.receives.remove(receive)
                self._deliver(send, receive)

    def _deliver(self, send: Transfer, receive: Transfer) -> None:
        message = send.message
        sender, receiver = self.comms[send.rank], self.comms[receive.rank]
        start = max(send.begun, receive.begun, sender.sends_until, receiver.receives_until)
        sender.sends_until = receiver.receives_until = message.end = start + 1
        send.end = receive.end = message.end
        send.done = receive.done = True
        receive.message.source, receive.message.nbytes = send.rank, message.nbytes
        message.dest = receive.rank
        self.messages.append(message)
        try:
            receive.take(send)
        except ValueError as error:
            receive.failure = error


def _fits(send: Transfer, receive: Transfer) -> bool:
    return (
        send.peer == receive.rank
        and receive.peer in (None, send.rank)
        and receive.tag in (None, send.tag)
    )
