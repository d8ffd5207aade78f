"""Nodes, and tens of thousands of ranks, by hand and at the limits."""

from __future__ import annotations

import math

import pytest
from rank_by_rank.lesson_06 import extrapolation
from rank_by_rank.lesson_06.extrapolation import Hierarchy, availability

from course_lib.teaching.cost import Link, bytes_per_second, cost


def test_two_levels_equal_hand_calculation_and_limits():
    inside, between = Link(1.0, 8.0), Link(4.0, 2.0)
    cluster = Hierarchy(2, 2, inside, between)
    # Inside 2 * 1 + 16/8; between, half the bytes on half the card: 2 * 4 + 8/1.
    assert cluster.two_levels(16) == 2 + 2 + 8 + 8
    # One ring of four: six steps of four bytes through the slower link.
    assert cluster.flat_ring(16) == 6 * (4 + 4 / 2)
    one_node, one_each = Hierarchy(1, 4, inside, between), Hierarchy(4, 1, inside, between)
    for way in ("flat_ring", "two_levels"):
        assert getattr(one_node, way)(16) == cost("ring", 4, 16).seconds(inside)
        assert getattr(one_each, way)(16) == cost("ring", 4, 16).seconds(between)


def test_two_levels_beat_a_flat_ring_when_latency_counts():
    cluster = Hierarchy(128, 8, Link(3e-6, 100e9), Link(10e-6, 6.25e9))
    assert cluster.two_levels(1e5) < cluster.flat_ring(1e5)
    assert cluster.two_levels(1e5, "Rabenseifner") < cluster.two_levels(1e5)
    # Long buffers: the card carries nearly 2n either way.
    assert cluster.flat_ring(1e11) == pytest.approx(2e11 / 6.25e9, rel=0.01)


JOB = extrapolation.Job(
    batch=32,
    comp_seconds=0.192,
    gradient_bytes=100e6,
    inside=Link(5e-6, 40e9),
    between=Link(10e-6, bytes_per_second(50)),
)


def test_extrapolation_equals_hand_calculation():
    far = extrapolation.extrapolate(JOB, 10_000)
    assert far.ring_latency_seconds == pytest.approx(2 * 9_999 * 10e-6)
    assert far.global_batch == 320_000
    assert far.sample_efficiency == pytest.approx(1 / 17)
    # Llama 3: 16,384 GPUs, 419 interruptions in 54 days, one each 3.1 hours.
    assert extrapolation.extrapolate(JOB, 16_384).failures_per_hour == pytest.approx(
        419 / (54 * 24)
    )
    # M = 3600/0.1971 s, interval = sqrt(20 M): lost 2 * sqrt(C / (2 M)) + 300 / M.
    mean = 3600 / (10_000 * extrapolation.FAILURES_PER_RANK_HOUR)
    lost = 2 * math.sqrt(10 / (2 * mean)) + 300 / mean
    assert far.availability == pytest.approx(1 - lost)


def test_more_ranks_are_never_more_efficient():
    points = [extrapolation.extrapolate(JOB, r) for r in (8, 256, 10_000, 100_000)]
    for name in ("useful", "sample_efficiency", "availability", "ring_efficiency"):
        values = [getattr(p, name) for p in points]
        assert values == sorted(values, reverse=True)
    assert points[-1].two_level_seconds < points[-1].ring_seconds


def test_limits_are_where_efficiency_halves():
    found = dict(extrapolation.limits(JOB))
    ring = found["latency of the flat ring"]
    assert 2 * (ring - 1) * 10e-6 >= 0.192 > 2 * (ring - 9) * 10e-6
    batch = found["batch beyond the critical batch"]
    assert batch * 32 >= 20_000 > (batch - 8) * 32
    failures = found["failures"]
    assert availability(JOB, failures) <= 0.5 < availability(JOB, failures - 8)
    assert list(found.values()) == sorted(found.values())
    assert next(iter(found)) == "batch beyond the critical batch"


def test_batch_is_the_only_limit_without_failures_and_bytes():
    calm = extrapolation.Job(32, 1.0, 0.0, Link(0, 1e9), Link(0, 1e9), failures_per_rank_hour=0)
    assert [what for what, _ in extrapolation.limits(calm)] == ["batch beyond the critical batch"]
    far = extrapolation.extrapolate(calm, 800)
    assert far.ring_efficiency == far.availability == 1
    assert "100,000" in extrapolation.extrapolated_table(JOB)


def test_extrapolate_rejects_partly_filled_nodes():
    with pytest.raises(ValueError, match="do not fill nodes"):
        extrapolation.extrapolate(JOB, 100)


def test_published_failure_rate():
    assert pytest.approx(1.97e-5, rel=0.01) == extrapolation.FAILURES_PER_RANK_HOUR
