"""Gives each rank numbers that can be recognised in a sum, and judges rehearsals by them.

Rank r contributes 100**r times the place in the array, so the digits of a sum show how often each
rank's numbers are in it. The judges of :mod:`.judge_all_reduces` share these functions, all of
which work on rehearsals and need no MPI.
"""

from __future__ import annotations

import numpy as np
from torch_mpi4py.board.rank_states import rank_list

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import judge_errors

from .own_globals import OnRanks
from .rehearsal import CollectiveError, Rehearsal, UnrehearsedError, rehearse
from .rehearsed_comm import Message

__all__ = [
    "contribution",
    "counts_of",
    "explain_counts",
    "need_array",
    "need_fractions",
    "need_neighbours",
    "need_new_array",
    "need_new_array_each_time",
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
    """Return how often each rank's numbers are in ``result``, None if no such counts fit.

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
    """Raise the mistake in ``rank``'s sum, whose first number is that at place ``start``."""
    counts = counts_of(result, length, p, start)
    if counts is None:
        raise WrongAnswer("wrong-sum", p=p, rank=rank, given=result.tolist())
    twice = [other for other, count in enumerate(counts) if count > 1]
    missing = [other for other, count in enumerate(counts) if not count]
    if missing == [rank]:
        raise WrongAnswer("own-missing", p=p, rank=rank)
    if p > 2 and missing and sum(counts) == 1 and not counts[rank]:
        raise WrongAnswer("overwrites", p=p, rank=rank, other=counts.index(1))
    if not any(count for other, count in enumerate(counts) if other != rank):
        raise WrongAnswer("nothing-added", p=p, rank=rank, times=_times(counts[rank]))
    if twice:
        raise WrongAnswer(
            "counted-twice", p=p, times=_times(counts[twice[0]]), other=twice[0], rank=rank
        )
    if missing:
        raise WrongAnswer("somebody-missing", p=p, rank=rank, missing=rank_list(missing))


def _times(count: int) -> str:
    return {0: "not even", 1: "just", 2: "twice"}.get(count, f"{count} times")


# ---- playing ----------------------------------------------------------------------------------


def play(function: OnRanks, arrays: list[np.ndarray]) -> Rehearsal:
    """Rehearse ``function(comm, array)``; raise the mistakes that show without its results."""
    seen = rehearse(function, [(array,) for array in arrays])
    p = len(arrays)
    for rank, error in enumerate(seen.errors):
        _explain_error(rank, p, error)
    judge_errors(seen.errors, who=f"on {p} ranks rank {{}}")
    if seen.stuck:
        raise _why_stuck(seen, p)
    if seen.lost:
        message = seen.lost[0]
        raise WrongAnswer("nobody-receives", p=p, source=message.source, dest=message.dest)
    _judge_buffers(seen)
    return seen


def _explain_error(rank: int, p: int, error: BaseException | None) -> None:
    """Raise if it is an error that only a rehearsal raises."""
    text = str(error)
    if isinstance(error, CollectiveError):
        raise WrongAnswer("uses-a-collective", text=text)
    if isinstance(error, UnrehearsedError):
        raise WrongAnswer("not-rehearsed", text=text)
    if "there is no rank" in text:
        raise WrongAnswer("falls-off-the-end", p=p, rank=rank, text=text) from error
    if "message truncated" in text:
        raise WrongAnswer("does-not-fit", p=p, text=text) from error


def _why_stuck(seen: Rehearsal, p: int) -> WrongAnswer:
    calls = [calls[0] for calls in seen.stuck.values() if calls]
    if len(calls) == p and all(call.call.lower() == "send" for call in calls):
        return WrongAnswer("everyone-sends-first", p=p)
    if len(calls) == p and all(call.call.lower() == "recv" for call in calls):
        return WrongAnswer("everyone-receives-first", p=p)
    waiting = [
        f"rank {rank} in {own[0].call} " + " and ".join(map(_where, own))
        for rank, own in seen.stuck.items()
        if own
    ]
    ended = [f"rank {rank} has finished" for rank in range(p) if rank not in seen.stuck]
    return WrongAnswer("it-hangs", p=p, where="; ".join(waiting + ended))


def _where(call: Message) -> str:
    sends = call.content is not None
    peer = call.dest if sends else call.source
    return ("to " if sends else "from ") + ("any rank" if peer is None else f"rank {peer}")


def _judge_buffers(seen: Rehearsal) -> None:
    for message in seen.messages:
        if message.not_yet_there:
            raise WrongAnswer(
                "sends-what-has-not-arrived", source=message.source, dest=message.dest
            )
    for message in seen.messages:
        if message.changed:
            raise WrongAnswer(
                "changes-what-is-on-its-way", source=message.source, dest=message.dest
            )
    for message in seen.messages:
        if not message.waited:
            raise WrongAnswer("does-not-wait", source=message.source, call=message.call)


# ---- results ----------------------------------------------------------------------------------


def need_array(result, rank: int, given: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Raise unless ``result`` is an array of the dtype of ``given``."""
    if result is None:
        if np.array_equal(given, before):
            raise WrongAnswer("returns-nothing", rank=rank)
        raise WrongAnswer("works-in-place", rank=rank)
    if not isinstance(result, np.ndarray):
        kind = type(result).__name__
        raise WrongAnswer("not-an-array", rank=rank, kind=kind)
    if result.dtype != given.dtype:
        raise WrongAnswer("forgets-the-dtype", rank=rank, wanted=given.dtype, given=result.dtype)
    return result


def need_no_mean(result, right: np.ndarray, p: int) -> None:
    """Raise if ``result`` is the sum ``right``, divided by the number of ranks."""
    if p < 2 or not isinstance(result, np.ndarray) or result.shape != right.shape:
        return
    if not right.size:  # no numbers, no mean
        return
    # A mean is rounded once, or cut off by `//`: to 1e-9 no other mistake looks like it.
    if np.allclose(result, right / p, rtol=1e-9) or np.array_equal(result, right // p):
        raise WrongAnswer("mean-not-sum", p=p)


def need_new_array(seen: Rehearsal, given: list[np.ndarray], before: list[np.ndarray]) -> None:
    """Raise if a rank's own array was changed, or is itself the result."""
    for rank, (now, then) in enumerate(zip(given, before, strict=True)):
        if not np.array_equal(now, then):
            raise WrongAnswer("changes-its-input", rank=rank)
        if np.may_share_memory(now, seen.results[rank]):
            raise WrongAnswer("returns-its-input", rank=rank)


def need_fractions(function: OnRanks, given: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """Raise unless halves of ``given`` give halves of ``wanted``, in float64."""
    results = play(function, [array / 2 for array in given]).results
    for rank, (result, right) in enumerate(zip(results, wanted, strict=True)):
        dtype = getattr(result, "dtype", None)
        if dtype != np.float64 or not np.array_equal(result, right / 2):
            raise WrongAnswer("whole-numbers-only", rank=rank)


def need_new_array_each_time(function: OnRanks, arrays: list[np.ndarray]) -> None:
    """Raise if a second call returns the same array as the first."""
    first, second = (play(function, [array.copy() for array in arrays]).results for _ in range(2))
    for rank, pair in enumerate(zip(first, second, strict=True)):
        if np.may_share_memory(*pair):
            raise WrongAnswer("remembers-earlier-calls: the array", rank=rank)


def need_neighbours(seen: Rehearsal, p: int) -> None:
    """Raise unless every message goes to the neighbour on the same side."""
    if p < 3:
        return
    ways = {(message.dest - message.source) % p for message in seen.messages if message.nbytes}
    if len(ways) <= 1 and ways <= {1, p - 1}:
        return
    for root in range(p):
        if all(root in (message.source, message.dest) for message in seen.messages):
            raise WrongAnswer("naive", root=root)
    stray = next(m for m in seen.messages if (m.dest - m.source) % p != 1)
    raise WrongAnswer("not-the-neighbour", p=p, source=stray.source, dest=stray.dest)
