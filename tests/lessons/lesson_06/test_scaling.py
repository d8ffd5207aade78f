"""Epochs, laws, overlap and stragglers, by hand and at the limits."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from rank_by_rank.lesson_06 import scaling
from rank_by_rank.lesson_06.scaling import harmonic

from course_lib.teaching import cost


def test_models_import_neither_torch_nor_mpi():
    code = (
        "import sys\n"
        "from rank_by_rank.lesson_06 import extrapolation, published_runs, scaling\n"
        "sys.exit(bool({'torch', 'mpi4py', 'matplotlib', 'simpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=200).returncode == 0


# --- epochs ---------------------------------------------------------------------------------


def test_epoch_equals_hand_calculation():
    # 1000 samples, batch 10: 100 steps of 2 s. Four ranks: 25 steps of 2 + 1 s.
    assert scaling.epoch_seconds(1000, 10, 2.0) == 200
    assert scaling.epoch_seconds(1000, 10, 2.0, 1.0, ranks=4) == 75
    assert scaling.epoch_seconds(1000, 10, 2.0, 1.0, ranks=1) == 200
    assert scaling.speed_up(4, 2.0, 1.0) == pytest.approx(200 / 75)
    assert scaling.efficiency(4, 2.0, 1.0) == pytest.approx(2 / 3)


@pytest.mark.parametrize("ranks", [2, 3, 4, 10])
def test_pays_exactly_if_the_epoch_is_shorter(ranks):
    for ratio in (0.0, 0.5, ranks - 1.001, ranks - 0.999, 2.0 * ranks):
        alone = scaling.epoch_seconds(6000, 10, 1.0)
        together = scaling.epoch_seconds(6000, 10, 1.0, ratio, ranks)
        assert scaling.pays(ranks, 1.0, ratio) == (together < alone)
    # On the boundary both take as long, and it does not pay.
    assert not scaling.pays(ranks, 1.0, ranks - 1.0)
    assert not scaling.pays(1, 1.0, 0.0)


def test_fewest_ranks_that_pay():
    assert scaling.fewest_ranks_that_pay(1.0, lambda r: 2.5) == 4
    assert scaling.fewest_ranks_that_pay(1.0, lambda r: 0.5) == 2
    assert scaling.fewest_ranks_that_pay(1.0, lambda r: 3.0 * r, most=50) is None


def test_strong_and_weak_scaling_equal_hand_calculation():
    def comp(batch):
        return 1.0 + batch / 10

    def sync(ranks):
        return 0.5

    weak = scaling.weak_scaling([1, 2, 4], 30, comp, sync)
    assert [p.step_seconds for p in weak] == [4.0, 4.5, 4.5]
    assert [p.samples_per_second for p in weak] == [7.5, 60 / 4.5, 120 / 4.5]
    assert weak[2].efficiency == pytest.approx(4 / 4.5)
    strong = scaling.strong_scaling([1, 2, 4], 30, comp, sync)
    assert [p.step_seconds for p in strong] == [4.0, 3.0, 2.25]
    assert strong[2].speed_up == pytest.approx(4 / 2.25)
    assert weak[0].speed_up == strong[0].speed_up == 1
    # The fixed second of each step is Amdahl's serial part: 1 s of 4 s.
    free = scaling.strong_scaling([8], 30, comp, lambda ranks: 0.0)[0]
    assert free.speed_up == pytest.approx(scaling.amdahl(8, 0.25))


def test_weak_scaling_is_never_worse_than_strong():
    link = cost.Link(20e-6, 1e9)
    ranks = [1, 2, 4, 8, 16]
    curves = [
        curve(ranks, 64, lambda b: 1e-3 * b, lambda r: cost.cost("ring", r, 1e7).seconds(link))
        for curve in (scaling.weak_scaling, scaling.strong_scaling)
    ]
    for weak, strong in zip(*curves, strict=True):
        assert weak.efficiency >= strong.efficiency


# --- laws -----------------------------------------------------------------------------------


def test_amdahl_and_gustafson():
    assert scaling.amdahl(4, 0.5) == 1.6
    assert scaling.amdahl(10, 0.0) == scaling.gustafson(10, 0.0) == 10
    assert scaling.amdahl(10, 1.0) == scaling.gustafson(10, 1.0) == 1
    assert scaling.amdahl_limit(0.05) == pytest.approx(20)
    assert scaling.amdahl_limit(0.0) == math.inf
    assert scaling.amdahl(10**9, 0.05) == pytest.approx(20, rel=1e-6)
    assert scaling.gustafson(4, 0.25) == 3.25


@pytest.mark.parametrize("ranks", [2, 7, 64])
@pytest.mark.parametrize("serial", [0.0, 0.1, 1.0])
def test_karp_flatt_inverts_amdahl(ranks, serial):
    assert scaling.serial_fraction(ranks, scaling.amdahl(ranks, serial)) == pytest.approx(serial)


# --- overlap --------------------------------------------------------------------------------


def test_buckets_equal_hand_calculation():
    # Two layers of 3 s and 4 bytes; an all-reduce takes 1 s and 1 s a byte.
    result = scaling.backward_with_buckets([3, 3], [4, 4], 4, lambda n: 1 + n)
    assert [(b.ready, b.start, b.end) for b in result.buckets] == [(3, 3, 8), (6, 8, 13)]
    assert (result.compute, result.seconds, result.exposed) == (6, 13, 7)
    assert result.communication == 10
    one = scaling.backward_with_buckets([3, 3], [4, 4], math.inf, lambda n: 1 + n)
    assert [b.size for b in one.buckets] == [8]
    assert (one.seconds, one.exposed) == (15, 9)


def test_layers_without_gradients_are_in_no_bucket():
    result = scaling.backward_with_buckets([1, 1, 1], [0, 5, 0], 0, lambda n: n)
    assert [(b.size, b.start) for b in result.buckets] == [(5, 2)]
    assert scaling.backward_with_buckets([1], [0], 0, lambda n: n).exposed == 0


def test_exposed_communication_is_within_bounds():
    seconds, sizes = [6e-3] * 10, [1e6] * 10
    link = cost.Link(0.0, 200e6)
    for bucket in (0, 1e6, 2e6, 4e6, math.inf):
        result = scaling.backward_with_buckets(seconds, sizes, bucket, link.seconds)
        last = result.buckets[-1]
        assert last.end - last.start <= result.exposed + 1e-12
        assert result.exposed <= result.communication + 1e-12
        assert sum(b.size for b in result.buckets) == sum(sizes)
    none = scaling.backward_with_buckets(seconds, sizes, math.inf, link.seconds)
    assert none.seconds == pytest.approx(0.110)
    assert scaling.backward_with_buckets(
        seconds, sizes, 1e6, link.seconds
    ).seconds == pytest.approx(0.065)


def test_overlap_saves_at_most_two_fifths():
    assert scaling.largest_overlap_gain(1, 2, 2) == pytest.approx(0.4)
    gains = [scaling.largest_overlap_gain(1, 2, c) for c in np.linspace(0, 20, 201)]
    assert max(gains) <= 0.4 + 1e-12


# --- stragglers -----------------------------------------------------------------------------


def test_exponential_maximum():
    assert scaling.expected_slowest_exponential(1, 5.0, 2.0) == 7
    assert scaling.expected_slowest_exponential(3, 0.0, 6.0) == pytest.approx(11)
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
    assert scaling.expected_slowest_normal(ranks, 10.0, 1.0) - 10 == pytest.approx(value, abs=1e-7)


def test_normal_maximum_is_linear_and_grows_slowly():
    assert scaling.expected_slowest_normal(8, 2, 3) == pytest.approx(
        2 + 3 * scaling.expected_slowest_normal(8, 0, 1)
    )
    values = [scaling.expected_slowest_normal(r, 0, 1) for r in (1, 2, 8, 64, 1024, 10**5)]
    assert values == sorted(values)
    assert values[-1] < math.sqrt(2 * math.log(10**5))


# --- what makes no sense --------------------------------------------------------------------


def test_error_names_a_bad_argument():
    with pytest.raises(ValueError, match="comp_seconds"):
        scaling.pays(2, 0.0, 1.0)
    with pytest.raises(ValueError, match="sync_seconds"):
        scaling.epoch_seconds(10, 1, 1.0, -1.0, ranks=2)
    with pytest.raises(ValueError, match="serial fraction"):
        scaling.amdahl(2, 1.5)
    with pytest.raises(ValueError, match="one time and one size"):
        scaling.backward_with_buckets([1], [1, 2], 0, float)


@pytest.mark.parametrize("curve", [scaling.strong_scaling, scaling.weak_scaling])
@pytest.mark.parametrize(
    ("ranks", "batch", "says"),
    [
        (0, 8, "ranks must be a whole number of at least 1, not 0"),
        (math.nan, 8, "ranks must be a whole number"),
        (2, 0, "batch must be a finite number above 0, not 0"),
        (2, -8, "batch must be a finite number above 0, not -8"),
    ],
)
def test_scaling_rejects_bad_ranks_and_batches(curve, ranks, batch, says):
    with pytest.raises(ValueError, match=says):
        curve([ranks], batch, lambda samples: 1.0, lambda r: 0.1)


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
def test_gain_rejects_impossible_times(times, says):
    with pytest.raises(ValueError, match=f"^{says} must be a finite number"):
        scaling.largest_overlap_gain(*times)
