"""The figures of lesson 06: predictions, published efficiencies, and simulated all-reduces."""

from __future__ import annotations

import pytest
from rank_by_rank.lesson_06 import extrapolation, figures, two_ranks
from rank_by_rank.lesson_06.network_simulation import Network, simulate

from course_lib.teaching.cost import Link

LINK = Link(5e-6, 1e9, 4e9)


def test_lines_and_efficiencies_draw_all_values():
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


def test_where_it_pays_shows_points_lines_and_threshold():
    asked = []

    def predicted(ranks: int, bandwidth: float) -> float:
        asked.append((ranks, bandwidth))
        return ranks * bandwidth / 20e6

    drawn = figures.where_it_pays([3e6, 6e6], {2: [0.5, 1.2], 4: [1.0, 2.0]}, predicted)
    assert "points: 2 ranks, 4 ranks; lines: predicted, and a horizontal line at 1" in drawn.alt
    assert {ranks for ranks, _ in asked} == {2, 4}
    assert min(bandwidth for _, bandwidth in asked) == pytest.approx(3e6)
    assert max(bandwidth for _, bandwidth in asked) == pytest.approx(6e6)


def test_alt_text_of_extrapolations_states_their_ends():
    drawn = figures.slowest_of_many([1, 2, 1024], {"a bell curve": [1, 1.05, 1.325]})
    assert drawn.alt.endswith("end at 1,024 ranks (a bell curve, 1.3), and a horizontal line at 1.")
    link = Link(5e-6, 20e9)
    job = extrapolation.Job(
        batch=32, comp_seconds=0.2, gradient_bytes=1e8, inside=link, between=link
    )
    far = [extrapolation.extrapolate(job, ranks) for ranks in (8, 512, 1024, 2048)]
    assert far[1].sample_efficiency > 0.5 > far[2].sample_efficiency
    alt = figures.what_breaks_first(far).alt
    assert "Below one half: samples that count, from 1,024 ranks on." in alt
    left = f"{far[3].sample_efficiency:.2f}"
    assert f"What is left at 2,048 ranks: step, flat ring, {far[3].ring_efficiency:.2f}" in alt
    assert f"samples that count, {left}" in alt


def test_two_ranks_against_one_as_a_table_and_a_picture():
    rounds = [(0.010, 0.012, 0.004, 0.020), (0.010, 0.012, 0.003, 0.016), (0.010, 0.012, 0.006, 1)]
    gain = two_ranks.Gain.of("LeNet", 61_706, 8, rounds)
    assert gain.ratio == pytest.approx(4 / 12)
    assert gain.step == pytest.approx(1.6)
    assert gain.measured == pytest.approx(((1 + 0.02) / 2, 1, (1 + 20 / 16) / 2))
    *titles, row = two_ranks.table([gain]).splitlines()
    words = "LeNet 61,706 8 10.00 12.00 4.00 0.33 1.50 1.25 1.00 0.51 to 1.12"
    assert row.split() == words.split()
    assert [row.index(cell) + len(cell) for cell in ("61,706", "12.00", "1.50", "1.25")] == [
        titles[1].index(title) + len(title) for title in ("parameters", "both", "S1", "S2")
    ]
    drawn = two_ranks.picture([gain, gain._replace(batch=128, step=0.5)])
    assert "2 measured points" in drawn.alt
