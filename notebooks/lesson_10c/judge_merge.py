"""The judge of lesson 10c for merged partial softmaxes, including queries that see no key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from course_lib.teaching.exercise import WrongAnswer

Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_FIELDS = ("m", "total", "weighted")


class _Case(NamedTuple):
    """Scores and values of two parts, and the case's name in messages to the learner."""

    name: str
    scores: tuple[torch.Tensor, torch.Tensor]
    values: tuple[torch.Tensor, torch.Tensor]


def part_of(scores: torch.Tensor, values: torch.Tensor) -> Part:
    """Return (m, total, weighted) of scores (..., queries, keys) and values (..., keys, d)."""
    m = scores.amax(-1)
    exponentials = torch.exp(scores - m.masked_fill(m.isneginf(), 0.0)[..., None])
    return m, exponentials.sum(-1), exponentials @ values


def _cases() -> list[_Case]:
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def case(name: str, shape: tuple[int, ...], keys: tuple[int, int], d: int) -> _Case:
        scores = draw(*shape, keys[0]), draw(*shape, keys[1])
        values = draw(*shape[:-1], keys[0], d), draw(*shape[:-1], keys[1], d)
        return _Case(name, scores, values)

    plain, single = case("two parts", (2, 3, 5), (4, 6), 3), case("one query", (1,), (1, 3), 2)
    as_wide = case("as many queries as numbers", (2, 4), (3, 3), 4)
    large = case("scores around 1000", (2, 4), (3, 3), 4)
    large = large._replace(scores=(1000 + 50 * large.scores[0], 1000 + 50 * large.scores[1]))
    small = case("scores around -1000", (2, 4), (3, 5), 4)
    small = small._replace(scores=(small.scores[0] - 1000, small.scores[1] - 1100))
    none = torch.full((2, 5, 4), -torch.inf, dtype=torch.float64)
    hidden = case("a part without a visible key", (2, 5), (4, 4), 3)
    hidden = hidden._replace(scores=(hidden.scores[0], none))
    other_way = hidden._replace(scores=hidden.scores[::-1], values=hidden.values[::-1])
    both = hidden.scores[0].clone(), hidden.scores[0].clone()
    both[0][:, :2], both[1][:, 1:3] = -torch.inf, -torch.inf
    some = hidden._replace(name="a query that sees no key in either part", scores=both)
    return [plain, single, as_wide, large, small, hidden, other_way, some]


def judge_merge(merge: Callable[[Part, Part], Any]) -> None:
    """Raise WrongAnswer unless the learner's function merges exactly."""
    kept: list[tuple[Any, Part]] = []
    for case in _cases():
        for dtype in (torch.float64, torch.float32):
            scores = tuple(one.to(dtype) for one in case.scores)
            values = tuple(one.to(dtype) for one in case.values)
            parts = part_of(scores[0], values[0]), part_of(scores[1], values[1])
            whole = part_of(torch.cat(scores, -1), torch.cat(values, -2))
            before = [tensor.clone() for part in parts for tensor in part]
            found = merge(*parts)
            _judge_shape(found, whole, case.name)
            _judge_numbers(found, whole, parts, case.name)
            after = [tensor for part in parts for tensor in part]
            # Compares bits: the difference of two minus infinities is not a number.
            if any(not torch.equal(*pair) for pair in zip(before, after, strict=True)):
                raise WrongAnswer("changes-its-arguments", case=case.name)
            kept.append((found, whole))
    for found, whole in kept:
        if not all(_close(one, other) for one, other in zip(found, whole, strict=True)):
            raise WrongAnswer("overwrites-its-result")


def _judge_shape(found: Any, whole: Part, case: str) -> None:
    if found is None:
        raise WrongAnswer("returns-nothing", case=case)
    if not isinstance(found, (tuple, list)) or len(found) != 3:
        raise WrongAnswer("not-three", case=case, kind=type(found).__name__)
    for name, one, right in zip(_FIELDS, found, whole, strict=True):
        if not isinstance(one, torch.Tensor):
            raise WrongAnswer("not-a-tensor", case=case, name=name, kind=type(one).__name__)
        if one.shape != right.shape:
            raise WrongAnswer(
                "wrong-shape",
                case=case,
                name=name,
                shape=tuple(one.shape),
                wanted=tuple(right.shape),
            )
        if one.dtype != right.dtype:
            raise WrongAnswer(
                "wrong-dtype", case=case, name=name, dtype=one.dtype, wanted=right.dtype
            )


def _judge_numbers(found: Part, whole: Part, parts: tuple[Part, Part], case: str) -> None:
    if all(_close(one, other) for one, other in zip(found, whole, strict=True)):
        return
    m, total, weighted = found
    for name, one in zip(_FIELDS, found, strict=True):
        if one.isnan().any() or one.isposinf().any():
            raise WrongAnswer("not-a-number", case=case, name=name)
    sums = [one + other for one, other in zip(*parts, strict=True)]
    only_m_is_wrong = _close(total, whole[1]) and _close(weighted, whole[2])
    if _close(total, sums[1]) and _close(weighted, sums[2]) and not only_m_is_wrong:
        raise WrongAnswer("forgets-to-rescale", case=case)
    if not _close(m, whole[0]):
        _judge_m(m, whole, parts, case)
    if _close(total, whole[1]) and _close(weighted, whole[2] / whole[1][..., None]):
        raise WrongAnswer("divides-already", case=case)
    if _close(total, whole[1]) and not _close(weighted, whole[2]):
        raise WrongAnswer("only-total-is-right", case=case)
    if _close(weighted, whole[2]) and not _close(total, whole[1]):
        raise WrongAnswer("only-weighted-is-right", case=case)
    raise WrongAnswer(
        "wrong-value",
        case=case,
        given=total.flatten()[:2].tolist(),
        wanted=whole[1].flatten()[:2].tolist(),
    )


def _judge_m(m: torch.Tensor, whole: Part, parts: tuple[Part, Part], case: str) -> None:
    if _close(m, torch.minimum(parts[0][0], parts[1][0])):
        raise WrongAnswer("the-smaller-maximum", case=case)
    if bool((m == whole[0]).any()) and _close(m, torch.full_like(m, whole[0].max().item())):
        raise WrongAnswer("one-maximum-for-all", case=case)
    hidden = whole[0].isneginf()
    if hidden.any() and _close(m[~hidden], whole[0][~hidden]):
        raise WrongAnswer("wrong-maximum: of no key", case=case, given=m[hidden][0].item())
    raise WrongAnswer("wrong-maximum", case=case)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    tolerance = 1e-9 if other.dtype == torch.float64 else 1e-4
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance)
