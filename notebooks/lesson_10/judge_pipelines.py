"""The judges of lesson 10's exercises: the formula, the schedule and the best cut."""

from __future__ import annotations

import math
import numbers
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import plain, returned

from .pipeline_schedules import Task, in_flight, one_f_one_b, times

_PLANS = (
    *((4, 0.5), (4, 0.25), (4, 0.1), (8, 0.05), (1, 0.5), (2, 0.9), (3, 0.2), (4, 0.4)),
    # In floats, the formula gives slightly more than a whole number; rounded up, one too many.
    *((4, 0.2), (7, 0.12), (10, 0.6), (22, 0.7)),
)
_SIZES = ((4, 8), (4, 4), (2, 5), (4, 2), (1, 3), (3, 1))
_COSTS = (
    ([1, 1, 1, 1, 1, 1, 1, 1], 4),
    ([6, 1, 1, 1, 1, 2], 2),
    ([1, 2, 3, 4, 5, 6, 7], 3),
    ([5, 1, 1, 1, 1, 1, 1, 9], 3),
    ([1, 1, 1, 8], 2),
    ([3, 2], 2),
    ([4, 1, 7], 1),
    ([0.2, 0.3, 0.4, 0.1, 0.1, 0.5, 0.2], 4),
    ([0.3, 0.9, 0.6, 0.9, 0.8, 0.9], 3),  # a sum that is rounded up
    ([5, 3, 8, 9, 4, 6, 9], 4),
    ([6, 4, 3, 8], 3),
    ([3, 3, 9, 4, 1, 4, 9, 9], 4),  # the most even cut, 15 9 9 9, is not the best
    # One layer is the slowest stage in any cut, so an empty stage would do no harm.
    ([9, 1, 1], 3),
    ([1, 1, 9], 3),
)


def judge_micro_batches_for(function: Callable[[int, float], int]) -> None:
    """Raise WrongAnswer unless the function returns the smallest number for every plan."""
    numbers_found: list[int] = []
    given = [plain(function(stages, most)) for stages, most in _PLANS]
    if None in given:
        stages, most = _PLANS[given.index(None)]
        raise WrongAnswer("returns-nothing", stages=stages, most=most)
    for (stages, most), found in zip(_PLANS, given, strict=True):
        if isinstance(found, bool) or not isinstance(found, numbers.Real) or not _finite(found):
            raise WrongAnswer("not-a-number", stages=stages, most=most, found=repr(found))
        if found != int(found) and given == [_bubble(k, _needed(k, m)) for k, m in _PLANS]:
            raise WrongAnswer("the-bubble", stages=stages, most=most, found=found)
        if found != int(found):
            raise WrongAnswer("not-whole", stages=stages, most=most, found=found)
        if found < 1:
            raise WrongAnswer("none-at-all", stages=stages, most=most, found=found)
        numbers_found.append(int(found))
    for _, formula in _OTHER_FORMULAS:
        if numbers_found == [formula(stages, most) for stages, most in _PLANS]:
            raise WrongAnswer("other-formula")
    for (stages, most), count in zip(_PLANS, numbers_found, strict=True):
        right = _needed(stages, most)
        if count < right:
            raise WrongAnswer(
                "too-few", stages=stages, most=most, count=count, bubble=_bubble(stages, count)
            )
        if count > right:
            if _bubble(stages, right) == most:
                raise WrongAnswer(
                    "too-many: by one", stages=stages, most=most, right=right, count=count
                )
            raise WrongAnswer("too-many", stages=stages, most=most, right=right, count=count)


def _finite(number: numbers.Real) -> bool:
    return math.isfinite(float(number))


def _bubble(stages: int, micro_batches: int) -> float:
    return (stages - 1) / (micro_batches + stages - 1)


def _needed(stages: int, most: float, of_useful: bool = False) -> int:
    count = 1
    while (stages - 1) / (count + (0 if of_useful else stages - 1)) > most:
        count += 1
    return count


_OTHER_FORMULAS: tuple[tuple[str, Callable[[int, float], int]], ...] = (
    ("share of the useful time", lambda stages, most: _needed(stages, most, of_useful=True)),
    ("K in place of K - 1", lambda stages, most: _needed(stages + 1, most)),
    ("both", lambda stages, most: _needed(stages + 1, most, of_useful=True)),
)


def judge_order(order: Callable[[int, int, int], list[tuple[str, int]]]) -> None:
    """Raise WrongAnswer unless the order is 1F1B for every stage and several sizes."""
    for stages, count in _SIZES:
        found = [_tasks(returned(order, r, stages, count), r, stages, count) for r in range(stages)]
        right = one_f_one_b(stages, count)
        if found == right:
            continue
        if found == right[::-1]:
            raise WrongAnswer("from-the-other-end", stages=stages, count=count, last=stages - 1)
        try:
            times(found, {"F": 1, "B": 2})
        except ValueError:
            stuck = _standstill(found, stages)
            raise WrongAnswer("waits-for-ever", stages=stages, count=count, stuck=stuck) from None
        for number, (own, wanted) in enumerate(zip(found, right, strict=True)):
            where = f"K = {stages}, M = {count}, stage {number}"
            if in_flight(own) > in_flight(wanted):
                raise WrongAnswer(
                    "holds-too-many", where=where, holds=in_flight(own), enough=in_flight(wanted)
                )
            if in_flight(own) < in_flight(wanted):
                raise WrongAnswer(
                    "runs-not-ahead", where=where, holds=in_flight(own), ahead=in_flight(wanted) - 1
                )
        raise WrongAnswer("another-order", stages=stages, count=count)


