"""Recognises mistakes with single messages: a hang, a collective, a forgotten wait."""

from __future__ import annotations

from ..exercise import WrongAnswer
from ..message_log import LoggedCall, Observation
from .failures import judge_errors


def judge_hang(seen: Observation) -> None:
    """Raise a rank's own exception, or report which rank waited for which at the deadline."""
    judge_errors(seen.errors)
    if not seen.hung:
        return
    p = len(seen.results)
    stuck = sorted(seen.stuck().items())
    for rank, event in stuck:
        _judge_tags(seen, rank, event)
    where = [f"rank {rank} in {_described(event)}" for rank, event in stuck]
    waiting = ", ".join(where) or "none"
    for rank, event in stuck:
        peer = event.peer if event.kind == "recv" else None
        if peer is not None and seen.errors[peer] is None:
            raise WrongAnswer(
                "it-hangs: for a rank that is done", p=p, where=waiting, peer=peer, rank=rank
            )
    raise WrongAnswer("it-hangs: in a message", p=p, where=waiting)


def _judge_tags(seen: Observation, rank: int, waiting: LoggedCall) -> None:
    """Raise if the message that ``rank`` waits for was sent to it, but under another tag."""
    if waiting.kind != "recv" or waiting.peer is None or waiting.tag is None:
        return
    sent = [
        event.tag
        for event in seen.logs[waiting.peer]
        if event.kind == "send" and event.peer == rank
    ]
    for event in seen.logs[rank]:
        taken = event.kind == "recv" and event.peer == waiting.peer and event.finished
        if taken and event.tag in sent:
            sent.remove(event.tag)
    if sent and waiting.tag not in sent:
        raise WrongAnswer(
            "tags-differ", rank=rank, tag=waiting.tag, peer=waiting.peer, sent=sent[0]
        )


def all_stuck_in_first_send(logs: list[list[LoggedCall]]) -> bool:
    """Return whether every rank's first call was a long send that never ended.

    Once one rank is freed, Open MPI may report the send of another as a success. That rank then
    continues and may even receive. The evidence is the rank that was freed first: it has received
    nothing.
    """
    nothing_received = [not any(e.kind == "recv" and e.finished for e in log) for log in logs]
    return all(map(_begins_with_blocking_send, logs)) and any(nothing_received)


def _begins_with_blocking_send(log: list[LoggedCall]) -> bool:
    if not log or log[0].kind != "send":
        return False
    waited_at_once = log[0].call in _STARTED_SENDS and (len(log) == 1 or log[0].waited)
    return waited_at_once or log[0].call in _BLOCKING_SENDS


def one_after_another(logs: list[list[LoggedCall]]) -> bool:
    """Return whether all ranks of a ring but one wait in their first call for a neighbour's."""
    first = [log[0].call if log else "" for log in logs]
    kinds = (_BLOCKING_SENDS, _BLOCKING_RECEIVES)
    return any(sum(call in kind for call in first) == len(logs) - 1 for kind in kinds)


_BLOCKING_RECEIVES = ("recv", "Recv")
_BLOCKING_SENDS = ("send", "ssend", "Send", "Ssend")
_STARTED_SENDS = ("isend", "issend", "Isend", "Issend")


def inside_the_world(seen: Observation) -> None:
    """Raise if a rank sends to a rank that does not exist."""
    p = len(seen.results)
    outside = [pair for pair in seen.sent() if pair[1] is not None and not 0 <= pair[1] < p]
    if outside:
        source, dest = outside[0]
        wrong = WrongAnswer("falls-off-the-end: to no rank", source=source, dest=dest, last=p - 1)
        raise wrong from seen.errors[source]


def _described(event: LoggedCall) -> str:
    if event.peer is None:
        return event.call
    tag = f" with tag {event.tag}" if event.tag else ""
    return f"{event.call} {'to' if event.kind == 'send' else 'from'} {event.peer}{tag}"


def no_collective(seen: Observation) -> None:
    """Raise if a collective was called; the lesson's mistakes.md has its text."""
    used = [event.call for _, event in seen.events("collective")]
    if used:
        raise WrongAnswer("uses-a-collective", call=used[0])


def all_waited(seen: Observation) -> None:
    """Raise if a non-blocking call is never waited for."""
    for rank, log in enumerate(seen.logs):
        for event in log:
            if not event.waited:
                raise WrongAnswer("does-not-wait: for a call", rank=rank, call=event.call)
