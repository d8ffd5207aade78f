"""What the checks of lesson 10 look for: the formula, the schedule, and the best of all cuts."""

from __future__ import annotations

import math
import numbers
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

from course_lib.parallel.pipeline_schedules import Task, in_flight, one_f_one_b, times
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import plain, returned

_PLANS = ((4, 0.5), (4, 0.25), (4, 0.1), (8, 0.05), (1, 0.5), (2, 0.9), (3, 0.2), (4, 0.4))
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
    ([5, 3, 8, 9, 4, 6, 9], 4),
    ([3, 3, 9, 4, 1, 4, 9, 9], 4),  # the most even cut, 15 9 9 9, is not the best
)


def judge_micro_batches_for(function: Callable[[int, float], int]) -> None:
    """Raise WrongAnswer unless it is the smallest number for every plan."""
    numbers_found: list[int] = []
    given = [plain(function(stages, most)) for stages, most in _PLANS]
    if None in given:
        raise WrongAnswer("returns-nothing", "it returned nothing. Is there a `return`?")
    for (stages, most), found in zip(_PLANS, given, strict=True):
        if isinstance(found, bool) or not isinstance(found, numbers.Real) or not _finite(found):
            raise WrongAnswer("not-a-number", f"{stages} stages, {most}: it returned {found!r}")
        if found != int(found) and given == [_bubble(k, _needed(k, m)) for k, m in _PLANS]:
            raise WrongAnswer(
                "the-bubble",
                f"{stages} stages, {most}: it returned {found:g}, which is the bubble; the number "
                "of micro-batches is asked for",
            )
        if found != int(found):
            raise WrongAnswer(
                "not-whole",
                f"{stages} stages, {most}: there are no {found:g} micro-batches; round up",
            )
        if found < 1:
            raise WrongAnswer(
                "none-at-all",
                f"{stages} stages, {most}: {found:g} micro-batches are no batch; at least 1",
            )
        numbers_found.append(int(found))
    for _, formula in _OTHER_FORMULAS:
        if numbers_found == [formula(stages, most) for stages, most in _PLANS]:
            raise WrongAnswer(
                "other-formula",
                "these are more micro-batches than needed. The bubble is (K - 1)/(M + K - 1): with "
                "K - 1, not K, and of the whole time, not of the useful one",
            )
    for (stages, most), count in zip(_PLANS, numbers_found, strict=True):
        right = _needed(stages, most)
        if count < right:
            raise WrongAnswer(
                "too-few",
                f"{stages} stages, {most}: with {count} the bubble is "
                f"{_bubble(stages, count):.4f}, which is more",
            )
        if count > right:
            equal = _bubble(stages, right) == most
            raise WrongAnswer(
                "too-many",
                f"{stages} stages, {most}: {right} are enough, not {count}"
                + f". With {right} the bubble is {most}: at most {most} allows that" * equal,
            )


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
    """Raise WrongAnswer unless it is 1F1B, for every stage and several sizes."""
    for stages, count in _SIZES:
        found = [_tasks(returned(order, r, stages, count), r, stages, count) for r in range(stages)]
        right = one_f_one_b(stages, count)
        if found == right:
            continue
        if found == right[::-1]:
            raise WrongAnswer(
                "from-the-other-end",
                f"K = {stages}, M = {count}: stage 0 does what stage {stages - 1} should. The "
                "first stage runs ahead furthest, as its gradient has the longest way back",
            )
        try:
            times(found, {"F": 1, "B": 2})
        except ValueError:
            raise WrongAnswer("waits-for-ever", _standstill(found, stages, count)) from None
        for number, (own, wanted) in enumerate(zip(found, right, strict=True)):
            where = f"K = {stages}, M = {count}, stage {number}"
            if in_flight(own) > in_flight(wanted):
                raise WrongAnswer(
                    "holds-too-many",
                    f"{where} holds {in_flight(own)} micro-batches at once; 1F1B begins backward "
                    f"as early as it can and holds {in_flight(wanted)}",
                )
            if in_flight(own) < in_flight(wanted):
                raise WrongAnswer(
                    "runs-not-ahead",
                    f"{where} holds {in_flight(own)} micro-batch(es) at once, so the stages after "
                    f"it wait; it should run {in_flight(wanted) - 1} ahead",
                )
        raise WrongAnswer(
            "another-order",
            f"K = {stages}, M = {count}: every stage holds as many as it should, but in another "
            "order: forwards and backwards each by rising numbers, a forward first",
        )


