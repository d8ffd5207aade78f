"""A prediction with a usual mistake in it is told which one it looks like."""

from __future__ import annotations

import pytest
from rank_by_rank.lesson_14.costs import Run, speed_up, sync_seconds
from rank_by_rank.lesson_14.judge_own_prediction import guesses, reading
from rank_by_rank.lesson_14.tasks import STRATEGIES, TASKS, Plan

TENSORS = (32_768, 512, 5_120, 40)
LARGE = (262_144, 4_096, 40_960, 40)
PER_LAYER, FLAT = Plan("per layer", 16, 0.4), Plan("flattened", 16, 0.4)
LOCAL = Plan("local SGD", 16, 0.4, {"every": 16})


def found(plan: Plan) -> list:
    if plan is LOCAL:
        return guesses(TASKS["B"], plan, 4, (256, 88), LARGE)
    return guesses(TASKS["A"], plan, 4, (176, 48), TENSORS)


def test_first_guess_is_the_right_one() -> None:
    (right, *_), task = found(FLAT), TASKS["A"]
    sync = sync_seconds([sum(TENSORS)], 4, task.latency, task.megabits)
    by_hand = speed_up(Run(1, 16, 176), Run(4, 16, 48), 0.002, 0.008, sync, 4)
    assert right.speed_up == pytest.approx(by_hand)
    assert (right.name, right.forgets) == ("by-the-formula", "")
    assert reading(by_hand, 0.98 * by_hand, found(FLAT)).startswith("agrees with the formula")
    assert "slower or busy" in reading(by_hand, 0.5 * by_hand, found(FLAT))


# Task A by hand, 4 ranks: 176 steps of 40 ms against 48 of 40 ms and what each tensor takes.
ALONE, COMPUTE = 176 * 0.040, 0.040
BYTE = 8 / 100e6  # seconds
LAYERS = sum(2 * (0.005 + size * BYTE) for size in TENSORS)
BY_HAND = {
    "by-the-formula": ALONE / (48 * (COMPUTE + LAYERS)),
    "as-many-times-as-ranks": 4.0,
    "forgets-communication": ALONE / (48 * COMPUTE),
    "speed-up-of-an-epoch": ALONE / (44 * (COMPUTE + LAYERS)),
    "same-number-of-steps": ALONE / (176 * (COMPUTE + LAYERS)),
    "forgets-both": ALONE / (44 * COMPUTE),
    "forgets-the-fixed-part": 176 * 0.032 / (48 * (0.032 + LAYERS)),
    "bits-for-bytes": ALONE / (48 * (COMPUTE + 0.040 + 2 * sum(TENSORS) * BYTE / 8)),
    "forgets-latency": ALONE / (48 * (COMPUTE + 1.5 * sum(TENSORS) * BYTE)),
    "latency-once": ALONE / (48 * (COMPUTE + 1.5 * sum(TENSORS) * BYTE + 0.005)),
    "one-bucket": ALONE / (48 * (COMPUTE + 2 * (0.005 + sum(TENSORS) * BYTE))),
    "latency-of-each-tensor": ALONE / (48 * (COMPUTE + LAYERS)),
    "one-direction": ALONE / (48 * (COMPUTE + LAYERS / 2)),
    "once-for-each-rank": ALONE / (48 * (COMPUTE + 4 * LAYERS)),
    "in-every-step": ALONE / (48 * (COMPUTE + LAYERS)),
    "ranks-share-cores": ALONE / (48 * (2 * COMPUTE + LAYERS)),
    "upside-down": 48 * (COMPUTE + LAYERS) / ALONE,
}


def test_each_mistake_equals_hand_calculation() -> None:
    values = {one.name: one.speed_up for one in found(PER_LAYER)}
    assert values == pytest.approx(BY_HAND, rel=1e-9)


def test_local_sgd_mistakes_equal_hand_calculation() -> None:
    values = {one.name: one.speed_up for one in found(LOCAL)}
    once = 2 * (0.020 + sum(LARGE) * 8 / 50e6)
    assert values["by-the-formula"] == pytest.approx(256 * 0.040 / (88 * (0.040 + once / 16)))
    assert values["in-every-step"] == pytest.approx(256 * 0.040 / (88 * (0.040 + once)))


@pytest.mark.parametrize("plan", [PER_LAYER, FLAT, LOCAL], ids=["layers", "flat", "local"])
def test_each_mistake_is_recognised_by_its_number(plan: Plan) -> None:
    right, *mistakes = found(plan)
    told = 0
    for mistake in mistakes:
        if abs(mistake.speed_up / right.speed_up - 1) <= 0.05:
            continue  # it does not show with these numbers
        said = reading(round(mistake.speed_up, 3), right.speed_up, found(plan))
        nearer = [one for one in mistakes if abs(one.speed_up / mistake.speed_up - 1) < 0.001]
        assert any(one.forgets in said for one in nearer), (mistake, said)
        told += 1
    assert told >= 10


def test_unexplained_number_gets_the_right_one() -> None:
    right = found(FLAT)[0].speed_up
    assert reading(1.87 * right + 0.31, right, found(FLAT)) == (
        f"with the measured steps, the formula gives {right:.2f}"
    )


def test_ranks_without_messages_are_predicted_as_one_rank() -> None:
    found = guesses(TASKS["A"], Plan("alone", 16, 0.4), 4, (128, 128), TENSORS)
    assert found[0].speed_up == pytest.approx(1.0)
    assert reading(1.02, 0.98, found).startswith("agrees with the formula")
    assert "R ranks, R times as fast" in reading(4.0, 0.98, found)
    assert not any("latency" in one.forgets for one in found)


@pytest.mark.parametrize("strategy", ["overlapped", "asynchronous", "pipeline", "mine"])
def test_strategy_without_formula_gets_no_guesses(strategy: str, monkeypatch) -> None:
    monkeypatch.setitem(STRATEGIES, "mine", "a try")
    none = guesses(TASKS["A"], Plan(strategy, 16, 0.4), 4, (176, 44), TENSORS)
    assert none == []
    assert "no formula" in reading(2.0, 1.5, none)
