"""The checks of lesson 10: how many micro-batches, in which order, and where to cut."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise

MICRO_HINTS = [
    "The bubble is (K - 1)/(M + K - 1). It gets smaller as M grows. What is the first M for which "
    "it is small enough?",
    "Begin with M = 1 and add one as long as the bubble is larger than `most`. (Or solve for M and "
    "round up; remember that M is at least 1, and that 0.1 is not exactly a tenth.)",
    "```python\n"
    "micro_batches = 1\n"
    "while ... > most:  # the bubble of so many micro-batches\n"
    "    micro_batches += 1\n"
    "return micro_batches\n"
    "```",
]


@exercise("10.micro_batches_for", function="micro_batches_for", where="notebook", hints=MICRO_HINTS)
def check_micro_batches_for(micro_batches_for: Callable[[int, float], int]) -> str:
    from .judge_pipelines import judge_micro_batches_for

    judge_micro_batches_for(micro_batches_for)
    return "With one micro-batch fewer the bubble would be too large."


ORDER_HINTS = [
    "Look at the figure stage by stage: how many forwards come before the first backward? After "
    "that, which backward follows each forward?",
    "Three parts: `ahead` forwards, with ahead = stages - 1 - number, but no more than there are "
    "micro-batches; then forward m and backward m - ahead, for each m from `ahead` on; then the "
    "last `ahead` backwards.",
    "```python\n"
    "ahead = min(stages - 1 - number, micro_batches)\n"
    'tasks = [("F", m) for m in range(ahead)]\n'
    "for m in range(ahead, micro_batches):\n"
    "    ...  # forward m, and the oldest backward\n"
    "...  # the backwards that are left\n"
    "return tasks\n"
    "```",
]


@exercise("10.order", function="order", where="notebook", hints=ORDER_HINTS)
def check_order(order: Callable[[int, int, int], list[tuple[str, int]]]) -> str:
    from .judge_pipelines import judge_order

    judge_order(order)
    return (
        "Every stage has its 1F1B order, all tasks get done, and stage r holds K - r micro-batches."
    )


CUT_HINTS = [
    "A cut is a choice of `stages - 1` places between layers. For each choice, the slowest "
    "stage counts. Which choice makes that stage fastest?",
    "`combinations(range(1, len(costs)), stages - 1)` gives all choices of places. With 0 before "
    "and `len(costs)` after them you have the edges of the stages; `sum(costs[a:b])` is the cost "
    "of one stage.",
    "```python\n"
    "from itertools import combinations\n\n"
    "def slowest(ends):\n"
    "    edges = [0, *ends, len(costs)]\n"
    "    ...  # the largest sum between two edges\n\n"
    "ends = min(combinations(range(1, len(costs)), stages - 1), key=slowest)\n"
    "...  # the number of layers between two edges\n"
    "```",
]


@exercise("10.cut", function="cut", where="notebook", hints=CUT_HINTS)
def check_cut(cut: Callable[[list[float], int], list[int]]) -> str:
    from .judge_pipelines import judge_cut

    judge_cut(cut)
    return "No other cut has a faster slowest stage."
