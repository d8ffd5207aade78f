"""Recognises a function's mistakes in the log of all ranks' messages.

These are the judges behind the checks of lesson 01. Each is given an :class:`Observation`, the
same on every rank, and raises :class:`WrongAnswer` with the name of the mistake it recognises.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import not_attempted
from course_lib.teaching.judges.messages import (
    all_stuck_in_first_send,
    all_waited,
    inside_the_world,
    judge_hang,
    no_collective,
    one_after_another,
)
from course_lib.teaching.message_log import LoggedComm, Observation

if TYPE_CHECKING:
    from torch_mpi4py import GuardedComm

HELLO = "hello"
READY = "I am ready for you"
_TURN = 4711  # the tag of the judge's own messages


def left(rank: int, p: int) -> int:
    return (rank - 1) % p


def right(rank: int, p: int) -> int:
    return (rank + 1) % p


def happens_before(seen: Observation, first: tuple[int, int], then: tuple[int, int]) -> bool:
    """Whether messages force event ``first``, ``(rank, index)``, to come before ``then``.

    Calls of different ranks are ordered by their messages alone (Lamport 1978), never by clocks,
    so that a verdict does not depend on how fast the machine is.
    """
    arrivals = _arrivals(seen)
    reached, queue = set(), deque([first])
    while queue:
        rank, index = queue.popleft()
        if (rank, index) == then:
            return True
        if (rank, index) in reached or index >= len(seen.logs[rank]):
            continue
        reached.add((rank, index))
        queue.append((rank, index + 1))
        if (rank, index) in arrivals:
            queue.append(arrivals[rank, index])
    return False


def _arrivals(seen: Observation) -> dict[tuple[int, int], tuple[int, int]]:
    """Join each send to its receive: messages of one pair and tag never overtake each other."""
    sends, receives = defaultdict(list), defaultdict(list)
    for rank, log in enumerate(seen.logs):
        for index, event in enumerate(log):
            if event.kind == "send":
                sends[rank, event.peer, event.tag].append((rank, index))
            elif event.kind == "recv" and event.finished:
                receives[event.peer, rank, event.tag].append((rank, index))
    return {
        send: receive
        for channel, sent in sends.items()
        for send, receive in zip(sent, receives[channel], strict=False)
    }


def _waits_to_receive(seen: Observation, rank: int) -> bool:
    event = seen.stuck().get(rank)
    return event is not None and event.kind == "recv"


# ---- ring pass --------------------------------------------------------------------------------


def judge_ring_pass(seen: Observation, start: list) -> None:
    p = len(seen.results)
    not_attempted(seen.errors)
    no_collective(seen)
    inside_the_world(seen)
    astray = [(source, dest) for source, dest in seen.sent() if dest != right(source, p)]
    if p > 2 and astray and all(dest == left(source, p) for source, dest in seen.sent()):
        raise WrongAnswer("wrong-direction", source=astray[0][0], dest=astray[0][1])
    if p > 2 and astray:
        raise WrongAnswer("not-a-ring", source=astray[0][0], dest=astray[0][1])
    if len(seen.stuck()) == p and not seen.sent():
        raise WrongAnswer("everyone-receives-first")
    if not any(seen.logs):
        raise WrongAnswer("no-communication")
    closed = (p - 1, 0) in seen.sent()
    ended = not seen.hung or (_waits_to_receive(seen, 0) and seen.errors[p - 1] is None)
    if not closed and ended:
        raise WrongAnswer("ring-not-closed", last=p - 1)
    for rank in range(1, p):
        _judge_first_call(seen, rank)
    judge_hang(seen)
    if closed and not any(event.kind == "recv" for event in seen.logs[0]):
        raise WrongAnswer("never-received", last=p - 1)
    if any(result is None for result in seen.results):
        rank = seen.results.index(None)
        raise WrongAnswer("returns-nothing", rank=rank)
    if len(seen.sent()) > p:
        raise WrongAnswer("sends-too-much", count=len(seen.sent()), p=p)
    for rank in [*range(1, p), 0]:
        _judge_token(rank, seen.results[rank], start, p)
    all_waited(seen)


def _judge_first_call(seen: Observation, rank: int) -> None:
    first = next((event.kind for event in seen.logs[rank] if event.kind in ("send", "recv")), None)
    if first == "send":
        raise WrongAnswer("sends-before-it-receives", rank=rank)


def _judge_token(rank: int, token, start: list, p: int) -> None:
    path = [*range(p)] if rank == 0 else [*range(rank + 1)]
    if token == start + path:
        return
    if rank == 0 and token in (start, [*start, 0]):
        raise WrongAnswer("keeps-the-old-token", token=repr(token))
    if token == [*start, *path, 0]:
        raise WrongAnswer("rank-0-signs-twice")
    missing = [r for r in path if isinstance(token, list) and r not in token]
    if missing:
        raise WrongAnswer("does-not-sign", rank=rank, token=repr(token), missing=missing[0])
    raise WrongAnswer("wrong-value", rank=rank, token=repr(token), wanted=repr(start + path))


# ---- shift ------------------------------------------------------------------------------------


def judge_shift(seen: Observation, nbytes: int) -> None:
    """Judge a shift; ``nbytes`` is the size of each rank's array.

    Each rank's entry in ``seen.results`` is a tuple: the rank whose data it returned, or None; the
    type of the returned object; whether its own array is unchanged; and whether the returned array
    has memory of its own.
    """
    p = len(seen.results)
    not_attempted(seen.errors)
    no_collective(seen)
    inside_the_world(seen)
    if seen.hung:
        if all_stuck_in_first_send(seen.logs):
            raise WrongAnswer("everyone-sends-first")
        if len(seen.stuck()) == p and not seen.sent():
            raise WrongAnswer("everyone-receives-first")
    judge_hang(seen)
    for rank, (owner, kind, intact, apart) in enumerate(seen.results):
        if kind == "NoneType":
            raise WrongAnswer("returns-nothing", rank=rank)
        if owner == right(rank, p) and p > 2:
            raise WrongAnswer("wrong-direction", rank=rank, owner=owner)
        if owner == rank:
            raise WrongAnswer("returns-its-own", rank=rank)
        if not intact:
            raise WrongAnswer("overwrites-its-own", rank=rank)
        if owner != left(rank, p):
            all_waited(seen)  # otherwise, the array may have been read before the data arrived
            raise WrongAnswer("wrong-value", rank=rank, neighbour=left(rank, p))
        if not apart:
            raise WrongAnswer("remembers-earlier-calls: the array", rank=rank)
    all_waited(seen)
    pickled = [event.call for _, event in seen.events("send") if event.call[0].islower()]
    if pickled:
        raise WrongAnswer("pickles", call=pickled[0])
    for rank, log in enumerate(seen.logs):
        sent = sum(event.nbytes or 0 for event in log if event.kind == "send")
        if sent > nbytes:
            raise WrongAnswer("sends-too-much", rank=rank, sent=sent, nbytes=nbytes)
    if p > 3 and one_after_another(seen.logs):
        raise WrongAnswer("one-after-another", p=p)


# ---- handshake --------------------------------------------------------------------------------


@contextmanager
def highest_worker_first(logged: LoggedComm) -> Iterator[None]:
    """Hold each worker back until the hello of the next higher one has arrived.

    Otherwise the lowest worker might always be first, and serving in rank order would look right.
    """
    own = logged.comm
    if 0 < own.rank < own.size - 1:
        own.recv(source=own.rank + 1, tag=_TURN)
    turn: Any = _HelloArrives(own)
    logged.comm = turn
    try:
        yield
    finally:
        turn.pass_on()
        logged.comm = own


class _HelloArrives:
    """Stands in for a worker's ``comm``: passes the turn on once its first message is received."""

    def __init__(self, comm: GuardedComm) -> None:
        self._comm, self._begins = comm, comm.rank > 1

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._comm, name)
        if not callable(method):
            return method
        if name == "send" and self._begins:
            return self._hello
        self.pass_on()  # any other call may wait for the other workers
        return method

    def _hello(self, *args: Any, **kwargs: Any) -> None:
        self._comm.ssend(*args, **kwargs)
        self.pass_on()

    def pass_on(self) -> None:
        if self._begins:
            self._begins = False
            self._comm.send(None, dest=self._comm.rank - 1, tag=_TURN)


