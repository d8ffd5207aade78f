"""Some mistakes look the same in every exercise about messages.

Used by :mod:`notebooks.lesson_01.judge_messages`; each raises :class:`WrongAnswer` if
it recognises its mistake.
"""

from __future__ import annotations

from torch_mpi4py import DeadlineError, RevokedError

from ..exercise import WrongAnswer
from ..message_log import LoggedCall, Observation


def not_attempted(seen: Observation) -> None:
    for error in seen.errors:
        if isinstance(error, NotImplementedError):
            raise error


def no_collective(seen: Observation, instead: str) -> None:
    used = [event.call for _, event in seen.events("collective")]
    if used:
        raise WrongAnswer(
            "uses-a-collective", f"it calls `comm.{used[0]}`, a collective of lesson 02. {instead}"
        )


def no_fall_off_the_end(seen: Observation) -> None:
    p = len(seen.results)
    outside = [(source, dest) for source, dest in seen.sent() if not 0 <= dest < p]
    if outside:
        source, dest = outside[0]
        raise WrongAnswer(
            "falls-off-the-end",
            f"rank {source} sends to rank {dest}, but the ranks are 0 to {p - 1}. The last rank's "
            "case is a special one",
        )


def all_waited(seen: Observation) -> None:
    for rank, log in enumerate(seen.logs):
        for event in log:
            if not event.waited:
                raise WrongAnswer(
                    "does-not-wait",
                    f"rank {rank} never waits for its `{event.call}`. Until `wait()` has "
                    "returned, the message may not have left, or not have arrived",
                )


def waiting_for(seen: Observation, rank: int) -> bool:
    event = seen.stuck().get(rank)
    return event is not None and event.kind == "recv"


def explain_hang(seen: Observation) -> None:
    own_error(seen)
    if not seen.hung:
        return
    p = len(seen.results)
    where = [f"rank {rank} in {described(event)}" for rank, event in sorted(seen.stuck().items())]
    raise WrongAnswer(
        "it-hangs",
        f"it did not end within the deadline on {p} ranks. Waiting: {', '.join(where) or 'none'}",
    )


def described(event: LoggedCall) -> str:
    if event.peer is None:
        return event.call
    return f"{event.call} {'to' if event.kind == 'send' else 'from'} {event.peer}"


def own_error(seen: Observation) -> None:
    failed = seen.own_error()
    if failed is not None and not isinstance(failed[1], (DeadlineError, RevokedError)):
        raise WrongAnswer(
            "it-raises", f"rank {failed[0]} raised {type(failed[1]).__name__}: {failed[1]}"
        )
