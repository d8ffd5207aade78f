"""Messages can be rehearsed for any number of ranks in one process, with certainty.

:func:`rehearse` calls a function for ranks 0 to p - 1, each in a thread of its own with a
communicator of its own. One thread runs at a time, and hands over when it has to wait; so the
result is the same each time. A message leaves when both its send and its receive have begun,
as MPI does it with large messages. So a deadlock is no matter of patience: when nobody can go
on, all are told. This serves checks that need more ranks, or fewer, than there are engines.

Time is counted in steps: a message takes one step, and a rank sends one message and receives one
at the same time (the alpha-beta-gamma model with alpha = 1 and all else 0).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from .rehearsed_comm import (
    CollectiveError,
    Message,
    RehearsedComm,
    StuckError,
    Transfer,
    UnrehearsedError,
)

__all__ = ["CollectiveError", "Rehearsal", "StuckError", "UnrehearsedError", "rehearse"]

_SWITCH_SECONDS = 0.1
MOST_CALLS = 400  # of one rank: nothing that ends makes so many


@dataclass
class Rehearsal:
    """What happened on p ranks.

    Attributes:
        results, errors: by rank; an error is None, what the function raised, or StuckError.
        messages: in the order in which they arrived.
        stuck: by rank, the calls in which it waited when nobody could go on.
        lost: sends that nobody received, though everyone came to an end.
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


def rehearse(function: Callable, inputs: list[tuple]) -> Rehearsal:
    """Call ``function(comm, *inputs[r])`` for each rank r of ``len(inputs)`` and tell all.

    The communicators know ``Send``, ``Recv``, ``Isend``, ``Irecv``, ``Sendrecv``, ``Ssend`` and
    the same in lower case, ``rank``, ``size`` and requests with ``wait``. Collectives raise
    CollectiveError.
    """
    stage = _Stage(len(inputs))
    return stage.play(function, inputs)


# ---- who runs, who waits ----------------------------------------------------------------------


class _Stage:
    def __init__(self, size: int) -> None:
        self.size = size
        self.comms = [RehearsedComm(self, rank) for rank in range(size)]
        self.sends: list[Transfer] = []
        self.receives: list[Transfer] = []
        self.messages: list[Message] = []
        self.turns = [threading.Event() for _ in range(size)]
        self.handed_back = threading.Event()
        self.until: list[Callable[[], bool] | None] = [lambda: True] * size  # None: at its end
        self.ending = False
        self.results: list = [None] * size
        self.errors: list[BaseException | None] = [None] * size

    def play(self, function: Callable, inputs: list[tuple]) -> Rehearsal:
        threads = [
            threading.Thread(target=self._act, args=(rank, function, inputs[rank]), daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        over = threading.Event()
        threading.Thread(target=_keep_switching, args=(over,), daemon=True).start()
        running = None
        try:
            while (running := self._next()) is not None:
                self._give_turn(running)
            stuck = {r: self._waits(r) for r in range(self.size) if self.until[r] is not None}
            self.ending = True
            for rank in stuck:
                running = rank
                self._give_turn(rank)
        except BaseException:  # interrupted: whoever runs is to stop as well
            self.ending = True
            if running is not None:
                _raise_in(threads[running], StuckError)
            for turn in self.turns:
                turn.set()
            raise
        finally:
            over.set()
        lost = [send.message for send in self.sends] if not stuck else []
        return Rehearsal(self.results, self.errors, self.messages, stuck, lost)

    def _next(self) -> int | None:
        """Return a rank that can go on, the least advanced first, or None."""
        ready = [r for r in range(self.size) if self.until[r] is not None and self.until[r]()]
        return min(ready, key=lambda r: (self.comms[r].now, r), default=None)

    def _give_turn(self, rank: int) -> None:
        self.handed_back.clear()
        self.turns[rank].set()
        self.handed_back.wait()

    def _act(self, rank: int, function: Callable, arguments: tuple) -> None:
        self._wait_for_turn(rank)
        if self.ending:
            return
        try:
            self.results[rank] = function(self.comms[rank], *arguments)
        except BaseException as error:  # every rank's error is judged by the caller
            self.errors[rank] = error
        self.until[rank] = None
        self.handed_back.set()

    def _wait_for_turn(self, rank: int) -> None:
        self.turns[rank].wait()
        self.turns[rank].clear()

    def wait(self, rank: int, until: Callable[[], bool]) -> None:
        """Let others run until ``until`` holds."""
        self.until[rank] = until
        self.handed_back.set()
        self._wait_for_turn(rank)
        if self.ending:
            raise StuckError

    def _waits(self, rank: int) -> list[Message]:
        return [t.message for t in (*self.sends, *self.receives) if t.rank == rank and t.waited]

    # ---- messages ----

    def post(self, transfer: Transfer) -> None:
        """Begin a send or a receive, and deliver what now has both ends."""
        comm = self.comms[transfer.rank]
        comm.calls += 1
        if comm.calls > MOST_CALLS:
            raise RuntimeError(f"rank {transfer.rank} made more than {MOST_CALLS} calls")
        (self.sends if transfer.sends else self.receives).append(transfer)
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


def _keep_switching(over: threading.Event) -> None:
    """Ask for the interpreter's lock from time to time.

    A thread that hands the lock over waits, without a limit, until another one says that it has
    it, and glibc before 2.41 loses such a signal once in a great while (its bug 25847). If the
    other one then computes for ever, an interrupt is never seen. Any third thread ends that.
    """
    while not over.wait(_SWITCH_SECONDS):
        pass


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(error)
    )
