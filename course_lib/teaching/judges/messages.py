"""Recognises what goes wrong with single messages: a hang, a collective, a forgotten wait."""

from __future__ import annotations

from ..exercise import WrongAnswer
from ..message_log import LoggedCall, Observation
from .failures import judge_errors


def judge_hang(seen: Observation) -> None:
    """Raise an exception of a rank's own, or who waited for whom when the deadline passed."""
    judge_errors(seen.errors)
    if not seen.hung:
        return
    p = len(seen.results)
    where = [f"rank {rank} in {_described(event)}" for rank, event in sorted(seen.stuck().items())]
    raise WrongAnswer(
        "it-hangs",
        f"it does not end on {p} ranks. Waiting: {', '.join(where) or 'none'}",
    )


def _described(event: LoggedCall) -> str:
    if event.peer is None:
        return event.call
    tag = f" with tag {event.tag}" if event.tag else ""
    return f"{event.call} {'to' if event.kind == 'send' else 'from'} {event.peer}{tag}"


def no_collective(seen: Observation, explanation: str) -> None:
    """Raise ``explanation``, with the call's name in place of {}, if a collective was called."""
    used = [event.call for _, event in seen.events("collective")]
    if used:
        raise WrongAnswer("uses-a-collective", explanation.format(used[0]))


def all_waited(seen: Observation) -> None:
    """Raise if a non-blocking call is never waited for."""
    for rank, log in enumerate(seen.logs):
        for event in log:
            if not event.waited:
                raise WrongAnswer(
                    "does-not-wait",
                    f"rank {rank} never waits for its `{event.call}`. Until `wait()` has "
                    "returned, the message may not have left, or not have arrived, and its "
                    "memory must not be used for anything else",
                )
