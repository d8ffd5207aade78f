"""Recognises usual mistakes with calls of ``torch.distributed``: wrong group, too many calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..exercise import WrongAnswer
from ..message_log import LoggedCall, Observation
from .failures import judge_errors, was_kept_waiting


def judge_collectives(seen: Observation) -> None:
    """Raise whatever kept the ranks from a result, or from exchanging anything for it."""
    judge_errors(seen.errors)
    if any(map(was_kept_waiting, seen.errors)):
        raise hang(seen.logs)
    calls = [event for log in seen.logs for event in log]
    if not calls:
        raise WrongAnswer("no-communication: by dist")
    need_group(calls)


def hang(logs: Sequence[list[LoggedCall]]) -> WrongAnswer:
    """Return the mistake of ranks that waited until the deadline; logs by rank of the group."""
    unfinished = [event for log in logs for event in log if not event.finished]
    where = "; ".join(_where(rank, log) for rank, log in enumerate(logs))
    if unfinished and all(event.kind in ("send", "recv") for event in unfinished):
        return WrongAnswer("it-hangs: in messages", where=where)
    return WrongAnswer("it-hangs: in a collective", where=where)


def _where(rank: int, log: list[LoggedCall]) -> str:
    """Return the call that a rank of the group was in when the deadline passed."""
    for number, event in enumerate(log, 1):
        if not event.finished:
            whom = f" {'to' if event.kind == 'send' else 'from'} rank {event.peer}"
            peer = whom if event.peer is not None else ""
            return f"rank {rank} waited in its call {number}, {event.call}{peer}"
    calls = f"{len(log)} call{'s' * (len(log) != 1)}"
    return f"rank {rank} had finished {calls}" if log else f"rank {rank} made no call"


def need_group(calls: list[LoggedCall]) -> None:
    """Raise if one of the calls was not on the group that the function was given."""
    for event in calls:
        if not event.on_group:
            raise WrongAnswer("forgets-the-group: by dist", call=event.call)


def need_one_all_reduce(calls: list[LoggedCall], **fields: Any) -> None:
    """Raise unless the calls of one rank, with a right result, are a single all-reduce.

    What any other collective does is told by the lesson's text for ``gathers-everything``, with
    ``fields`` and the ``call``.
    """
    if len(calls) != 1:
        names = ", ".join(event.call for event in calls)
        raise WrongAnswer(
            "too-many-collectives: where one all-reduce does", count=len(calls), calls=names
        )
    if calls[0].call != "all_reduce":
        raise WrongAnswer("gathers-everything", call=calls[0].call, **fields)
