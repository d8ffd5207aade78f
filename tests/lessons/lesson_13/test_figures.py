"""The figures of lesson 13: hosts with their ranks, and the ways of a gradient."""

import xml.etree.ElementTree as ElementTree

import pytest
from rank_by_rank.lesson_13 import figures

WAYS = {"by slot": ["h1", "h1", "h2"], "all on one": ["h1", "h1", "h1"]}


def test_figures_have_alt_text_and_are_deterministic() -> None:
    placed, paths = figures.placements(WAYS), figures.gradient_paths()
    for figure in (placed, paths):
        ElementTree.fromstring(figure.svg)
    assert "by slot, h1: ranks 0, 1; by slot, h2: ranks 2" in placed.alt
    assert "all on one, h2: ranks none" in placed.alt
    assert placed.svg == figures.placements(WAYS).svg
    assert "staged: GPU to host memory to network card" in paths.alt


def test_each_rank_is_drawn_once_with_its_local_rank() -> None:
    svg = figures.placements({"in turn": ["h1", "h2", "h1"]}).svg
    assert (svg.count("local 0"), svg.count("local 1")) == (2, 1)


@pytest.mark.parametrize("ways", [{}, {"nobody": []}])
def test_placements_rejects_empty_input(ways) -> None:
    with pytest.raises(ValueError, match="at least one"):
        figures.placements(ways)
