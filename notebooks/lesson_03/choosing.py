"""Which all-reduce is cheapest in the model of :mod:`course_lib.teaching.cost`, and from what size.

Solves the exercise on the crossover, and makes the table near the end of the lesson.
"""

from __future__ import annotations

from course_lib.teaching.cost import ALGORITHMS, Link, cost

__all__ = ["cheapest", "crossover_bytes"]


def cheapest(ranks: int, size_bytes: float, link: Link) -> str:
    """Return the name of the algorithm with the shortest predicted time; of equals, the first."""
    return min(ALGORITHMS, key=lambda name: cost(name, ranks, size_bytes).seconds(link))


def crossover_bytes(first: str, second: str, ranks: int, link: Link) -> float | None:
    """Return the bytes n at which two algorithms take equally long, None if they never do.

    Both times are straight lines in n: a_1 alpha + n b_1 = a_2 alpha + n b_2.
    """
    start = [cost(name, ranks, 0).seconds(link) for name in (first, second)]
    slope = [
        cost(name, ranks, 1).seconds(Link(0.0, link.bandwidth, link.reduce_rate))
        for name in (first, second)
    ]
    if slope[0] == slope[1]:
        return None
    size = (start[0] - start[1]) / (slope[1] - slope[0])
    return size if size > 0 else None