def judge_handshake(seen: Observation, payloads: list, earlier: list | None = None) -> None:
    """``earlier``: the payloads of an earlier call."""
    p = len(seen.results)
    not_attempted(seen.errors)
    no_collective(seen)
    if seen.hung and not seen.sent():
        raise WrongAnswer("nobody-speaks-first", hello=HELLO)
    if any(event.kind == "send" and event.content == HELLO for event in seen.logs[0]):
        raise WrongAnswer("rank-0-says-hello", hello=HELLO)
    for worker in range(1, p):
        _judge_worker(seen, worker)
    silent = [worker for worker in range(1, p) if seen.sent().count((worker, 0)) == 1]
    if seen.hung and silent and not payloads[silent[0]]:
        raise WrongAnswer("empty-payload", worker=silent[0], payload=repr(payloads[silent[0]]))
    _judge_server(seen)
    judge_hang(seen)
    expected = {worker: payloads[worker] for worker in range(1, p)}
    if seen.results[0] == dict(enumerate(payloads)):
        raise WrongAnswer("rank-0-is-no-worker")
    if seen.results[0] == dict.fromkeys(expected, HELLO):
        raise WrongAnswer("keeps-the-hello")
    if seen.results[0] != expected:
        if earlier and isinstance(seen.results[0], dict) and earlier[1] in seen.results[0].values():
            raise WrongAnswer("remembers-earlier-calls: a payload")
        raise WrongAnswer("wrong-value", given=repr(seen.results[0]), expected=repr(expected))
    for worker in range(1, p):
        if seen.results[worker] is not None:
            raise WrongAnswer(
                "workers-return-something", worker=worker, given=repr(seen.results[worker])
            )
    all_waited(seen)


