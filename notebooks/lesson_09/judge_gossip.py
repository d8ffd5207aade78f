"""The judge of lesson 09's exercise 5, a gossip step.

The step is right if two ranks end with the mean of the values that they held before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.messages import (
    all_stuck_in_first_send,
    all_waited,
    judge_hang,
)
from course_lib.teaching.message_log import Observation

from .judge_parameter_server import judge_first
from .message_recording import observe_messages

SHAPE = 2, 1 << 16  # float64 numbers: 1 MiB, more than any MPI sends without a receiver


NEXT, SECOND_NEXT = 1, 2  # distance of the partner: one odd rank and one even, or both odd or even
_FINE = 2.0**-22  # a part of the second trial's numbers that float32 cannot represent


def observe_gossip(gossip: Callable, far: int = NEXT) -> Observation:
    """Return per rank the numbers in the result, in its own value, and in the result later on.

    A result of another shape is reported as its shape, and a result that is no tensor as its text.
    """

    def call(group):
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if rank ^ far >= size:
            return None
        value = torch.full(SHAPE, start_of(rank, far), dtype=torch.float64)
        result = gossip(value, rank ^ far, group)
        if not isinstance(result, torch.Tensor):
            return repr(result)[:60], None, None
        if result.shape != SHAPE:
            return tuple(result.shape), None, None
        number, after = result.unique().tolist(), value.unique().tolist()
        gossip(torch.zeros(SHAPE, dtype=torch.float64), rank ^ far, group)
        return number, after, result.unique().tolist()

    return observe_messages(call)


def start_of(rank: int, far: int = NEXT) -> float:
    return float(4 ** (rank + 1)) + (_FINE if far == SECOND_NEXT else 0.0)


def judge_gossip(seen: Observation, far: int = NEXT) -> None:
    judge_first(seen)
    logs = [log for log in seen.logs if log]
    if seen.hung and logs and all_stuck_in_first_send(logs):
        raise WrongAnswer("both-send-first", call=_first(logs))
    if seen.hung and logs and all(event.kind == "recv" for log in logs for event in log):
        raise WrongAnswer("both-receive-first", call=_first(logs))
    judge_hang(seen)
    all_waited(seen)  # otherwise the result depends on when the messages came
    for rank, log in enumerate(seen.logs):
        if any(event.kind == "recv" and event.any_source for event in log):
            raise WrongAnswer("from-anyone", rank=rank)
    p = len(seen.results)
    for rank in range(p):
        if rank < rank ^ far < p:
            _judge_pair(seen, rank, rank ^ far, far)


def judge_digits(seen: Observation) -> None:
    """Raise if the second trial's results are right to float32 precision only."""
    for rank, result in enumerate(seen.results):
        if result is None:
            continue
        mean = (start_of(rank, SECOND_NEXT) + start_of(rank ^ SECOND_NEXT, SECOND_NEXT)) / 2
        numbers = result[0] if isinstance(result[0], list) else []
        if numbers and numbers != [mean] and all(abs(n - mean) < 4 * _FINE for n in numbers):
            raise WrongAnswer("loses-digits", rank=rank)


def _first(logs: list) -> str:
    call = logs[0][0].call
    return f"`dist.{call}`" if call in ("send", "recv") else f"the `wait()` of `dist.{call}`"


def _judge_pair(seen: Observation, low: int, high: int, far: int) -> None:
    one, other = start_of(low, far), start_of(high, far)
    mean = (one + other) / 2
    for rank, own, theirs in ((low, one, other), (high, other, one)):
        number, after, later = seen.results[rank]
        what = {(one + other): "sum-not-mean", theirs: "swaps", own: "keeps-its-own"}
        if number == [mean]:
            pass
        elif number in ([own + theirs / 2], [own / 2 + theirs]):
            raise WrongAnswer("half-of-one", rank=rank, own=own, theirs=theirs, given=number[0])
        elif isinstance(number, list) and len(number) == 1 and number[0] in what:
            raise WrongAnswer(
                what[number[0]],
                rank=rank,
                own=own,
                theirs=theirs,
                given=number[0],
                mean=mean,
            )
        elif isinstance(number, list):
            kept = [seen.results[r][0] for r in (low, high)]
            if number == [(own + mean) / 2]:
                raise WrongAnswer(
                    "mean-not-kept",
                    low=low,
                    high=high,
                    one=one,
                    other=other,
                    kept_low=kept[0],
                    kept_high=kept[1],
                )
            raise WrongAnswer(
                "wrong-value",
                low=low,
                high=high,
                one=one,
                other=other,
                kept_low=kept[0],
                kept_high=kept[1],
                mean=mean,
            )
        elif isinstance(number, tuple):
            raise WrongAnswer("another-shape", rank=rank, shape=number, wanted=SHAPE)
        else:
            raise WrongAnswer("returns-no-tensor", rank=rank, number=number)
        if after != [own]:
            raise WrongAnswer("changes-its-own", rank=rank, own=own, after=after[0])
        if later != number:
            raise WrongAnswer("one-tensor-for-all-calls", rank=rank)
