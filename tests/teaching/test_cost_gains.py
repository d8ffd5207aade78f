"""DDP's published overlap gains: implied ratios are right, and the prediction's miss is stated."""

from __future__ import annotations

import pytest

from course_lib.teaching.cost import largest_overlap_gain
from course_lib.teaching.cost.gains import (
    GAINS,
    efficiency_bounds,
    gains_table,
    predicted_gain,
)
from course_lib.teaching.cost.published import implied_sync_over_backward


@pytest.mark.parametrize("gain", GAINS, ids=lambda gain: f"{gain.model} {gain.backend}")
def test_both_implied_ratios_give_the_published_gain(gain):
    for ratio in implied_sync_over_backward(gain.published):
        assert largest_overlap_gain(0.5, 1.0, ratio) == pytest.approx(gain.published)


def test_the_prediction_by_hand():
    """102.4 MB round a ring of 32 at 12.5 GB/s: 15.87 ms and 62 latencies, beside 89.6 ms."""
    sync = 2 * 31 / 32 * 102.4e6 / 12.5e9 + 62 * 10e-6
    assert predicted_gain(32) == pytest.approx(sync / (sync + 32 * 8 / 2857.9))
    assert predicted_gain(64) < predicted_gain(32)


def test_the_table_states_the_error():
    lines, claim = (table.splitlines() for table in gains_table().split("\n\n"))
    assert len(lines) == 2 + len(GAINS)
    assert "| 38.0% | 0.92 or 1.13 | 15.5% / 8.4% | -22.5 / -29.6 |" in lines[2]
    assert lines[3].endswith("| no numbers published | - |")
    assert (
        "near-linear; no number | without overlap 81% / 89%, perfect overlap 100% / 100%"
        in (claim[2])
    )


def test_the_bounds_of_256_gpus_by_hand():
    """102.4 MB round a ring of 256 at 12.5 GB/s, 510 latencies, beside 32 images' 89.6 ms."""
    sync, comp = 2 * 255 / 256 * 102.4e6 / 12.5e9 + 510 * 10e-6, 32 * 8 / 2857.9
    assert efficiency_bounds(32) == pytest.approx((comp / (comp + sync), 1.0))
    # So many ranks that even a perfect overlap hides no more than backward's two thirds.
    low, high = efficiency_bounds(32, ranks=10_000)
    assert 1 / high == pytest.approx(1 / low - 2 / 3)
    assert high < 1