def _judge_worker(seen: Observation, worker: int) -> None:
    said = [event for event in seen.logs[worker] if event.kind == "send"]
    heard = [event for event in seen.logs[worker] if event.kind == "recv"]
    if said and said[0].content != HELLO:
        raise WrongAnswer("wrong-words", worker=worker, words=repr(said[0].content), hello=HELLO)
    before_the_answer = [
        event for event in seen.logs[worker][: _first_heard(seen.logs[worker])] if event in said
    ]
    if len(before_the_answer) > 1 or (len(said) > 1 and not heard):
        raise WrongAnswer("does-not-wait-for-ready", worker=worker)
    if heard and heard[0].finished and heard[0].content != READY:
        raise WrongAnswer(
            "wrong-words: from rank 0", worker=worker, words=repr(heard[0].content), ready=READY
        )


def _first_heard(log: list) -> int:
    return next((i for i, event in enumerate(log) if event.kind == "recv"), len(log))


def _judge_server(seen: Observation) -> None:
    log = seen.logs[0]
    received = [event for event in log if event.kind == "recv"]
    answered = [event for event in log if event.kind == "send"]
    if not received:
        raise WrongAnswer("nobody-listens")
    asks_anyone = any(event.any_source for event in log if event.kind in ("recv", "probe"))
    if not asks_anyone:
        raise WrongAnswer("fixed-order", worker=received[0].peer)
    for before, event in zip([None, *received], received, strict=False):
        if before is not None and before.content == HELLO and event.any_source:
            if not _answered_between(log, before, event) or _named_later(log, before):
                break
            raise WrongAnswer("payload-from-anyone", worker=before.peer)
    for first, second in pairwise(answered):
        between = log[log.index(first) : log.index(second)]
        if not any(event.kind == "recv" and event.peer == first.peer for event in between):
            raise WrongAnswer("not-one-at-a-time", worker=second.peer, earlier=first.peer)
    greeted = [event.peer for event in received if event.content == HELLO]
    for worker, served in zip(greeted, (event.peer for event in answered), strict=False):
        if worker != served and worker in [event.peer for event in answered]:
            raise WrongAnswer("not-in-order", worker=worker, served=served)
    unanswered = [
        event.peer
        for event in received
        if event.content == HELLO and event.peer not in [answer.peer for answer in answered]
    ]
    if unanswered:
        raise WrongAnswer("no-answer", worker=unanswered[0])
    if seen.hung and not any(seen.errors[1:]):
        raise WrongAnswer("serves-too-many", workers=len(seen.results) - 1)
    unserved = {rank for rank, event in seen.stuck().items() if event.kind == "recv"} - {0}
    if unserved and 0 not in seen.stuck():
        raise WrongAnswer("stops-too-early", worker=min(unserved))


