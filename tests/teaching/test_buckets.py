"""The timeline of a backward pass says what its hooks saw, and can be read."""

import xml.etree.ElementTree as ElementTree

import pytest

from course_lib.teaching import figures
from course_lib.teaching.figures import Backward

SVG = "{http://www.w3.org/2000/svg}"
TOGETHER = Backward([("2", 0.006), ("1", 0.012)], [("2+1", 0.012, 0.022)])
APART = Backward([("2", 0.006), ("1", 0.012)], [("2", 0.006, 0.011), ("1", 0.012, 0.017)])


def draw(**options):
    return figures.buckets({"One bucket": TOGETHER, "Two buckets": APART}, **options)


def texts(figure):
    return [text.text for text in ElementTree.fromstring(figure.svg).iter(SVG + "text")]


def test_alt_text_counts_buckets_sent_before_the_end():
    one, two = draw(title="Test").alt.split("Two buckets")
    assert "in the order 2, 1; 1 bucket is sent, 0 of them before" in one
    assert "in the order 2, 1; 2 buckets are sent, 1 of them before" in two
    assert "rank 0: Test." in one


def test_each_run_ends_at_its_last_event():
    assert (TOGETHER.end, APART.end) == (0.022, 0.017)
    assert [t for t in texts(draw()) if t.startswith("done")] == ["done at 22 ms", "done at 17 ms"]


def test_bars_are_to_scale():
    figure = draw(rank=2)
    shapes = ElementTree.fromstring(figure.svg).iter(SVG + "rect")
    hatched = [s for s in shapes if (s.get("fill") or "").startswith("url(#hatch")]
    left, width = ([float(s.get(name)) for s in hatched] for name in ("x", "width"))
    # Widths are in proportion to 10, 5 and 5 ms; starts to 12, 6 and 12 ms on one axis.
    assert width[0] == pytest.approx(2 * width[1], abs=0.2)
    assert width[1] == pytest.approx(width[2], abs=0.2)
    assert left[0] == pytest.approx(left[2], abs=0.2)
    assert left[0] - left[1] == pytest.approx(width[0] * 6 / 10, abs=0.2)
    assert all(s.get("stroke") == figures.rank_colour(2) for s in hatched)


def test_text_is_large_enough_and_inside_the_figure():
    root = ElementTree.fromstring(draw(title="Backward").svg)
    width, height = (float(v) for v in root.get("viewBox").split()[2:])
    for text in root.iter(SVG + "text"):
        size = float(text.get("font-size"))
        assert size >= 13
        long = 0.62 * size * len(text.text)
        start = {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
        left = float(text.get("x")) - start * long
        assert left >= 0, text.text
        assert left + long <= width, text.text
        assert 0 < float(text.get("y")) < height, text.text


def test_figure_is_deterministic():
    assert draw().svg == draw().svg


@pytest.mark.parametrize("runs", [{}, {"run": Backward([], [("1", 0, 1)])}])
def test_buckets_rejects_runs_without_events(runs):
    with pytest.raises(ValueError, match="at least one run"):
        figures.buckets(runs)
