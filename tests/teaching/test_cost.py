"""Epochs, laws, overlap, stragglers, published runs and the far end, by hand and at the limits."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from course_lib.teaching import cost
from course_lib.teaching.cost import published, runs
from course_lib.teaching.cost.far import availability
from course_lib.teaching.cost.stragglers import harmonic


def test_it_needs_neither_torch_nor_mpi():
    code = (
        "import sys, course_lib.teaching.cost\n"
        "sys.exit(bool({'torch', 'mpi4py', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=200).returncode == 0


def test_every_name_it_offers_is_there():
    assert all(hasattr(cost, name) for name in cost.__all__)


# --- epochs ---------------------------------------------------------------------------------


def test_epoch_by_hand():
    # 1000 samples, batch 10: 100 steps of 2 s. Four ranks: 25 steps of 2 + 1 s.
    assert cost.epoch_seconds(1000, 10, 2.0) == 200
    assert cost.epoch_seconds(1000, 10, 2.0, 1.0, ranks=4) == 75
    assert cost.epoch_seconds(1000, 10, 2.0, 1.0, ranks=1) == 200
    assert cost.speed_up(4, 2.0, 1.0) == pytest.approx(200 / 75)
    assert cost.efficiency(4, 2.0, 1.0) == pytest.approx(2 / 3)


@pytest.mark.parametrize("ranks", [2, 3, 4, 10])
def test_it_pays_exactly_when_the_epoch_is_shorter(ranks):
    for ratio in (0.0, 0.5, ranks - 1.001, ranks - 0.999, 2.0 * ranks):
        alone = cost.epoch_seconds(6000, 10, 1.0)
        together = cost.epoch_seconds(6000, 10, 1.0, ratio, ranks)
        assert cost.pays(ranks, 1.0, ratio) == (together < alone)
    # On the boundary both take as long, and it does not pay.
    assert not cost.pays(ranks, 1.0, ranks - 1.0)
    assert not cost.pays(1, 1.0, 0.0)


def test_fewest_ranks_that_pay():
    assert cost.fewest_ranks_that_pay(1.0, lambda r: 2.5) == 4
    assert cost.fewest_ranks_that_pay(1.0, lambda r: 0.5) == 2
    assert cost.fewest_ranks_that_pay(1.0, lambda r: 3.0 * r, most=50) is None


def test_strong_and_weak_scaling_by_hand():
    def comp(batch):
        return 1.0 + batch / 10

    def sync(ranks):
        return 0.5

    weak = cost.weak_scaling([1, 2, 4], 30, comp, sync)
    assert [p.step_seconds for p in weak] == [4.0, 4.5, 4.5]
    assert [p.samples_per_second for p in weak] == [7.5, 60 / 4.5, 120 / 4.5]
    assert weak[2].efficiency == pytest.approx(4 / 4.5)
    strong = cost.strong_scaling([1, 2, 4], 30, comp, sync)
    assert [p.step_seconds for p in strong] == [4.0, 3.0, 2.25]
    assert strong[2].speed_up == pytest.approx(4 / 2.25)
    assert weak[0].speed_up == strong[0].speed_up == 1
    # The fixed second of each step is Amdahl's serial part: 1 s of 4 s.
    free = cost.strong_scaling([8], 30, comp, lambda ranks: 0.0)[0]
    assert free.speed_up == pytest.approx(cost.amdahl(8, 0.25))


def test_weak_scaling_is_never_worse_than_strong():
    link = cost.Link(20e-6, 1e9)
    ranks = [1, 2, 4, 8, 16]
    curves = [
        scaling(ranks, 64, lambda b: 1e-3 * b, lambda r: cost.cost("ring", r, 1e7).seconds(link))
        for scaling in (cost.weak_scaling, cost.strong_scaling)
    ]
    for weak, strong in zip(*curves, strict=True):
        assert weak.efficiency >= strong.efficiency


# --- laws -----------------------------------------------------------------------------------


def test_amdahl_and_gustafson():
    assert cost.amdahl(4, 0.5) == 1.6
    assert cost.amdahl(10, 0.0) == cost.gustafson(10, 0.0) == 10
    assert cost.amdahl(10, 1.0) == cost.gustafson(10, 1.0) == 1
    assert cost.amdahl_limit(0.05) == pytest.approx(20)
    assert cost.amdahl_limit(0.0) == math.inf
    assert cost.amdahl(10**9, 0.05) == pytest.approx(20, rel=1e-6)
    assert cost.gustafson(4, 0.25) == 3.25


@pytest.mark.parametrize("ranks", [2, 7, 64])
@pytest.mark.parametrize("serial", [0.0, 0.1, 1.0])
def test_karp_flatt_inverts_amdahl(ranks, serial):
    assert cost.serial_fraction(ranks, cost.amdahl(ranks, serial)) == pytest.approx(serial)


# --- overlap --------------------------------------------------------------------------------


def test_buckets_by_hand():
    # Two layers of 3 s and 4 bytes; an all-reduce takes 1 s and 1 s a byte.
    result = cost.backward_with_buckets([3, 3], [4, 4], 4, lambda n: 1 + n)
    assert [(b.ready, b.start, b.end) for b in result.buckets] == [(3, 3, 8), (6, 8, 13)]
    assert (result.compute, result.seconds, result.exposed) == (6, 13, 7)
    assert result.communication == 10
    one = cost.backward_with_buckets([3, 3], [4, 4], math.inf, lambda n: 1 + n)
    assert [b.size for b in one.buckets] == [8]
    assert (one.seconds, one.exposed) == (15, 9)


def test_layers_without_gradients_travel_in_no_bucket():
    result = cost.backward_with_buckets([1, 1, 1], [0, 5, 0], 0, lambda n: n)
    assert [(b.size, b.start) for b in result.buckets] == [(5, 2)]
    assert cost.backward_with_buckets([1], [0], 0, lambda n: n).exposed == 0


def test_exposed_communication_has_its_bounds():
    seconds, sizes = [6e-3] * 10, [1e6] * 10
    link = cost.Link(0.0, 200e6)
    for bucket in (0, 1e6, 2e6, 4e6, math.inf):
        result = cost.backward_with_buckets(seconds, sizes, bucket, link.seconds)
        last = result.buckets[-1]
        assert last.end - last.start <= result.exposed + 1e-12
        assert result.exposed <= result.communication + 1e-12
        assert sum(b.size for b in result.buckets) == sum(sizes)
    none = cost.backward_with_buckets(seconds, sizes, math.inf, link.seconds)
    assert none.seconds == pytest.approx(0.110)
    assert cost.backward_with_buckets(seconds, sizes, 1e6, link.seconds).seconds == pytest.approx(
        0.065
    )


def test_the_best_bucket_is_neither_tiny_nor_huge_when_latency_counts():
    link = cost.Link(3e-3, 200e6)
    best = cost.best_bucket([2e-3] * 40, [2.5e5] * 40, [2.5e5, 1e6, 2e6, 4e6, 1e7], link.seconds)
    assert 2.5e5 < best < 1e7


def test_overlap_saves_at_most_two_fifths():
    assert cost.largest_overlap_gain(1, 2, 2) == pytest.approx(0.4)
    gains = [cost.largest_overlap_gain(1, 2, c) for c in np.linspace(0, 20, 201)]
    assert max(gains) <= 0.4 + 1e-12


# --- stragglers -----------------------------------------------------------------------------


def test_exponential_maximum():
    assert cost.expected_slowest_exponential(1, 5.0, 2.0) == 7
    assert cost.expected_slowest_exponential(3, 0.0, 6.0) == pytest.approx(11)
    assert harmonic(100_001) == pytest.approx(harmonic(100_000) + 1 / 100_001, rel=1e-14)


@pytest.mark.parametrize(
    ("ranks", "value"),
    # Closed forms up to five (David and Nagaraja 2003, section 3.2), then tabulated values.
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        (10, 1.5387527),
        (100, 2.5075936),
    ],
)
def test_normal_maximum(ranks, value):
    assert cost.expected_slowest_normal(ranks, 10.0, 1.0) - 10 == pytest.approx(value, abs=1e-7)


def test_normal_maximum_is_linear_and_grows_slowly():
    assert cost.expected_slowest_normal(8, 2, 3) == pytest.approx(
        2 + 3 * cost.expected_slowest_normal(8, 0, 1)
    )
    values = [cost.expected_slowest_normal(r, 0, 1) for r in (1, 2, 8, 64, 1024, 10**5)]
    assert values == sorted(values)
    assert values[-1] < math.sqrt(2 * math.log(10**5))


def test_maximum_of_measured_times():
    # Two draws of 1, 2, 3: five of nine pairs have the maximum 3, three 2, one 1.
    assert cost.expected_slowest_of([3, 1, 2], 2) == pytest.approx((5 * 3 + 3 * 2 + 1) / 9)
    assert cost.expected_slowest_of([3, 1, 2], 1) == pytest.approx(2)
    assert cost.expected_slowest_of([3, 1, 2], 10**6) == pytest.approx(3)
    random = np.random.default_rng(4)
    samples = random.exponential(1.0, 200_000)
    assert cost.expected_slowest_of(samples, 16) == pytest.approx(harmonic(16), rel=0.02)
    assert cost.slowdown(3.0, 2.0) == 1.5


# --- published ------------------------------------------------------------------------------


def rows():
    return {row.run.name: row for row in cost.reproduce()}


def test_published_values_lie_between_no_and_perfect_overlap():
    assert all(row.within_bounds for row in cost.reproduce())
    for row in cost.reproduce():
        assert row.low <= row.predicted <= row.high <= 1


def test_only_the_runs_on_sixteen_gpus_are_fitted():
    assert {row.run.ranks for row in cost.reproduce() if row.fitted} == {16}
    held_out = [run for run in runs.RUNS if not run.calibrates]
    with pytest.raises(ValueError, match="no run is marked"):
        cost.exposed_fraction(held_out)


def test_errors_are_as_stated():
    # The module promises: too good, by 2 to 12 points, on each row that was not fitted.
    errors = [100 * row.error for row in cost.reproduce() if not row.fitted]
    assert len(errors) == 8
    assert 2 < min(errors) < max(errors) < 12
    assert np.mean(errors) < 6
    assert all(abs(100 * row.error) < 4 for row in cost.reproduce() if row.fitted)


def test_order_of_the_models_is_the_published_one():
    at512 = {name: row.predicted for name, row in rows().items() if "512" in name}
    vgg = at512.pop("Horovod, VGG-16, 512 GPUs")
    assert all(vgg < other - 0.1 for other in at512.values())
    vgg_by_ranks = [rows()[f"Horovod, VGG-16, {r} GPUs"].predicted for r in (16, 128, 512)]
    assert vgg_by_ranks == sorted(vgg_by_ranks, reverse=True)


def test_sync_of_two_runs_by_hand():
    by_name = {run.name: run for run in runs.RUNS}
    goyal = by_name["Goyal et al., ResNet-50, 256 GPUs"]
    # 32 servers: 10 messages of 10 us, 2 * 31/32 * 100 MB at 6.25 GB/s; step 960 s / 5000.
    assert published.sync_seconds(goyal) == pytest.approx(100e-6 + 2 * 31 / 32 * 100e6 / 6.25e9)
    assert goyal.comp_seconds == pytest.approx(0.192)
    vgg = by_name["Horovod, VGG-16, 512 GPUs"]
    assert vgg.calls == 9
    expected = 9 * 1022 * 10e-6 + 2 * 511 / 512 * 552e6 / 3.125e9
    assert published.sync_seconds(vgg) == pytest.approx(expected)


def test_every_run_has_a_source_and_the_tables_show_all():
    assert {run.source for run in runs.RUNS} == set(runs.SOURCES)
    table = cost.reproduced_table()
    assert all(run.name in table for run in runs.RUNS)
    assert all(text in table for text in runs.SOURCES.values())
    assert all(a.what in cost.assumptions_table() for a in runs.ASSUMPTIONS)


@pytest.mark.parametrize("gain", [0.38, 0.352, 0.268, 0.215])
def test_gains_of_the_ddp_paper_are_below_the_bound(gain):
    for ratio in cost.implied_sync_over_backward(gain):
        assert cost.largest_overlap_gain(0.5, 1, ratio) == pytest.approx(gain)


def test_no_overlap_saves_more_than_two_fifths():
    assert cost.implied_sync_over_backward(0.41) is None


# --- far ------------------------------------------------------------------------------------

JOB = cost.Job(
    batch=32,
    comp_seconds=0.192,
    gradient_bytes=100e6,
    inside=cost.Link(5e-6, 40e9),
    between=cost.Link(10e-6, cost.bytes_per_second(50)),
)


def test_far_by_hand():
    far = cost.extrapolate(JOB, 10_000)
    assert far.ring_latency_seconds == pytest.approx(2 * 9_999 * 10e-6)
    assert far.global_batch == 320_000
    assert far.sample_efficiency == pytest.approx(1 / 17)
    # Llama 3: 16,384 GPUs, 419 interruptions in 54 days, one each 3.1 hours.
    assert cost.extrapolate(JOB, 16_384).failures_per_hour == pytest.approx(419 / (54 * 24))
    # M = 3600/0.1971 s, interval = sqrt(20 M): lost 2 * sqrt(C / (2 M)) + 300 / M.
    mean = 3600 / (10_000 * cost.FAILURES_PER_RANK_HOUR)
    lost = 2 * math.sqrt(10 / (2 * mean)) + 300 / mean
    assert far.availability == pytest.approx(1 - lost)


def test_more_ranks_are_never_more_efficient():
    points = [cost.extrapolate(JOB, r) for r in (8, 256, 10_000, 100_000)]
    for name in ("useful", "sample_efficiency", "availability", "ring_efficiency"):
        values = [getattr(p, name) for p in points]
        assert values == sorted(values, reverse=True)
    assert points[-1].two_level_seconds < points[-1].ring_seconds


def test_limits_are_where_efficiency_halves():
    found = dict(cost.limits(JOB))
    ring = found["latency of the flat ring"]
    assert 2 * (ring - 1) * 10e-6 >= 0.192 > 2 * (ring - 9) * 10e-6
    batch = found["batch beyond the critical batch"]
    assert batch * 32 >= 20_000 > (batch - 8) * 32
    failures = found["failures"]
    assert availability(JOB, failures) <= 0.5 < availability(JOB, failures - 8)
    assert list(found.values()) == sorted(found.values())
    assert next(iter(found)) == "batch beyond the critical batch"


def test_no_failures_and_no_bytes_leave_the_batch():
    calm = cost.Job(32, 1.0, 0.0, cost.Link(0, 1e9), cost.Link(0, 1e9), failures_per_rank_hour=0)
    assert [what for what, _ in cost.limits(calm)] == ["batch beyond the critical batch"]
    far = cost.extrapolate(calm, 800)
    assert far.ring_efficiency == far.availability == 1
    assert "100,000" in cost.extrapolated_table(JOB)


def test_bad_jobs_and_numbers_are_named():
    with pytest.raises(ValueError, match="do not fill nodes"):
        cost.extrapolate(JOB, 100)
    with pytest.raises(ValueError, match="comp_seconds"):
        cost.pays(2, 0.0, 1.0)
    with pytest.raises(ValueError, match="sync_seconds"):
        cost.epoch_seconds(10, 1, 1.0, -1.0, ranks=2)
    with pytest.raises(ValueError, match="serial fraction"):
        cost.amdahl(2, 1.5)
    with pytest.raises(ValueError, match="one time and one size"):
        cost.backward_with_buckets([1], [1, 2], 0, float)


@pytest.mark.parametrize("scaling", [cost.strong_scaling, cost.weak_scaling])
@pytest.mark.parametrize(
    ("ranks", "batch", "says"),
    [
        (0, 8, "ranks must be a whole number of at least 1, not 0"),
        (math.nan, 8, "ranks must be a whole number"),
        (2, 0, "batch must be a finite number above 0, not 0"),
        (2, -8, "batch must be a finite number above 0, not -8"),
    ],
)
def test_scaling_of_what_makes_no_sense_is_refused(scaling, ranks, batch, says):
    with pytest.raises(ValueError, match=says):
        scaling([ranks], batch, lambda samples: 1.0, lambda r: 0.1)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ((-1, 5, 5), "forward"),
        ((1, -5, 5), "backward"),
        ((1, 5, -5), "communication"),
        ((1, math.inf, 5), "backward"),
        ((0, 0, 0), "forward [+] backward [+] communication"),
    ],
)
def test_gains_of_impossible_times_are_refused(times, says):
    with pytest.raises(ValueError, match=f"^{says} must be a finite number"):
        cost.largest_overlap_gain(*times)


def test_a_choice_among_nothing_is_refused():
    with pytest.raises(ValueError, match="candidates must hold at least one"):
        cost.best_bucket([1.0], [4.0], [], float)
    with pytest.raises(ValueError, match="among must name at least one of naive, tree"):
        cost.cheapest(4, 100, cost.Link(1e-6, 1e9), among=())
    with pytest.raises(ValueError, match="at least one measured time"):
        cost.expected_slowest_of([], 2)
    assert pytest.approx(1.97e-5, rel=0.01) == cost.FAILURES_PER_RANK_HOUR
