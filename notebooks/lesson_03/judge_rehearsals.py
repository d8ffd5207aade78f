"""Numbers that say whose they are tell what an all-reduce has done to them.

Rank r contributes 100**r times the place in the array, so the digits of a sum tell how often each
rank's numbers are in it. The judges of :mod:`.judge_all_reduces` share what stands here; all of
it works on rehearsals and needs no MPI.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import judge_errors

from .rehearsal import CollectiveError, Rehearsal, UnrehearsedError, rehearse
from .rehearsed_comm import Message

__all__ = [
    "contribution",
    "counts_of",
    "explain_counts",
    "need_array",
    "need_neighbours",
    "need_new_array",
    "need_no_mean",
    "play",
    "total",
]

_MOST_PLACES = 12  # times 8 ranks is still below 100


def contribution(rank: int, length: int) -> np.ndarray:
    """Return what ``rank`` contributes: int64, shape (length,)."""
    return 100**rank * _places(length)


def total(p: int, length: int) -> np.ndarray:
    """Return the sum over p ranks."""
    return sum(100**rank for rank in range(p)) * _places(length)


def _places(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int64) % _MOST_PLACES + 1


def counts_of(result: np.ndarray, length: int, p: int, start: int = 0) -> list[int] | None:
    """Return how often each rank's numbers are in ``result``, None if that makes no sense.

    ``result`` begins at place ``start`` of arrays of ``length`` numbers.
    """
    found = None
    places = _places(length)[start : start + len(result)]
    for number, place in zip(result.tolist(), places.tolist(), strict=True):
        digits = [number // 100**rank % 100 for rank in range(p)]
        if not 0 <= number < 100**p or any(digit % place for digit in digits):
            return None
        counts = [digit // place for digit in digits]
        if found is not None and counts != found:
            return None
        found = counts
    return found


def explain_counts(rank: int, result: np.ndarray, length: int, p: int, start: int = 0) -> None:
    """Raise what is wrong with ``rank``'s sum; its first number is that at place ``start``."""
    counts = counts_of(result, length, p, start)
    if counts is None:
        raise WrongAnswer(
            "wrong-sum",
            f"on {p} ranks rank {rank} returns {result.tolist()}, which is no sum of the ranks' "
            "numbers at these places",
        )
    twice = [other for other, count in enumerate(counts) if count > 1]
    missing = [other for other, count in enumerate(counts) if not count]
    if missing == [rank]:
        raise WrongAnswer(
            "own-missing",
            f"on {p} ranks rank {rank}'s sum has everybody's numbers but its own: begin with a "
            "copy of the array that it was given",
        )
    if p > 2 and missing and sum(counts) == 1 and not counts[rank]:
        raise WrongAnswer(
            "overwrites",
            f"on {p} ranks rank {rank} returns rank {counts.index(1)}'s numbers and no others: "
            "what arrives has to be added to what is there, not put in its place",
        )
    if not any(count for other, count in enumerate(counts) if other != rank):
        raise WrongAnswer(
            "nothing-added",
            f"on {p} ranks rank {rank} returns {_times(counts[rank])} its own numbers, and nothing "
            "of anybody else's",
        )
    if twice:
        raise WrongAnswer(
            "counted-twice",
            f"on {p} ranks {_times(counts[twice[0]])} rank {twice[0]}'s numbers are in the sum "
            f"that rank {rank} returns",
        )
    if missing:
        raise WrongAnswer(
            "somebody-missing",
            f"on {p} ranks rank {rank}'s sum lacks the numbers of "
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}",
        )


def _times(count: int) -> str:
    return {0: "not even", 1: "just", 2: "twice"}.get(count, f"{count} times")


# ---- playing ----------------------------------------------------------------------------------


def play(function: Callable, arrays: list[np.ndarray]) -> Rehearsal:
    """Rehearse ``function(comm, array)`` and raise what can be said without looking at results."""
    seen = rehearse(function, [(array,) for array in arrays])
    p = len(arrays)
    for rank, error in enumerate(seen.errors):
        _explain_error(rank, p, error)
    judge_errors(seen.errors, who=f"on {p} ranks rank {{}}")
    if seen.stuck:
        raise WrongAnswer(*_why_stuck(seen, p))
    if seen.lost:
        message = seen.lost[0]
        raise WrongAnswer(
            "nobody-receives",
            f"on {p} ranks rank {message.source} sends to rank {message.dest}, which never "
            "receives it. The next receive from there would get the wrong message",
        )
    _judge_buffers(seen)
    return seen


def _explain_error(rank: int, p: int, error: BaseException | None) -> None:
    """Raise if it is an error that only a rehearsal makes."""
    text = str(error)
    if isinstance(error, CollectiveError):
        raise WrongAnswer(
            "uses-a-collective",
            f"it calls `comm.{text}`, and that is what is to be built. Use Send, Recv, Isend, "
            "Irecv and Sendrecv",
        )
    if isinstance(error, UnrehearsedError):
        raise WrongAnswer(
            "not-rehearsed",
            f"it uses `comm.{text}`, which the check cannot rehearse. `rank`, `size`, Send, Recv, "
            "Isend, Irecv, Sendrecv, Sendrecv_replace and `wait` are enough",
        )
    if "there is no rank" in text:
        raise WrongAnswer(
            "falls-off-the-end",
            f"on {p} ranks rank {rank} names a rank that does not exist: {text}",
        ) from error
    if "message truncated" in text:
        raise WrongAnswer("does-not-fit", f"on {p} ranks: {text}") from error


