"""Modes are compared seed by seed, and a run that never arrives counts as lost."""

from __future__ import annotations

import pytest

from benchmarks import async_sgd_report, report
from tests.benchmarks.test_report import result


def measured(synchronous: list, asynchronous: list) -> dict:
    """Return runs with these seconds to the target."""

    def runs(times: list, rate: float) -> list[dict]:
        rest = {"updates_per_s": rate, "gradients_per_s": rate, "staleness": 2.5}
        return [{"seconds": seconds, **rest} for seconds in times]

    return {
        "ranks": 5,
        "target": 0.9,
        "step_seconds": 0.02,
        "slower": 3,
        "batch": 16,
        "rate": 0.1,
        "runs": {
            "synchronous": runs(synchronous, 60.0),
            "asynchronous": runs(asynchronous, 150.0),
        },
    }


@pytest.mark.parametrize(("times", "met"), [([2.0, 3.0, 1.0], True), ([2.1, 3.1, 1.1], False)])
def test_the_target_is_the_median_over_seeds(times: list, met: bool) -> None:
    found = async_sgd_report.section(measured([3.0, 4.5, 1.5], times))
    (target,) = found.targets
    assert target.met is met
    assert "2.5 times as many gradients" in target.cause


def test_a_run_that_never_arrives_is_no_win() -> None:
    assert async_sgd_report.sooner(measured([3.0, 3.0, 3.0], [None, None, 1.0])) == 0
    assert async_sgd_report.sooner(measured([None, None, 3.0], [1.0, 1.0, 1.0])) == float("inf")


def test_the_report_has_the_section_and_says_what_is_simulated() -> None:
    section = async_sgd_report.section(measured([3.0, 3.0, 3.0], [1.0, 1.0, 1.0]))
    text = report.markdown(result(ours=1), [section])
    assert "| asynchronous | 1.00 (1.00 to 1.00) | 150 | 150 | 2.5 |" in text
    assert "20 ms at least, on one worker 60 ms" in text
    assert "3.00x" in text