def _standstill(found: list[list[Task]], stages: int) -> str:
    """Return which task each stage is stuck at in a schedule that never ends."""
    done: set[tuple[str, int, int]] = set()  # kind, micro-batch, stage
    left = [list(tasks) for tasks in found]
    moved = True
    while moved:
        moved = False
        for stage, tasks in enumerate(left):
            while tasks and _needs(tasks[0], stage, stages) <= done:
                done.add((tasks[0].kind, tasks[0].micro_batch, stage))
                del tasks[0]
                moved = True
    return "; ".join(
        f'stage {stage} before ("{tasks[0].kind}", {tasks[0].micro_batch})'
        for stage, tasks in enumerate(left)
        if tasks
    )


def _needs(task: Task, stage: int, stages: int) -> set[tuple[str, int, int]]:
    m = task.micro_batch
    if task.kind == "F":
        return {("F", m, stage - 1)} if stage else set()
    return {("F", m, stage)} | ({("B", m, stage + 1)} if stage + 1 < stages else set())


def _tasks(pairs: object, number: int, stages: int, count: int) -> list[Task]:
    where = f"stage {number} of {stages}, {count} micro-batches"
    if pairs is None:
        raise WrongAnswer("returns-nothing", where=where)
    if not isinstance(pairs, list | tuple):
        raise WrongAnswer("no-list", where=where, pairs=repr(pairs))
    tasks = []
    for pair in pairs:
        try:
            kind, m = pair
            tasks.append(Task(str(kind), operator.index(m)))
        except (TypeError, ValueError):
            raise WrongAnswer("no-pairs", where=where, pair=repr(pair)) from None
        if kind not in ("F", "B"):
            raise WrongAnswer("no-such-task", where=where, pair=repr(pair))
    wanted = Counter(Task(kind, m) for kind in "FB" for m in range(count))
    missing, extra = wanted - Counter(tasks), Counter(tasks) - wanted
    if missing or extra:
        first = next(iter(missing or extra))
        if extra and not 0 <= next(iter(extra)).micro_batch < count:
            first = next(iter(extra))
            raise WrongAnswer(
                "not-each-once: of other numbers",
                where=where,
                kind=first.kind,
                micro_batch=first.micro_batch,
                largest=count - 1,
            )
        if missing:
            raise WrongAnswer(
                "not-each-once", where=where, kind=first.kind, micro_batch=first.micro_batch
            )
        raise WrongAnswer(
            "not-each-once: but twice", where=where, kind=first.kind, micro_batch=first.micro_batch
        )
    return tasks


def judge_cut(cut: Callable[[list[float], int], list[int]]) -> None:
    """Raise WrongAnswer unless the slowest stage is as fast as with any other cut."""
    cuts = []
    for costs, stages in _COSTS:
        given = list(costs)
        found = plain(returned(cut, given, stages))
        if given != costs:
            raise WrongAnswer("changes-costs")
        _require_a_cut(found, costs, stages)
        ends = [sum(found[:i]) for i in range(stages + 1)]
        cuts.append((costs, found, max(sum(costs[a:b]) for a, b in pairwise(ends))))
    equal = all(max(found) - min(found) <= 1 for _, found, _ in cuts)
    for costs, found, slowest in cuts:
        best = _best(costs, len(found))
        if slowest > best + 1e-9:
            if equal:
                raise WrongAnswer(
                    "equal-numbers",
                    costs=costs,
                    count=len(found),
                    found=list(found),
                    slowest=slowest,
                    best=best,
                )
            raise WrongAnswer(
                "not-the-best",
                costs=costs,
                count=len(found),
                found=list(found),
                slowest=slowest,
                best=best,
            )


def _require_a_cut(found: object, costs: Sequence[float], stages: int) -> None:
    if found is None:
        raise WrongAnswer("returns-nothing")
    if not isinstance(found, list | tuple) or not all(isinstance(n, int) for n in found):
        raise WrongAnswer("no-list", costs=costs, stages=stages, found=repr(found))
    if len(found) != stages:
        raise WrongAnswer(
            "other-number-of-stages", count=len(found), stages=stages, found=list(found)
        )
    if min(found) < 1:
        raise WrongAnswer("empty-stage", found=list(found))
    if sum(found) != len(costs):
        raise WrongAnswer(
            "not-all-layers",
            costs=costs,
            stages=stages,
            found=list(found),
            sum=sum(found),
            layers=len(costs),
        )


def _best(costs: Sequence[float], stages: int) -> float:
    def slowest(ends: tuple[int, ...]) -> float:
        return max(sum(costs[a:b]) for a, b in pairwise((0, *ends, len(costs))))

    return min(map(slowest, combinations(range(1, len(costs)), stages - 1)))
