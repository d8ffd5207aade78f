"""A prediction is compared with what was measured, whatever kind of value it is."""

import numpy as np
import pytest
import torch

from course_lib.teaching.comparison import compare


@pytest.mark.parametrize(
    ("prediction", "measured", "options", "words"),
    [
        (None, 6, {}, "not written down a prediction. Measured here: 6"),
        (6, 6, {}, "Well predicted"),
        (6, 7, {}, "You predicted 6. Measured here: 7. What did"),
        ([6, 6], torch.tensor([6, 6]), {}, "Well predicted"),
        ([[1, 2]], [torch.tensor([1, 2])], {}, "Well predicted"),
        ([6, 6], np.array([6, 6, 6]), {}, "What did"),
        ("two", "two", {}, "Well predicted"),
        ("b ", "B", {}, "Well predicted"),
        ("A", "B", {}, "What did"),
        (1.0, 1.1, {"within": 0.2, "unit": "s"}, "You predicted 1 s. Measured here: 1.1 s. Well"),
        (1.0, 2.0, {"within": 0.2, "unit": "s"}, "What did"),
        ("six", 6, {}, "What did"),
        ("(B)", "B", {}, "Well predicted"),
        ("b.", "B", {}, "Well predicted"),
        ("(A)", "B", {}, "What did"),
        ("0.75", 0.75, {}, "Well predicted"),
        ("1/4", 0.25, {}, "Well predicted"),
        ("1/3", 0.25, {}, "What did"),
        ("1/0", 0.25, {}, "What did"),
        ("75%", 0.75, {}, "Well predicted"),
        ("75 %", 75, {}, "Well predicted"),
        ("75%", 0.7, {}, "What did"),
        ("2 s", 2.0, {"unit": "s"}, "Well predicted"),
        (["1/2", "0"], [0.5, 0], {}, "Well predicted"),
    ],
)
def test_compare_prints_the_verdict(prediction, measured, options, words, capsys):
    compare(prediction, measured, **options)
    assert words in capsys.readouterr().out
