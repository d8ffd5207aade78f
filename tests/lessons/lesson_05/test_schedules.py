"""Learning-rate rules and warm-up, against the numbers of the paper they come from."""

from __future__ import annotations

import pytest
from rank_by_rank.lesson_05.schedules import scaled_rate, warm_up


def test_learning_rate_scaling_rules() -> None:
    assert scaled_rate(0.1, 8, "none") == 0.1
    assert scaled_rate(0.1, 8, "linear") == 0.8
    assert scaled_rate(0.1, 4, "square root") == 0.2
    assert scaled_rate(0.1, 8) == 0.8
    for rule in ("none", "linear", "square root"):
        assert scaled_rate(0.1, 1, rule) == 0.1
    # Goyal et al. 2017, section 5.1: 0.1 for 256 images, so 3.2 for 8,192 on 256 GPUs of 32.
    assert scaled_rate(0.1, 8192 // 256, "linear") == pytest.approx(3.2)
    with pytest.raises(ValueError, match="square root"):
        scaled_rate(0.1, 8, "quadratic")
    with pytest.raises(ValueError, match="at least one worker"):
        scaled_rate(0.1, 0)


def test_warm_up() -> None:
    steps, rate, start = 4, 0.8, 0.1
    rates = {
        kind: [warm_up(step, steps, rate, start, kind) for step in range(6)]
        for kind in ("none", "constant", "gradual")
    }
    assert rates["none"] == [0.8] * 6
    assert rates["constant"] == [0.1] * 4 + [0.8] * 2
    assert rates["gradual"] == pytest.approx([0.1, 0.275, 0.45, 0.625, 0.8, 0.8])
    assert [warm_up(0, 0, rate, start, kind) for kind in rates] == [0.8] * 3
    with pytest.raises(ValueError, match="gradual"):
        warm_up(0, 1, 1.0, 0.1, "slow")
    for step, steps in ((-1, 3), (0, -1)):
        with pytest.raises(ValueError, match="at least 0"):
            warm_up(step, steps, 1.0, 0.1)
