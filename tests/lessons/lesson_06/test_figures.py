"""The figures of lesson 06: predictions, published efficiencies, and simulated all-reduces."""

from __future__ import annotations

import pytest

from course_lib.teaching.cost import Link
from notebooks.lesson_06 import figures
from notebooks.lesson_06.network_simulation import Network, simulate

LINK = Link(5e-6, 1e9, 4e9)


def test_lines_and_efficiencies_draw_what_they_are_given():
    def parts(**more) -> int:
        kept, alt = [1.0, 0.5, 0.25], "one falling line"
        drawn = figures.predicted_lines(
            [1, 10, 100], {"kept": kept}, xlabel="", ylabel="", alt=alt, **more
        )
        assert drawn.alt == alt
        return drawn.svg.count("<path") + drawn.svg.count("<use")

    assert parts() < parts(marks={"": (10, 0.5)})
    assert parts() < parts(levels={"": 0.5})
    one = figures.efficiencies([("a", 0.7, 0.5, 0.8, 0.9)], alt="one row")
    two = figures.efficiencies([("a", 0.7, 0.5, 0.8, 0.9), ("a", 0.6, 0.5, 0.7, 0.9)], alt="two")
    assert (one.alt, two.alt) == ("one row", "two")
    assert one.svg.count("<use") < two.svg.count("<use")


def test_the_figure_has_points_over_formula_lines():
    runs = {
        name: [simulate(name, Network(ranks, LINK), 4 * 64) for ranks in (2, 4, 8)]
        for name in ("ring", "tree")
    }
    figure = figures.simulated_beside_formula(runs, title="Two")
    assert figure.svg.startswith("<svg")
    assert "points, simulated: ring, tree" in figure.alt
    assert figures.simulated_beside_formula(runs, along="size_bytes").svg != figure.svg
    with pytest.raises(ValueError, match="one of ranks, size_bytes"):
        figures.simulated_beside_formula(runs, along="time")
    with pytest.raises(ValueError, match="at least one run"):
        figures.simulated_beside_formula({"ring": []})
