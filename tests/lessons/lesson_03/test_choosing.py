"""The crossover of two all-reduces, and which is the cheapest on either side of it."""

from __future__ import annotations

import pytest
from rank_by_rank.lesson_03.choosing import cheapest, crossover_bytes

from course_lib.teaching.cost import Link, cost


def test_both_algorithms_take_equal_time_at_the_crossover():
    link = Link(50e-6, 1e9)
    size = crossover_bytes("recursive doubling", "Rabenseifner", 16, link)
    times = [cost(n, 16, size).seconds(link) for n in ("recursive doubling", "Rabenseifner")]
    assert times[0] == pytest.approx(times[1], rel=1e-12)
    # By hand: 4 alpha + 4 n beta = 8 alpha + 15/8 n beta.
    assert size == pytest.approx(4 * 50e-6 / (17 / 8 * 1e-9), rel=1e-12)
    assert cheapest(16, size / 2, link) == "recursive doubling"
    assert cheapest(16, size * 2, link) == "Rabenseifner"
    assert crossover_bytes("ring", "ring", 16, link) is None
    assert crossover_bytes("naive", "tree", 16, link) is None
