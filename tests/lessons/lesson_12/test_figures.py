"""The figures of lesson 12: a loss curve across deaths, and the valley of saving."""

import xml.etree.ElementTree as ElementTree

import pytest
from rank_by_rank.lesson_12 import figures

LOSSES = [2.0, 1.5, 1.2, 1.0, 0.9, 0.8]


def valley():
    intervals = [10.0, 100.0, 1000.0]
    return figures.saving_interval(
        {"few": (intervals, [0.5, 0.2, 0.5])},
        {"few": lambda t: 2 / t + t / 4000},
        {"few": 89.0},
    )


def test_figures_have_alt_text_and_are_deterministic() -> None:
    across = figures.loss_across_deaths(LOSSES, LOSSES, {2: 3, 4: 0}, ranks=4)
    for figure in (across, valley()):
        ElementTree.fromstring(figure.svg)
    assert "rank 3 dies in step 2, rank 0 dies in step 4" in across.alt
    assert "few" in valley().alt
    again = figures.loss_across_deaths(LOSSES, LOSSES, {2: 3, 4: 0}, ranks=4)
    assert across.svg == again.svg


@pytest.mark.parametrize(
    ("serial", "deaths", "words"),
    [(LOSSES[:-1], {}, "6 losses, but 5"), (LOSSES, {6: 1}, "steps are 0 to 5")],
)
def test_loss_across_deaths_rejects_inconsistent_arguments(serial, deaths, words) -> None:
    with pytest.raises(ValueError, match=words):
        figures.loss_across_deaths(LOSSES, serial, deaths, ranks=4)
