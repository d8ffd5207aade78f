"""The judge of lesson 10c for the dispatch of tokens: the order of their copies, and the counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course_lib.teaching.exercise import WrongAnswer

# Chosen experts, number of experts, ranks.
_CASES: tuple[tuple[list[int], int, int], ...] = (
    ([3, 0, 2, 1, 3, 3, 0, 2], 4, 2),
    ([5, 5, 1, 7, 0, 2, 5, 1, 6, 3], 8, 4),
    ([0, 0, 0], 8, 4),  # all to one: the others are empty
    ([7, 6], 8, 2),
    ([], 6, 3),
    ([2, 1, 0, 2], 3, 3),
    ([1, 0, 1], 2, 1),
    ([4, 1, 5, 0, 3, 2], 6, 2),
    ([(7 * i + i * i) % 12 for i in range(200)], 12, 3),
)


def judge_dispatch(dispatch: Callable[[torch.Tensor, int, int], Any]) -> None:
    """Raise WrongAnswer unless order and counts are right in all cases."""
    kept = []
    for chosen, experts, ranks in _CASES:
        given = torch.tensor(chosen, dtype=torch.int64)
        case = f"chosen={_short(chosen)}, experts={experts}, ranks={ranks}"
        found = dispatch(given, experts, ranks)
        order, counts = _as_pair(found, case)
        _judge_order(order, chosen, case)
        _judge_counts(counts, chosen, experts, ranks, case)
        if given.tolist() != chosen:
            raise WrongAnswer("changes-its-argument", case=case)
        kept.append((order, order.clone(), counts, counts.clone()))
    if any(not torch.equal(a, b) or not torch.equal(c, d) for a, b, c, d in kept):
        raise WrongAnswer("overwrites-its-result")


def _as_pair(found: Any, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    if found is None:
        raise WrongAnswer("returns-nothing", case=case)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise WrongAnswer("not-two", case=case, kind=type(found).__name__)
    for name, one in zip(("order", "counts"), found, strict=True):
        if not isinstance(one, torch.Tensor):
            raise WrongAnswer("not-a-tensor", case=case, name=name, kind=type(one).__name__)
        if one.dtype != torch.int64:
            raise WrongAnswer("not-int64", case=case, name=name, dtype=one.dtype)
    return found[0], found[1]


def _judge_order(order: torch.Tensor, chosen: list[int], case: str) -> None:
    if order.shape != (len(chosen),):
        raise WrongAnswer(
            "wrong-order-shape", case=case, shape=tuple(order.shape), copies=len(chosen)
        )
    numbers = order.tolist()
    if numbers == sorted(chosen) and sorted(numbers) != list(range(len(chosen))):
        raise WrongAnswer("experts-not-copies", case=case)
    if sorted(numbers) != list(range(len(chosen))):
        raise WrongAnswer("not-each-copy-once", case=case, given=_short(numbers))
    experts = [chosen[number] for number in numbers]
    if experts == sorted(experts):
        return
    if numbers == list(range(len(chosen))):
        raise WrongAnswer("not-sorted", case=case, experts=_short(experts))
    if experts == sorted(experts, reverse=True):
        raise WrongAnswer("descending", case=case)
    # Where each copy goes instead of which copy comes next.
    places = [0] * len(numbers)
    for place, number in enumerate(numbers):
        places[number] = place
    if [chosen[number] for number in places] == sorted(chosen):
        raise WrongAnswer("places-not-order", case=case)
    raise WrongAnswer("wrong-order", case=case, experts=_short(experts))


def _judge_counts(
    counts: torch.Tensor, chosen: list[int], experts: int, ranks: int, case: str
) -> None:
    mine = experts // ranks
    right = [[chosen.count(rank * mine + e) for e in range(mine)] for rank in range(ranks)]
    by_rank = [sum(row) for row in right]
    wanted = torch.tensor(right, dtype=torch.int64).view(ranks, mine)
    if counts.shape != wanted.shape:
        if counts.shape == (ranks,) and counts.tolist() == by_rank:
            raise WrongAnswer("counts-by-rank-only", case=case, ranks=ranks, mine=mine)
        raise WrongAnswer(
            "wrong-counts-shape", case=case, shape=tuple(counts.shape), wanted=(ranks, mine)
        )
    if torch.equal(counts, wanted):
        return
    flat = [count for row in right for count in row]
    spread = torch.tensor(flat, dtype=torch.int64).view(mine, ranks).T
    if torch.equal(counts, spread):
        raise WrongAnswer("experts-dealt-out", case=case, mine=mine)
    if torch.equal(counts, wanted.cumsum(1)) or torch.equal(
        counts.flatten(), wanted.flatten().cumsum(0)
    ):
        raise WrongAnswer("running-sums", case=case)
    raise WrongAnswer("wrong-counts", case=case, given=counts.tolist(), wanted=right)


def _short(numbers: list[int]) -> str:
    text = repr(numbers)
    return text if len(text) <= 60 else f"{text[:40]} ... {text[-15:]}"
