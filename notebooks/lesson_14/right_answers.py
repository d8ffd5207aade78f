"""Right answers to lesson 14 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "14.sync_seconds": {
        "by NumPy, bits on the way": """
import numpy as np
def sync_seconds(buckets, ranks, latency, megabits):
    bits = 8 * np.asarray(buckets, dtype=float)
    rate = megabits * 10**6
    doubling = np.log2(ranks) * (latency + bits / rate)
    ring = 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * bits / rate
    return np.minimum(doubling, ring).sum()
""",
        "by lesson 03's cost model": """
from course_lib.teaching import cost
def sync_seconds(buckets, ranks, latency, megabits):
    link = cost.Link(latency, cost.bytes_per_second(megabits / 1000))
    def one(size):
        return min(cost.cost(name, ranks, size).seconds(link)
                   for name in ("ring", "recursive doubling"))
    return sum(map(one, buckets))
""",
    },
    "14.speed_up": {
        "two factors": """
from math import ceil
def speed_up(one, many, sample_seconds, fixed_seconds, sync, cores):
    def step(run):
        return ceil(run.ranks / cores) * (run.batch * sample_seconds + fixed_seconds)
    return one.steps / many.steps * step(one) / (step(many) + sync)
""",
        "in whole microseconds": """
from fractions import Fraction
def speed_up(one, many, sample_seconds, fixed_seconds, sync, cores):
    x, f, s = (Fraction(round(1e6 * t)) for t in (sample_seconds, fixed_seconds, sync))
    turns = (many.ranks + cores - 1) // cores
    many_seconds = many.steps * (turns * (f + many.batch * x) + s)
    return Fraction(one.steps) * (f + one.batch * x) / many_seconds
""",
    },
    "14.time_to_target": {
        "by NumPy": """
import numpy as np
def time_to_target(looks, target):
    seconds, accuracy = np.array(looks).T
    reached = accuracy >= target
    return seconds[reached.argmax()] if reached.any() else None
""",
        "the least of the times": """
def time_to_target(looks, target):
    return min((s for s, a in looks if not a < target), default=None)
""",
        "from the end": """
def time_to_target(looks, target):
    found = None
    while looks:
        seconds, accuracy = looks.pop()
        if accuracy >= target:
            found = seconds
    return found
""",
    },
    "14.bytes_on_links": {
        "rank by rank": """
def bytes_on_links(strategy, steps, ranks, model_bytes, every):
    total = 0
    if strategy != "server":
        for step in range(1, steps + 1):
            if strategy == "synchronous" or step % every == 0:
                total += sum(2 * (ranks - 1) * model_bytes / ranks for _ in range(ranks))
        return total
    for step in range(steps):
        total += model_bytes  # parameters
        total += model_bytes  # gradient
    return total
""",
        "by a table": """
def bytes_on_links(strategy, steps, ranks, model_bytes, every):
    often = {"synchronous": steps, "local SGD": steps // every, "server": steps}
    models = {"synchronous": ranks - 1, "local SGD": ranks - 1, "server": 1}
    return 2 * often[strategy] * models[strategy] * model_bytes
""",
    },
}
