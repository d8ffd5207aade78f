"""The formulas agree with what the emulated link does, and by hand."""

from __future__ import annotations

import pytest
from rank_by_rank.lesson_14 import costs
from rank_by_rank.lesson_14.costs import Run
from torch_mpi4py.emulation.collective_costs import collective_seconds

from course_lib.teaching import cost


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("size", [40, 38_440, 340_008, 10_000_000])
def test_sync_seconds_equal_the_emulated_link(ranks: int, size: int) -> None:
    for latency, megabits in ((0.005, 100), (0.03, 25), (0.001, 1000)):
        link = collective_seconds("all_reduce", ranks, size, latency, 8 / (megabits * 1e6))
        assert costs.sync_seconds([size], ranks, latency, megabits) == pytest.approx(link)
        two = costs.sync_seconds([size, size], ranks, latency, megabits)
        assert two == pytest.approx(2 * link)


def test_numbers_in_the_lesson() -> None:
    assert costs.sync_seconds([38_440], 4, 0.005, 100) == pytest.approx(0.01615, rel=1e-3)
    assert costs.sync_seconds([307_240], 4, 0.020, 50) == pytest.approx(0.1383, rel=1e-3)


@pytest.mark.parametrize(
    ("latency", "megabits", "size"),
    [(0.005, 100, 38_440), (0.020, 50, 307_240), (0.010, 50, 106_024)],
)
def test_a_third_algorithm_would_not_be_faster_for_these_models(latency, megabits, size) -> None:
    link = cost.Link(latency, megabits * 1e6 / 8)
    times = {name: cost.cost(name, 4, size).seconds(link) for name in cost.ALGORITHMS}
    assert min(times.values()) == times["recursive doubling"]
    assert times["Rabenseifner"] < times["ring"]
    assert costs.sync_seconds([size], 4, latency, megabits) == pytest.approx(min(times.values()))
    pays_from = round(4 * latency * megabits * 1e6 / 8)  # bytes; 4 alpha / beta
    above, below = (cost.cost("Rabenseifner", 4, pays_from + d).seconds(link) for d in (1, -1))
    assert above < costs.sync_seconds([pays_from + 1], 4, latency, megabits)
    assert below > costs.sync_seconds([pays_from - 1], 4, latency, megabits)


def test_speed_up_equals_hand_calculation() -> None:
    one, many = Run(1, 16, 176), Run(4, 16, 44)
    assert costs.speed_up(one, many, 0.0015, 0.004, 0.016, 4) == pytest.approx(4 * 28 / 44)
    assert costs.speed_up(one, many, 0.0015, 0.004, 0.016, 2) == pytest.approx(4 * 28 / 72)
    assert costs.speed_up(one, one, 0.0015, 0.004, 0.0, 1) == 1


def test_bytes_equal_hand_calculation() -> None:
    assert costs.bytes_on_links("synchronous", 10, 4, 100) == 6_000
    assert costs.bytes_on_links("local SGD", 10, 4, 100, every=4) == 1_200
    assert costs.bytes_on_links("server", 10, 4, 100) == 2_000


def test_time_to_a_target() -> None:
    assert costs.time_to_target([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8)], 0.9) == 2.0
    assert costs.time_to_target([(1.0, 0.5)], 0.9) is None