def _standstill(found: list[list[Task]], stages: int, count: int) -> str:
    """Say of a schedule that never ends what each stage waits to do."""
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
    stuck = "; ".join(
        f'stage {stage} before ("{tasks[0].kind}", {tasks[0].micro_batch})'
        for stage, tasks in enumerate(left)
        if tasks
    )
    return f"K = {stages}, M = {count}: the stages wait for each other for ever: {stuck}"


def _needs(task: Task, stage: int, stages: int) -> set[tuple[str, int, int]]:
    m = task.micro_batch
    if task.kind == "F":
        return {("F", m, stage - 1)} if stage else set()
    return {("F", m, stage)} | ({("B", m, stage + 1)} if stage + 1 < stages else set())


def _tasks(pairs: object, number: int, stages: int, count: int) -> list[Task]:
    where = f"stage {number} of {stages}, {count} micro-batches"
    if pairs is None:
        raise WrongAnswer("returns-nothing", f"{where}: it returned nothing. Is there a `return`?")
    if not isinstance(pairs, list | tuple):
        raise WrongAnswer("no-list", f"{where}: it returned {pairs!r}, not a list of pairs")
    tasks = []
    for pair in pairs:
        try:
            kind, m = pair
            tasks.append(Task(str(kind), operator.index(m)))
        except (TypeError, ValueError):
            raise WrongAnswer(
                "no-pairs", f'{where}: each item is a pair such as ("F", 0), not {pair!r}'
            ) from None
        if kind not in ("F", "B"):
            raise WrongAnswer("no-such-task", f'{where}: {pair!r} has neither "F" nor "B" in front')
    wanted = Counter(Task(kind, m) for kind in "FB" for m in range(count))
    missing, extra = wanted - Counter(tasks), Counter(tasks) - wanted
    if missing or extra:
        first = next(iter(missing or extra))
        what = "is missing" if missing else "is there twice"
        if extra and not 0 <= next(iter(extra)).micro_batch < count:
            first = next(iter(extra))
            what = f"is there, but micro-batches are counted from 0 to {count - 1}"
        raise WrongAnswer("not-each-once", f'{where}: ("{first.kind}", {first.micro_batch}) {what}')
    return tasks


def judge_cut(cut: Callable[[list[float], int], list[int]]) -> None:
    """Raise WrongAnswer unless the slowest stage is as fast as with any other cut."""
    cuts = []
    for costs, stages in _COSTS:
        given = list(costs)
        found = plain(returned(cut, given, stages))
        if given != costs:
            raise WrongAnswer("changes-costs", "it changes `costs`, which the caller still needs")
        _require_a_cut(found, costs, stages)
        ends = [sum(found[:i]) for i in range(stages + 1)]
        cuts.append((costs, found, max(sum(costs[a:b]) for a, b in pairwise(ends))))
    equal = all(max(found) - min(found) <= 1 for _, found, _ in cuts)
    for costs, found, slowest in cuts:
        best = _best(costs, len(found))
        if slowest > best + 1e-9:
            raise WrongAnswer(
                "equal-numbers" if equal else "not-the-best",
                f"{costs} in {len(found)} stages: {list(found)} layers make a stage of "
                f"{slowest:g}; the best cut has {best:g}"
                + (". Equal numbers of layers are not equal costs" if equal else ""),
            )


def _require_a_cut(found: object, costs: Sequence[float], stages: int) -> None:
    if found is None:
        raise WrongAnswer("returns-nothing", "it returned nothing. Is there a `return`?")
    if not isinstance(found, list | tuple) or not all(isinstance(n, int) for n in found):
        raise WrongAnswer(
            "no-list",
            f"{costs} in {stages} stages: it returned {found!r}, not a list of whole numbers, the "
            "number of layers of each stage",
        )
    if len(found) != stages:
        raise WrongAnswer(
            "other-number-of-stages", f"{len(found)} numbers for {stages} stages: {list(found)}"
        )
    if min(found) < 1:
        raise WrongAnswer("empty-stage", f"{list(found)}: every stage gets at least one layer")
    if sum(found) != len(costs):
        raise WrongAnswer(
            "not-all-layers",
            f"{costs} in {stages} stages: {list(found)} are {sum(found)} layers, but there are "
            f"{len(costs)}. How many layers each stage gets is asked for, not where it ends or "
            "what it costs",
        )


def _best(costs: Sequence[float], stages: int) -> float:
    def slowest(ends: tuple[int, ...]) -> float:
        return max(sum(costs[a:b]) for a, b in pairwise((0, *ends, len(costs))))

    return min(map(slowest, combinations(range(1, len(costs)), stages - 1)))
