"""The figure of lesson 08: distances to the minimum."""

import xml.etree.ElementTree as ElementTree

import pytest
from rank_by_rank.lesson_08.figures import distances_to_minimum

RUNS = {"float32": [1.0, 0.1, 0.001], "8 bits": [1.0, 0.1, 0.05]}


def test_distances_have_alt_text_and_are_deterministic() -> None:
    figure = distances_to_minimum(RUNS)
    ElementTree.fromstring(figure.svg)
    assert "float32; 8 bits" in figure.alt
    assert figure.svg == distances_to_minimum(RUNS).svg
    assert distances_to_minimum(RUNS, alt="Two lines.").alt == "Two lines."


@pytest.mark.parametrize("label", RUNS)
def test_distances_show_each_run_step_by_step(label: str) -> None:
    changed = RUNS | {label: [*RUNS[label][:2], 20 * RUNS[label][2]]}
    before, after = distances_to_minimum(RUNS).svg, distances_to_minimum(changed).svg
    assert before != after


@pytest.mark.parametrize("runs", [{}, {key: [1.0] for key in "abcd"}])
def test_distances_reject_no_runs_or_too_many(runs) -> None:
    with pytest.raises(ValueError, match=f"{len(runs)} runs"):
        distances_to_minimum(runs)
