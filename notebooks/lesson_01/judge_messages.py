"""The log of all ranks' messages shows which usual mistake a function makes.

The judges behind the checks of lesson 01. Each is given an :class:`Observation`, the same on
every rank, and raises :class:`WrongAnswer` with the name of the mistake it recognises.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import not_attempted
from course_lib.teaching.judges.messages import (
    all_stuck_in_first_send,
    all_waited,
    inside_the_world,
    judge_hang,
    no_collective,
)
from course_lib.teaching.message_log import Observation

HELLO = "hello"
READY = "I am ready for you"


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


def _no_collective(seen: Observation, instead: str) -> None:
    no_collective(seen, f"it calls `comm.{{}}`, a collective of lesson 02. {instead}")


def _waits_to_receive(seen: Observation, rank: int) -> bool:
    event = seen.stuck().get(rank)
    return event is not None and event.kind == "recv"


# ---- ring pass --------------------------------------------------------------------------------


def judge_ring_pass(seen: Observation, start: list) -> None:
    p = len(seen.results)
    not_attempted(seen.errors)
    _no_collective(seen, "Pass the token with `comm.send` and `comm.recv`")
    inside_the_world(seen)
    astray = [(source, dest) for source, dest in seen.sent() if dest != right(source, p)]
    if p > 2 and astray and all(dest == left(source, p) for source, dest in seen.sent()):
        raise WrongAnswer(
            "wrong-direction",
            f"rank {astray[0][0]} sends to rank {astray[0][1]}, its left neighbour. The token "
            "goes to the right: from rank r to rank r + 1",
        )
    if p > 2 and astray:
        raise WrongAnswer(
            "not-a-ring",
            f"rank {astray[0][0]} sends to rank {astray[0][1]}, which is not its right "
            "neighbour. In a ring every rank sends to the next one only",
        )
    if seen.hung and not seen.sent():
        raise WrongAnswer(
            "everyone-receives-first",
            "every rank waits for the token, and nobody has sent it: a deadlock. Rank 0 has the "
            "token at the start, so it sends before it receives",
        )
    if not any(seen.logs):
        raise WrongAnswer(
            "no-communication",
            "no rank sends or receives anything by the `comm` that it is given. A rank knows of "
            "the token only what it is sent",
        )
    closed = (p - 1, 0) in seen.sent()
    ended = not seen.hung or (_waits_to_receive(seen, 0) and seen.errors[p - 1] is None)
    if not closed and ended:
        raise WrongAnswer(
            "ring-not-closed",
            f"rank {p - 1} never sends the token to rank 0, so it does not come home. The right "
            "neighbour of the last rank is rank 0: `(rank + 1) % size`",
        )
    for rank in range(1, p):
        _judge_first_call(seen, rank)
    judge_hang(seen)
    if closed and not any(event.kind == "recv" for event in seen.logs[0]):
        raise WrongAnswer(
            "never-received",
            f"rank {p - 1} sends the token home, but rank 0 does not receive it",
        )
    if any(result is None for result in seen.results):
        rank = seen.results.index(None)
        raise WrongAnswer("returns-nothing", f"rank {rank} returns None; it has to return a list")
    if len(seen.sent()) > p:
        raise WrongAnswer(
            "sends-too-much",
            f"{len(seen.sent())} messages were sent. One round of {p} ranks takes {p}, one from "
            "each rank",
        )
    for rank in [*range(1, p), 0]:
        _judge_token(rank, seen.results[rank], start, p)
    all_waited(seen)


def _judge_first_call(seen: Observation, rank: int) -> None:
    first = next((event.kind for event in seen.logs[rank] if event.kind in ("send", "recv")), None)
    if first == "send":
        raise WrongAnswer(
            "sends-before-it-receives",
            f"rank {rank} sends before it has received anything, so what it sends is no token of "
            "rank 0's. Only rank 0 has one at the start",
        )


def _judge_token(rank: int, token, start: list, p: int) -> None:
    path = [*range(p)] if rank == 0 else [*range(rank + 1)]
    if token == start + path:
        return
    if rank == 0 and token in (start, [*start, 0]):
        raise WrongAnswer(
            "keeps-the-old-token",
            f"rank 0 returns {token!r}, the token as it left. It has to return what came home",
        )
    if token == [*start, *path, 0]:
        raise WrongAnswer(
            "rank-0-signs-twice",
            "rank 0 adds its rank again when the token comes home. It signs once, at the start",
        )
    missing = [r for r in path if isinstance(token, list) and r not in token]
    if missing:
        raise WrongAnswer(
            "does-not-sign",
            f"rank {rank} returns {token!r}: rank {missing[0]} is not in it. Every rank appends "
            "its own rank before it passes the token on",
        )
    raise WrongAnswer("wrong-value", f"rank {rank} returned {token!r}, not {start + path!r}")


# ---- shift ------------------------------------------------------------------------------------


def judge_shift(seen: Observation) -> None:
    """``seen.results``: per rank (whose data came back or None, of what type, own is intact)."""
    p = len(seen.results)
    not_attempted(seen.errors)
    _no_collective(seen, "Use point-to-point calls: `Send`, `Recv`, `Isend`, `Irecv`, `Sendrecv`")
    inside_the_world(seen)
    if seen.hung:
        stuck = seen.stuck().values()
        if all_stuck_in_first_send(seen.logs):
            raise WrongAnswer(
                "everyone-sends-first",
                "every rank is stuck in its send. A large message leaves only when somebody "
                "receives it, and nobody has got that far: a deadlock. It may well work for a "
                "few bytes; do not rely on it",
            )
        if stuck and not seen.sent():
            raise WrongAnswer(
                "everyone-receives-first",
                "every rank waits in its receive, and nobody has sent: a deadlock, for any size",
            )
    judge_hang(seen)
    for rank, (owner, kind, intact) in enumerate(seen.results):
        if kind == "NoneType":
            raise WrongAnswer(
                "returns-nothing", f"rank {rank} returned None. Return the array that has come"
            )
        if owner == right(rank, p) and p > 2:
            raise WrongAnswer(
                "wrong-direction",
                f"rank {rank} returned rank {owner}'s array, from its right. Send to the right, "
                "receive from the left",
            )
        if owner == rank:
            raise WrongAnswer("returns-its-own", f"rank {rank} returned its own array")
        if not intact:
            raise WrongAnswer(
                "overwrites-its-own",
                f"rank {rank}'s own array was changed: it was received into. While it is being "
                "sent, nobody may write to it. Receive into another array",
            )
        if owner != left(rank, p):
            all_waited(seen)  # or the array was looked at before anything had come
            raise WrongAnswer(
                "wrong-value", f"rank {rank} did not return the whole array of rank {left(rank, p)}"
            )
    all_waited(seen)
    pickled = [event.call for _, event in seen.events("send") if event.call[0].islower()]
    if pickled:
        raise WrongAnswer(
            "pickles",
            f"right, but `{pickled[0]}` pickles the array. The calls with a capital letter send "
            "its memory as it is",
        )


# ---- handshake --------------------------------------------------------------------------------


def judge_handshake(seen: Observation, payloads: list) -> None:
    p = len(seen.results)
    not_attempted(seen.errors)
    _no_collective(seen, "Use `send` and `recv`")
    if seen.hung and not seen.sent():
        raise WrongAnswer(
            "nobody-speaks-first",
            f'every rank waits, and nobody has said anything. The workers begin, with "{HELLO}"',
        )
    for worker in range(1, p):
        _judge_worker(seen, worker)
    _judge_server(seen)
    judge_hang(seen)
    expected = {worker: payloads[worker] for worker in range(1, p)}
    if seen.results[0] == dict(enumerate(payloads)):
        raise WrongAnswer(
            "rank-0-is-no-worker",
            "rank 0 returned its own payload as well. The dictionary has the workers' alone",
        )
    if seen.results[0] == dict.fromkeys(expected, HELLO):
        raise WrongAnswer(
            "keeps-the-hello",
            "rank 0 returned the workers' hellos. A payload is what comes after the answer",
        )
    if seen.results[0] != expected:
        raise WrongAnswer(
            "wrong-value", f"rank 0 returned {seen.results[0]!r}, expected {expected!r}"
        )
    for worker in range(1, p):
        if seen.results[worker] is not None:
            raise WrongAnswer(
                "workers-return-something",
                f"rank 0 has all payloads, but worker {worker} returned {seen.results[worker]!r}. "
                "Workers return None",
            )
    all_waited(seen)


def _judge_worker(seen: Observation, worker: int) -> None:
    said = [event for event in seen.logs[worker] if event.kind == "send"]
    heard = [event for event in seen.logs[worker] if event.kind == "recv"]
    if said and said[0].content != HELLO:
        raise WrongAnswer(
            "wrong-words", f'worker {worker} begins with {said[0].content!r}, not with "{HELLO}"'
        )
    before_the_answer = [
        event for event in seen.logs[worker][: _first_heard(seen.logs[worker])] if event in said
    ]
    if len(before_the_answer) > 1 or (len(said) > 1 and not heard):
        raise WrongAnswer(
            "does-not-wait-for-ready",
            f"worker {worker} sends its payload before it has heard that rank 0 is ready",
        )
    if heard and heard[0].finished and heard[0].content != READY:
        raise WrongAnswer(
            "wrong-words", f'worker {worker} heard {heard[0].content!r}, not "{READY}"'
        )


def _first_heard(log: list) -> int:
    return next((i for i, event in enumerate(log) if event.kind == "recv"), len(log))


def _judge_server(seen: Observation) -> None:
    log = seen.logs[0]
    received = [event for event in log if event.kind == "recv"]
    answered = [event for event in log if event.kind == "send"]
    if not received:
        raise WrongAnswer("nobody-listens", "rank 0 receives nothing")
    asks_anyone = any(event.any_source for event in log if event.kind in ("recv", "probe"))
    if not asks_anyone:
        raise WrongAnswer(
            "fixed-order",
            f"rank 0 waits for worker {received[0].peer} first, whoever comes first. If that one "
            "is slow, all others wait for it. Receive from `MPI.ANY_SOURCE` and ask the status",
        )
    for before, event in zip([None, *received], received, strict=False):
        if before is not None and before.content == HELLO and event.any_source:
            if not _answered_between(log, before, event):
                break
            raise WrongAnswer(
                "payload-from-anyone",
                f"after the hello of worker {before.peer}, rank 0 takes the payload from any "
                "source. The next hello of another worker may come first and be taken for it. "
                "Name the source",
            )
    for first, second in pairwise(answered):
        between = log[log.index(first) : log.index(second)]
        if not any(event.kind == "recv" and event.peer == first.peer for event in between):
            raise WrongAnswer(
                "not-one-at-a-time",
                f"rank 0 tells worker {second.peer} that it is ready before it has the payload "
                f"of worker {first.peer}",
            )
    unanswered = [
        event.peer
        for event in received
        if event.content == HELLO and event.peer not in [answer.peer for answer in answered]
    ]
    if unanswered:
        raise WrongAnswer(
            "no-answer",
            f"worker {unanswered[0]} says hello and gets no answer. Rank 0 answers first, and "
            "receives the payload after that",
        )
    if seen.hung and not any(seen.errors[1:]):
        raise WrongAnswer(
            "serves-too-many",
            f"all {len(seen.results) - 1} workers are done, and rank 0 still waits for a hello. "
            "Rank 0 is no worker: there are `comm.size - 1`",
        )
    unserved = {rank for rank, event in seen.stuck().items() if event.kind == "recv"} - {0}
    if unserved and 0 not in seen.stuck():
        raise WrongAnswer(
            "stops-too-early",
            f"rank 0 is done, but worker {min(unserved)} still waits for an answer. Serve all "
            "`comm.size - 1` workers",
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
        raise WrongAnswer(
            "uses-a-barrier",
            f"it calls `comm.{barriers[0].call}`. A barrier makes everybody wait for everybody, "
            f"{p} times over. One message per neighbour is enough",
        )
    _no_collective(seen, "Use `send` and `recv`")
    inside_the_world(seen)
    for rank, log in enumerate(seen.logs):
        written = [event.content for event in log if event.kind == "mark"]
        if len(written) > 1 and set(written) == {lines[rank]}:
            raise WrongAnswer(
                "writes-twice",
                f"rank {rank} writes its line {len(written)} times. Once is asked for",
            )
        if len(written) > 1 and set(written) <= set(lines):
            raise WrongAnswer(
                "writes-for-others",
                f"rank {rank} writes {len(written)} lines. Every rank writes its own line itself; "
                "only the turn travels",
            )
        if written not in ([], [lines[rank]]):
            raise WrongAnswer("wrong-value", f"rank {rank} wrote {written!r}, not its own line")
    if seen.hung and not seen.sent():
        raise WrongAnswer(
            "nobody-begins",
            "every rank waits for its turn, and nobody begins. Rank 0 waits for no one",
        )
    if seen.hung and _waits_to_receive(seen, 0):
        raise WrongAnswer(
            "first-waits",
            "rank 0 waits for a message. It is the first: nobody can tell it that it is its turn",
        )
    _judge_turns(seen, p)
    judge_hang(seen)
    all_waited(seen)
    if len(seen.sent()) > p - 1:
        raise WrongAnswer(
            "sends-too-much",
            f"the order is right, but it took {len(seen.sent())} messages; {p - 1} are enough",
        )


def _judge_turns(seen: Observation, p: int) -> None:
    marks = {
        rank: next((i for i, event in enumerate(log) if event.kind == "mark"), None)
        for rank, log in enumerate(seen.logs)
    }
    silent = [rank for rank, index in marks.items() if index is None]
    if silent and not seen.hung and not any(seen.errors):
        raise WrongAnswer("writes-nothing", f"rank {silent[0]} never calls `write`")
    if not silent and not seen.sent():
        raise WrongAnswer(
            "nobody-waits",
            "no message was sent, so nothing makes rank 1 wait for rank 0. If the order was "
            "right, that was luck",
        )
    lines = list(marks.items())
    if (
        p > 1
        and not silent
        and all(happens_before(seen, *pair) for pair in pairwise(reversed(lines)))
    ):
        raise WrongAnswer(
            "wrong-direction",
            f"the order is forced, but the wrong way round: rank {p - 1} writes first, and rank 0 "
            "last. Rank r waits for rank r - 1",
        )
    for rank in range(1, p):
        if marks[rank] is None or marks[rank - 1] is None:
            continue
        if happens_before(seen, (rank - 1, marks[rank - 1]), (rank, marks[rank])):
            continue
        if any(event.kind == "send" for event in seen.logs[rank - 1][: marks[rank - 1]]):
            raise WrongAnswer(
                "passes-on-before-writing",
                f"rank {rank - 1} passes the turn on before it has written its own line, so rank "
                f"{rank} may be quicker",
            )
        if any(event.kind == "recv" for event in seen.logs[rank][marks[rank] :]):
            raise WrongAnswer(
                "writes-before-its-turn",
                f"rank {rank} writes its line first and waits for its turn afterwards",
            )
        raise WrongAnswer(
            "order-not-forced",
            f"no chain of messages leads from rank {rank - 1}'s line to rank {rank}'s: nothing "
            "forces their order",
        )
