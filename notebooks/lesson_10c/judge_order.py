"""The judge of lesson 10c for the balanced order: who has which tokens, and how much work."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.trials import Trials, written

# Divisible by 2p, not divisible, one rank, more chunks than tokens, no token, and one in which
# floats are not enough: 15 * (164 / 20) is a little less than 123.
_CASES = ((16, 4), (32, 2), (24, 3), (37, 4), (50, 3), (7, 1), (8, 1), (5, 4), (0, 2), (164, 10))


def chunk(number: int, tokens: int, ranks: int) -> list[int]:
    """Return the positions of one of 2p chunks."""
    chunks = 2 * ranks
    return list(range(number * tokens // chunks, (number + 1) * tokens // chunks))


def judge_order(balanced_order: Callable[[int, int], Any]) -> None:
    """Raise WrongAnswer unless each rank has a chunk and its counterpart, for all sizes."""
    trials = Trials(balanced_order, _CASES)
    for (tokens, ranks), given in zip(_CASES, trials.given, strict=True):
        case = written((tokens, ranks))
        order = _as_lists(given, case)
        if len(order) != ranks:
            raise WrongAnswer("not-one-list-a-rank", case=case, lists=len(order), ranks=ranks)
        _judge_positions(order, tokens, case)
        _judge_chunks(order, tokens, ranks, case)
    trials.judge_manners(lambda one, other: one == other)


def _as_lists(given: Any, case: str) -> list[list[int]]:
    if given is None:
        raise WrongAnswer("returns-nothing: by a formula", case=case, given=given)
    try:
        order = [[*one] for one in given]
        whole = all(position == int(position) for one in order for position in one)
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise WrongAnswer("not-lists-of-positions", case=case, given=_short(given))
    return [[int(position) for position in one] for one in order]


def _judge_positions(order: list[list[int]], tokens: int, case: str) -> None:
    everything = sorted(position for one in order for position in one)
    for position in everything:
        if not 0 <= position < tokens:
            raise WrongAnswer("no-such-position", case=case, position=position, tokens=tokens)
    twice = [one for one, next_one in pairwise(everything) if one == next_one]
    if twice:
        raise WrongAnswer("a-token-twice", case=case, position=twice[0])
    if len(everything) < tokens:
        missing = min(set(range(tokens)) - set(everything))
        raise WrongAnswer("a-token-is-missing", case=case, position=missing)
    for rank, one in enumerate(order):
        if one != sorted(one):
            raise WrongAnswer("not-ascending", case=case, rank=rank, given=_short(one))


def _judge_chunks(order: list[list[int]], tokens: int, ranks: int, case: str) -> None:
    pairs = [
        sorted(chunk(c, tokens, ranks) + chunk(2 * ranks - 1 - c, tokens, ranks))
        for c in range(ranks)
    ]
    if sorted(order) == sorted(pairs):
        return
    if tokens % (2 * ranks) == 0:
        contiguous = [
            chunk(2 * r, tokens, ranks) + chunk(2 * r + 1, tokens, ranks) for r in range(ranks)
        ]
        if order == contiguous:
            raise WrongAnswer("contiguous", case=case)
        if order == [
            chunk(r, tokens, ranks) + chunk(r + ranks, tokens, ranks) for r in range(ranks)
        ]:
            raise WrongAnswer("round-robin", case=case, work=_work(order))
        if order == [list(range(r, tokens, ranks)) for r in range(ranks)]:
            raise WrongAnswer("striped", case=case)
        if len(set(_work(order))) > 1:
            raise WrongAnswer("unbalanced", case=case, work=_work(order))
    rank = next(r for r, one in enumerate(order) if one not in pairs)
    raise WrongAnswer("other-chunks", case=case, rank=rank, given=_short(order[rank]))


def _work(order: list[list[int]]) -> list[int]:
    """Return how many keys the queries of each rank see together."""
    return [sum(position + 1 for position in one) for one in order]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:50]} ... {text[-20:]}"