def _why_stuck(seen: Rehearsal, p: int) -> tuple[str, str]:
    calls = [calls[0] for calls in seen.stuck.values() if calls]
    if len(calls) == p and all(call.call.lower() == "send" for call in calls):
        return (
            "everyone-sends-first",
            f"on {p} ranks all are in a blocking send, and nobody receives. MPI takes small "
            "messages off your hands, so it may seem to work; with large ones it waits for ever",
        )
    if len(calls) == p and all(call.call.lower() == "recv" for call in calls):
        return "everyone-receives-first", f"on {p} ranks all are in a receive, and nobody sends"
    waiting = [
        f"rank {rank} in {own[0].call} " + " and ".join(map(_where, own))
        for rank, own in seen.stuck.items()
        if own
    ]
    ended = [f"rank {rank} has come to its end" for rank in range(p) if rank not in seen.stuck]
    return "it-hangs", f"on {p} ranks it never ends: {'; '.join(waiting + ended)}"


def _where(call: Message) -> str:
    sends = call.content is not None
    peer = call.dest if sends else call.source
    return ("to " if sends else "from ") + ("any rank" if peer is None else f"rank {peer}")


def _judge_buffers(seen: Rehearsal) -> None:
    for message in seen.messages:
        if message.not_yet_there:
            raise WrongAnswer(
                "sends-what-has-not-arrived",
                f"rank {message.source} sends an array to rank {message.dest} that its own `Irecv` "
                "may not have filled yet. Wait for that request before you pass the array on",
            )
    for message in seen.messages:
        if message.changed:
            raise WrongAnswer(
                "changes-what-is-on-its-way",
                f"rank {message.source} changes an array that it is still sending to rank "
                f"{message.dest}, so nobody knows what arrives. Wait for the request first, or "
                "receive into another array",
            )
    for message in seen.messages:
        if not message.waited:
            raise WrongAnswer(
                "does-not-wait",
                f"rank {message.source} never waits for its {message.call}. Until `wait()` has "
                "returned, the array must not be used for anything else",
            )


# ---- results ----------------------------------------------------------------------------------


def need_array(result, rank: int, given: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Raise unless ``result`` is an array of the dtype of ``given``."""
    if result is None:
        changed = not np.array_equal(given, before)
        raise WrongAnswer(
            "works-in-place" if changed else "returns-nothing",
            f"rank {rank} returns None"
            + (
                " and changes the array that it was given. Return a new array"
                if changed
                else ". Is there a `return` on every path?"
            ),
        )
    if not isinstance(result, np.ndarray):
        kind = type(result).__name__
        raise WrongAnswer("not-an-array", f"rank {rank} returns a {kind}, not an array")
    if result.dtype != given.dtype:
        raise WrongAnswer(
            "forgets-the-dtype",
            f"rank {rank} is given {given.dtype} and returns {result.dtype}. `np.empty(n)` makes "
            "float64: use `np.empty_like(array)` or name the dtype",
        )
    return result


def need_no_mean(result, right: np.ndarray, p: int) -> None:
    """Raise if ``result`` is the sum ``right``, divided by the number of ranks."""
    if p < 2 or not isinstance(result, np.ndarray) or result.shape != right.shape:
        return
    if not right.size:  # no numbers, no mean
        return
    # A mean is rounded once, or cut off by `//`: to 1e-9 no other mistake looks like it.
    if np.allclose(result, right / p, rtol=1e-9) or np.array_equal(result, right // p):
        raise WrongAnswer(
            "mean-not-sum",
            f"what is returned on {p} ranks is the sum divided by {p}. The sum itself is wanted",
        )


def need_new_array(given: list[np.ndarray], before: list[np.ndarray]) -> None:
    """Raise if a rank's own array is not what it was."""
    for rank, (now, then) in enumerate(zip(given, before, strict=True)):
        if not np.array_equal(now, then):
            raise WrongAnswer(
                "changes-its-input",
                f"the result is right, but rank {rank}'s `array` is not what it was before. "
                "Whoever calls you still needs it: work on a copy",
            )


def need_neighbours(seen: Rehearsal, p: int) -> None:
    """Raise unless every message goes to the neighbour on one and the same side."""
    if p < 3:
        return
    ways = {(message.dest - message.source) % p for message in seen.messages if message.nbytes}
    if len(ways) <= 1 and ways <= {1, p - 1}:
        return
    for root in range(p):
        if all(root in (message.source, message.dest) for message in seen.messages):
            raise WrongAnswer(
                "naive",
                f"the result is right, but every message begins or ends at rank {root}: that is "
                "the naive way. In a ring all ranks send to their neighbour at the same time",
            )
    stray = next(m for m in seen.messages if (m.dest - m.source) % p != 1)
    raise WrongAnswer(
        "not-the-neighbour",
        f"the result is right, but on {p} ranks rank {stray.source} sends to rank {stray.dest}. "
        "In a ring each rank sends to its right neighbour alone, and passes on what it gets",
    )
