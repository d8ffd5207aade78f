"""Right answers to lesson 10 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "10.micro_batches_for": {
        "solved for M": """
import math
def micro_batches_for(stages, most):
    return max(1, math.ceil((stages - 1) * (1 - most) / most - 1e-9))
""",
        "by next": """
from itertools import count
def micro_batches_for(stages, most):
    k = stages - 1
    return next(m for m in count(1) if k / (m + k) <= most)
""",
    },
    "10.order": {
        "by what is next": """
def order(number, stages, micro_batches):
    tasks, f, b = [], 0, 0
    while b < micro_batches:
        if f < micro_batches and f - b < stages - number:
            tasks.append(("F", f))
            f += 1
        else:
            tasks.append(("B", b))
            b += 1
    return tasks
""",
        "as tuples, slices of two lists": """
def order(number, stages, micro_batches):
    f = [("F", m) for m in range(micro_batches)]
    b = [("B", m) for m in range(micro_batches)]
    a = min(stages - number - 1, micro_batches)
    turns = [task for pair in zip(f[a:], b) for task in pair]
    return tuple(f[:a] + turns + b[micro_batches - a:])
""",
    },
    "10.cut": {
        "by recursion": """
def cut(costs, stages):
    def best(start, left):
        if left == 1:
            return sum(costs[start:]), [len(costs) - start]
        options = []
        for n in range(1, len(costs) - start - left + 2):
            rest, counts = best(start + n, left - 1)
            options.append((max(sum(costs[start:start + n]), rest), [n, *counts]))
        return min(options)
    return best(0, stages)[1]
""",
        "the largest stage that is allowed, tried in turn": """
def cut(costs, stages):
    sums = sorted({round(sum(costs[a:b]), 9) for a in range(len(costs))
                   for b in range(a + 1, len(costs) + 1)})
    for limit in sums:
        counts, load = [0], 0.0
        for i, cost in enumerate(costs):
            left = len(costs) - i
            if counts[-1] and (load + cost > limit + 1e-6 or left == stages - len(counts)):
                counts.append(0)
                load = 0.0
            counts[-1] += 1
            load += cost
            if load > limit + 1e-6:
                break
        else:
            if len(counts) == stages:
                return counts
""",
    },
}
