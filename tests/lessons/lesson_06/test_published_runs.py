"""Published runs: sources, bounds, errors and gains as the module states them."""

from __future__ import annotations

import numpy as np
import pytest
from rank_by_rank.lesson_06 import published_runs
from rank_by_rank.lesson_06.published_runs import (
    GAINS,
    efficiency_bounds,
    gains_table,
    implied_sync_over_backward,
    predicted_gain,
)
from rank_by_rank.lesson_06.scaling import largest_overlap_gain


def rows():
    return {row.run.name: row for row in published_runs.reproduce()}


def test_published_values_lie_between_no_and_perfect_overlap():
    assert all(row.within_bounds for row in published_runs.reproduce())
    for row in published_runs.reproduce():
        assert row.low <= row.predicted <= row.high <= 1


def test_only_runs_on_sixteen_gpus_are_fitted():
    assert {row.run.ranks for row in published_runs.reproduce() if row.fitted} == {16}
    held_out = [run for run in published_runs.RUNS if not run.calibrates]
    with pytest.raises(ValueError, match="no run is marked"):
        published_runs.exposed_fraction(held_out)


def test_errors_are_as_stated():
    # The module promises: too good, by 2 to 12 points, on each row that was not fitted.
    errors = [100 * row.error for row in published_runs.reproduce() if not row.fitted]
    assert len(errors) == 8
    assert 2 < min(errors) < max(errors) < 12
    assert np.mean(errors) < 6
    assert all(abs(100 * row.error) < 4 for row in published_runs.reproduce() if row.fitted)


def test_order_of_the_models_is_the_published_one():
    at512 = {name: row.predicted for name, row in rows().items() if "512" in name}
    vgg = at512.pop("Horovod, VGG-16, 512 GPUs")
    assert all(vgg < other - 0.1 for other in at512.values())
    vgg_by_ranks = [rows()[f"Horovod, VGG-16, {r} GPUs"].predicted for r in (16, 128, 512)]
    assert vgg_by_ranks == sorted(vgg_by_ranks, reverse=True)


def test_sync_of_two_runs_equals_hand_calculation():
    by_name = {run.name: run for run in published_runs.RUNS}
    goyal = by_name["Goyal et al., ResNet-50, 256 GPUs"]
    # 32 servers: 10 messages of 10 us, 2 * 31/32 * 100 MB at 6.25 GB/s; step 960 s / 5000.
    assert published_runs.sync_seconds(goyal) == pytest.approx(
        100e-6 + 2 * 31 / 32 * 100e6 / 6.25e9
    )
    assert goyal.comp_seconds == pytest.approx(0.192)
    vgg = by_name["Horovod, VGG-16, 512 GPUs"]
    assert vgg.calls == 9
    expected = 9 * 1022 * 10e-6 + 2 * 511 / 512 * 552e6 / 3.125e9
    assert published_runs.sync_seconds(vgg) == pytest.approx(expected)


def test_every_run_has_a_source_and_the_tables_show_all():
    assert {run.source for run in published_runs.RUNS} == set(published_runs.SOURCES)
    table = published_runs.reproduced_table()
    assert all(run.name in table for run in published_runs.RUNS)
    assert all(text in table for text in published_runs.SOURCES.values())
    assert all(a.what in published_runs.assumptions_table() for a in published_runs.ASSUMPTIONS)


@pytest.mark.parametrize("gain", [0.38, 0.352, 0.268, 0.215])
def test_gains_of_the_ddp_paper_are_below_the_bound(gain):
    for ratio in implied_sync_over_backward(gain):
        assert largest_overlap_gain(0.5, 1, ratio) == pytest.approx(gain)


def test_no_overlap_saves_more_than_two_fifths():
    assert implied_sync_over_backward(0.41) is None


@pytest.mark.parametrize("gain", GAINS, ids=lambda gain: f"{gain.model} {gain.backend}")
def test_both_implied_ratios_give_the_published_gain(gain):
    for ratio in implied_sync_over_backward(gain.published):
        assert largest_overlap_gain(0.5, 1.0, ratio) == pytest.approx(gain.published)


def test_predicted_gain_equals_hand_calculation():
    """102.4 MB round a ring of 32 at 12.5 GB/s: 15.87 ms and 62 latencies, beside 88.1 ms."""
    sync = 2 * 31 / 32 * 102.4e6 / 12.5e9 + 62 * 10e-6
    assert predicted_gain(32) == pytest.approx(sync / (sync + 32 / 363.1))
    assert predicted_gain(64) < predicted_gain(32)


def test_the_table_states_the_error():
    lines, claim = (table.splitlines() for table in gains_table().split("\n\n"))
    assert len(lines) == 2 + len(GAINS)
    assert "| 38.0% | 0.92 or 1.13 | 15.8% / 8.6% | -22.2 / -29.4 |" in lines[2]
    assert lines[3].endswith("| too few numbers published | - |")
    assert (
        "near-linear; no number | without overlap 80% / 89%, perfect overlap 100% / 100%"
        in (claim[2])
    )


def test_bounds_on_256_gpus_equal_hand_calculation():
    """102.4 MB round a ring of 256 at 12.5 GB/s, 510 latencies, beside 32 images' 88.1 ms."""
    sync, comp = 2 * 255 / 256 * 102.4e6 / 12.5e9 + 510 * 10e-6, 32 / 363.1
    assert efficiency_bounds(32) == pytest.approx((comp / (comp + sync), 1.0))
    # So many ranks that even a perfect overlap hides no more than backward's two thirds.
    low, high = efficiency_bounds(32, ranks=10_000)
    assert 1 / high == pytest.approx(1 / low - 2 / 3)
    assert high < 1
