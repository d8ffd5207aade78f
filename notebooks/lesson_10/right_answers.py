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
        "by bisection": """
def micro_batches_for(stages, most):
    low, high = 1, 10**6
    while low < high:
        middle = (low + high) // 2
        if (stages - 1) / (middle + stages - 1) <= most:
            high = middle
        else:
            low = middle + 1
    return low
""",
        "in fractions": """
import math
from fractions import Fraction
def micro_batches_for(stages, most):
    share = Fraction(str(most))
    return max(1, math.ceil((stages - 1) * (1 - share) / share))
""",
        "by NumPy": """
import numpy as np
def micro_batches_for(stages, most):
    needed = round((stages - 1) * (1 - most) / most, 9)
    return np.maximum(1, np.ceil(needed)).astype(int)
""",
    },
    "10.order": {
        "yielded": """
def order(number, stages, micro_batches):
    ahead = min(stages - 1 - number, micro_batches)
    yield from (("F", m) for m in range(ahead))
    for m in range(ahead, micro_batches):
        yield "F", m
        yield "B", m - ahead
    yield from (("B", m) for m in range(micro_batches - ahead, micro_batches))
""",
        "one more ahead, and then backward first": """
def order(number, stages, micro_batches):
    ahead = min(stages - number, micro_batches)
    tasks = [["F", m] for m in range(ahead)]
    for m in range(ahead, micro_batches):
        tasks += [["B", m - ahead], ["F", m]]
    return tasks + [["B", m] for m in range(micro_batches - ahead, micro_batches)]
""",
        "sorted by when": """
import numpy as np
def order(number, stages, micro_batches):
    a = min(stages - 1 - number, micro_batches)
    forwards = [(m if m < a else 2 * m - a, "F", m) for m in np.arange(micro_batches)]
    backwards = [(a + 2 * m + 1, "B", m) for m in np.arange(micro_batches)]
    return [(kind, m) for _, kind, m in sorted(forwards + backwards)]
""",
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
        "by NumPy": """
import numpy as np
from itertools import combinations
def cut(costs, stages):
    def slowest(places):
        return max(part.sum() for part in np.split(np.array(costs), places))
    best = min(combinations(range(1, len(costs)), stages - 1), key=slowest)
    return np.diff([0, *best, len(costs)])
""",
        "all numbers of layers that add up": """
from itertools import product
def cut(costs, stages):
    best = None
    for sizes in product(range(1, len(costs) + 1), repeat=stages):
        if sum(sizes) == len(costs):
            layers = iter(costs)
            slowest = max(sum(next(layers) for _ in range(size)) for size in sizes)
            if best is None or slowest < best[0]:
                best = slowest, sizes
    return best[1]
""",
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
