"""The fit: exact points give exact parameters, noisy ones the truth within their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rank_by_rank.lesson_03.fit import fit_linear, fit_link, student_t_quantile

from course_lib.teaching.cost import cost

ALPHA, BETA, GAMMA = 20e-6, 1 / 2e9, 1 / 5e9
SIZES = np.array([8.0 * 4**k for k in range(10)])


def test_exact_points_give_alpha_and_beta():
    fit = fit_link(SIZES, ALPHA + BETA * SIZES)
    assert fit["alpha"] == pytest.approx(ALPHA, rel=1e-9)
    assert fit["beta"] == pytest.approx(BETA, rel=1e-9)
    assert fit.relative_error < 1e-9
    link = fit.link()
    assert link.latency == pytest.approx(ALPHA, rel=1e-9)
    assert link.bandwidth == pytest.approx(2e9, rel=1e-9)
    assert link.reduce_rate == math.inf


def columns_of(*names):
    prices = [cost(name, 4, n) for name in names for n in SIZES]
    columns = {
        "alpha": np.array([p.steps for p in prices]),
        "beta": np.array([p.bytes_sent for p in prices]),
        "gamma": np.array([p.bytes_reduced for p in prices]),
    }
    return columns, ALPHA * columns["alpha"] + BETA * columns["beta"] + GAMMA * columns["gamma"]


def test_two_algorithms_give_gamma_too():
    fit = fit_linear(*columns_of("ring", "recursive doubling"))
    for name, truth in (("alpha", ALPHA), ("beta", BETA), ("gamma", GAMMA)):
        assert fit[name] == pytest.approx(truth, rel=1e-6)
    assert fit.link().reduce_rate == pytest.approx(5e9, rel=1e-6)


def test_fit_rejects_algorithms_that_cannot_determine_gamma():
    with pytest.raises(ValueError, match="recursive doubling"):
        fit_linear(*columns_of("naive", "tree", "ring", "Rabenseifner"))


def noisy(random, deviation=0.05):
    truth = ALPHA + BETA * SIZES
    return truth * (1 + deviation * random.standard_normal(len(SIZES)))


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_intervals_have_the_stated_coverage(confidence):
    random = np.random.default_rng(20)
    trials = 600
    inside = np.zeros(2)
    for _ in range(trials):
        fit = fit_link(SIZES, noisy(random), confidence)
        for place, (name, truth) in enumerate((("alpha", ALPHA), ("beta", BETA))):
            low, high = fit.interval(name)
            inside[place] += low <= truth <= high
    # Four standard deviations of a binomial count; a factor 0.8 on the width is noticed.
    slack = 4 * math.sqrt(confidence * (1 - confidence) / trials)
    assert inside / trials == pytest.approx(confidence, abs=slack)


# Weights from the measured times instead of the predicted ones would favour lucky points: with
# 20 % noise that bias is many standard errors.
@pytest.mark.parametrize("deviation", [0.05, 0.2])
def test_estimates_of_noisy_points_are_not_biased(deviation):
    random = np.random.default_rng(21)
    fits = [fit_link(SIZES, noisy(random, deviation)) for _ in range(400)]
    for name, truth in (("alpha", ALPHA), ("beta", BETA)):
        values = np.array([fit[name] for fit in fits])
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - truth) < 4 * error
        assert values.std() < deviation * truth


def test_small_messages_count_as_much_as_large_ones():
    # Unweighted least squares would lose alpha in the noise of the largest message.
    random = np.random.default_rng(22)
    for _ in range(20):
        assert fit_link(SIZES, noisy(random))["alpha"] == pytest.approx(ALPHA, rel=0.15)


def test_negative_parameter_becomes_zero_in_the_link():
    fit = fit_link([1000, 2000, 4000], [0.9e-3, 2e-3, 4.2e-3])
    assert fit["alpha"] < 0
    assert fit.link().latency == 0
    assert "interval" in str(fit)


@pytest.mark.parametrize(
    ("sizes", "seconds", "says"),
    [
        ([8, 16], [1e-6, 2e-6], "2 points cannot give 2 parameters"),
        ([8, 8, 8], [1e-6, 2e-6, 3e-6], "cannot tell alpha, beta apart"),
        ([0, 0, 0], [1e-6, 2e-6, 3e-6], "cannot tell alpha, beta apart"),
        ([8, 16, 32], [1e-6, 0, 3e-6], "above 0 seconds"),
        ([8, 16, 32], [1e-6, -1e-6, 3e-6], "above 0 seconds"),
        ([8, 16, 32], [1e-6, math.nan, 3e-6], "above 0 seconds"),
        ([8, -16, 32], [1e-6, 2e-6, 3e-6], "at least 0"),
        ([8, math.nan, 32], [1e-6, 2e-6, 3e-6], "at least 0"),
        ([8, 16, 32], [1e-6, 2e-6], "one number a point"),
        ([[8, 16, 32]], [[1e-6, 2e-6, 3e-6]], "one number a point"),
    ],
)
def test_fit_rejects_bad_points(sizes, seconds, says):
    with pytest.raises(ValueError, match=says):
        fit_link(sizes, seconds)


def test_error_names_a_parameter_that_was_not_fitted():
    fit = fit_link(SIZES, [1e-6 + 1e-9 * size for size in SIZES])
    for ask in (fit.__getitem__, fit.interval):
        with pytest.raises(KeyError, match="'gamma' was not fitted, only alpha, beta"):
            ask("gamma")


def test_fit_rejects_bad_confidence_and_no_columns():
    with pytest.raises(ValueError, match="confidence"):
        fit_link(SIZES, SIZES, confidence=95)
    with pytest.raises(ValueError, match="no parameter"):
        fit_linear({}, [1.0])


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    # Abramowitz and Stegun 1964, table 26.10.
    [(0.975, 1, 12.706), (0.975, 10, 2.228), (0.95, 30, 1.697), (0.995, 5, 4.032), (0.5, 3, 0.0)],
)
def test_student_t_equals_the_table(probability, freedom, value):
    assert student_t_quantile(probability, freedom) == pytest.approx(value, abs=6e-4)
