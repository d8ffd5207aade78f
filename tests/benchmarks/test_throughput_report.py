"""The one idea: two ranks are compared with one turn by turn, and a miss names the ceiling."""

from __future__ import annotations

from benchmarks import report, throughput_report
from tests.benchmarks.test_report import result


def measured(sync: float, ddp: float = 2.0) -> dict:
    """Return turns in which one process slows down and the others with it."""
    one = [400.0, 300.0, 200.0, 100.0]
    factors = {"one": 1.0, "apart": 1.9, "sync": sync, "ddp": ddp}
    samples = {name: [factor * rate for rate in one] for name, factor in factors.items()}
    return {"ranks": 2, "data": "digits", "batch": 64, "samples": samples}


def test_targets_are_met_from_one_and_three_quarters_on() -> None:
    assert [target.met for target in throughput_report.section(measured(1.76)).targets] == [
        True
    ] * 2
    found = throughput_report.section(measured(sync=1.7)).targets
    assert [target.met for target in found] == [False, True]
    assert (found[0].wanted, found[0].measured) == (">= 1.75x", "1.70x")
    assert "reach 1.90x" in found[0].cause
    assert "89% of that" in found[0].cause


def test_the_report_has_the_section_and_its_targets() -> None:
    section = throughput_report.section(measured(sync=1.5))
    text = report.markdown(result(ours=1), [section])
    assert "| two ranks, sync_gradients | 375 (188 to 562) | 1.50x |" in text
    assert "LeNet on digits (28 x 28), 64 images a step" in text
    assert "- LeNet, two ranks against one process, sync_gradients: 1.50x, target >= 1.75x" in text


def test_a_drift_of_the_machine_cancels() -> None:
    assert throughput_report.speedup(measured(sync=1.8), "sync") == 1.8
