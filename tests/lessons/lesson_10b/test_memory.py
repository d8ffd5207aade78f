"""The bytes of each stage of ZeRO are those of the paper's figure 1."""

import pytest
from rank_by_rank.lesson_10b.judge_memory import expected


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)], ids=str
)
def test_7_5_billion_parameters_on_64_gpus(stage: int, gigabytes: float) -> None:
    assert expected(stage, 7_500_000_000, 64) / 1e9 == pytest.approx(gigabytes, abs=0.05)