def _named_later(log: list, hello) -> bool:
    """Whether a receive after ``hello`` names the rank that it came from."""
    return any(
        event.kind == "recv" and event.peer == hello.peer and not event.any_source
        for event in log[log.index(hello) + 1 :]
    )


def _answered_between(log: list, first, second) -> bool:
    between = log[log.index(first) : log.index(second)]
    return any(event.kind == "send" and event.peer == first.peer for event in between)


# ---- writing in order -------------------------------------------------------------------------


def judge_in_order(seen: Observation, lines: list[str]) -> None:
    p = len(seen.results)
    not_attempted(seen.errors)
    barriers = [event for _, event in seen.events("collective") if "barrier" in event.call.lower()]
    if barriers:
        raise WrongAnswer("uses-a-barrier", call=barriers[0].call, p=p)
    no_collective(seen)
    inside_the_world(seen)
    for rank, log in enumerate(seen.logs):
        written = [event.content for event in log if event.kind == "mark"]
        if len(written) > 1 and set(written) == {lines[rank]}:
            raise WrongAnswer("writes-twice", rank=rank, count=len(written))
        if len(written) > 1 and set(written) <= set(lines):
            raise WrongAnswer("writes-for-others", rank=rank, count=len(written))
        if written not in ([], [lines[rank]]):
            raise WrongAnswer("wrong-value", rank=rank, written=repr(written))
    if seen.hung and not seen.sent():
        raise WrongAnswer("nobody-begins")
    if seen.hung and _waits_to_receive(seen, 0):
        raise WrongAnswer("first-waits")
    _judge_turns(seen, p)
    judge_hang(seen)
    all_waited(seen)
    if len(seen.sent()) > p - 1:
        raise WrongAnswer("sends-too-much", count=len(seen.sent()), enough=p - 1)


def _judge_turns(seen: Observation, p: int) -> None:
    marks = {
        rank: next((i for i, event in enumerate(log) if event.kind == "mark"), None)
        for rank, log in enumerate(seen.logs)
    }
    silent = [rank for rank, index in marks.items() if index is None]
    if silent and not seen.hung and not any(seen.errors):
        raise WrongAnswer("writes-nothing", rank=silent[0])
    if not silent and not seen.sent():
        raise WrongAnswer("nobody-waits")
    lines = list(marks.items())
    if (
        p > 1
        and not silent
        and all(happens_before(seen, *pair) for pair in pairwise(reversed(lines)))
    ):
        raise WrongAnswer("wrong-direction", last=p - 1)
    for rank in range(1, p):
        if marks[rank] is None or marks[rank - 1] is None:
            continue
        if happens_before(seen, (rank - 1, marks[rank - 1]), (rank, marks[rank])):
            continue
        if any(event.kind == "send" for event in seen.logs[rank - 1][: marks[rank - 1]]):
            raise WrongAnswer("passes-on-before-writing", before=rank - 1, rank=rank)
        if any(event.kind == "recv" for event in seen.logs[rank][marks[rank] :]):
            raise WrongAnswer("writes-before-its-turn", rank=rank)
        if (rank - 1, rank) in seen.sent() and not any(e.kind == "recv" for e in seen.logs[rank]):
            raise WrongAnswer("never-received", before=rank - 1, rank=rank)
        raise WrongAnswer("order-not-forced", before=rank - 1, rank=rank)
