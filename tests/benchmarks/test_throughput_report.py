"""Two ranks are compared with one turn by turn, and a miss names the ceiling."""

from __future__ import annotations

from benchmarks import report, throughput_report
from tests.benchmarks.test_report import result


def measured(sync: float, ddp: float = 2.0) -> dict:
    """Return turns in which one process slows down and the others with it."""
    one = [400.0, 300.0, 200.0, 100.0]
    factors = {"one": 1.0, "apart": 1.9, "sync": sync, "ddp": ddp}
    samples = {name: [factor * rate for rate in one] for name, factor in factors.items()}
    slower = {name: [rate / 2 for rate in rates] for name, rates in samples.items()}
    slower["sync"], slower["ddp"] = slower["one"], [1.8 * rate for rate in slower["one"]]
    batches = [{"batch": 256, "samples": samples}, {"batch": 64, "samples": slower}]
    return {"ranks": 2, "data": "digits", "batches": batches}


def test_the_target_is_a_share_of_what_silent_processes_reach() -> None:
    found = throughput_report.section(measured(sync=1.81)).targets
    assert [target.met for target in found[:2]] == [True, True]
    found = throughput_report.section(measured(sync=1.7)).targets
    assert [target.met for target in found[:2]] == [False, True]
    assert (found[0].wanted, found[0].measured) == (">= 0.95x", "0.89x")
    assert "two ranks reach 1.70x of one process here, two that never speak 1.90x" in found[0].cause


def test_every_batch_has_its_rows_and_its_own_cause():
    found = throughput_report.section(measured(sync=1.85)).targets
    assert [target.what[:19] for target in found] == ["LeNet, 256 images a"] * 2 + [
        "LeNet, 64 images a "
    ] * 2
    assert [target.met for target in found] == [True, True, False, False]
    # Two ranks' 128 images at 125 a second, against 237.5 by two that never speak.
    assert "takes 485.1 ms of a step of 1024.0 ms" in found[2].cause


def test_the_report_has_the_section_and_its_targets() -> None:
    section = throughput_report.section(measured(sync=1.5))
    text = report.markdown(result(ours=1), [section])
    assert "| 256 | two ranks, sync_gradients | 375 (188 to 562) | 1.50x |" in text
    assert "| 64 | two ranks, sync_gradients | 125 (62 to 188) | 1.00x |" in text
    assert "LeNet on digits (28 x 28)" in text
    missed = "LeNet, 256 images a step, two ranks against two silent ones, sync_gradients"
    assert f"- {missed}: 0.79x, target >= 0.95x" in text


def test_a_drift_of_the_machine_cancels() -> None:
    assert throughput_report.speedup(measured(sync=1.8)["batches"][0], "sync") == 1.8
