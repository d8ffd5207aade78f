"""A timeline shows every span to scale, hatches all the rest, and its text can be read."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from course_lib.teaching import figures
from course_lib.teaching.figures import Busy, idle_share, timeline

SVG = "{http://www.w3.org/2000/svg}"
LANES = {
    0: [("send", 0.0, 0.001), ("forward", 0.001, 0.005), ("add up", 0.005, 0.010)],
    1: [("forward", 0.002, 0.006)],
}


def bars(figure):
    """All bars from left to right: x, y, width, fill."""
    found = []
    for shape in ElementTree.fromstring(figure.svg).iter(SVG + "rect"):
        if shape.get("height") == "26.0" and shape.get("rx") == "0":
            numbers = [float(shape.get(name)) for name in ("x", "y", "width")]
            found.append((*numbers, shape.get("fill")))
    return sorted(found, key=lambda bar: (bar[1], bar[0]))


def texts(figure):
    return [text.text for text in ElementTree.fromstring(figure.svg).iter(SVG + "text")]


def test_spans_are_to_scale_and_idle_time_is_hatched():
    drawn = bars(timeline(LANES))
    above, below = ([bar for bar in drawn if bar[1] == y] for y in sorted({b[1] for b in drawn}))
    assert [bar[3].startswith("url(#hatch") for bar in above] == [False, False, False]
    assert [bar[3].startswith("url(#hatch") for bar in below] == [True, False, True]
    whole = sum(bar[2] for bar in above)
    for lane, shares in ((above, [0.1, 0.4, 0.5]), (below, [0.2, 0.4, 0.4])):
        # Coordinates are written with one decimal.
        assert [bar[2] / whole for bar in lane] == pytest.approx(shares, abs=0.001)
        for bar, following in pairwise(lane):
            assert bar[0] + bar[2] == pytest.approx(following[0], abs=0.11)


def test_a_lane_that_ends_is_not_idle_afterwards():
    drawn = bars(timeline(LANES, ends={1: 0.006}))
    below = [bar for bar in drawn if bar[1] == max(bar[1] for bar in drawn)]
    assert [bar[3].startswith("url(#hatch") for bar in below] == [True, False]


def test_rank_keeps_its_colour_and_transfers_are_paler():
    drawn = bars(timeline({2: [("a", 0, 1)], 0: [("b", 0, 1)]}))
    assert [bar[3] for bar in drawn] == [figures.rank_colour(2), figures.rank_colour(0)]
    pale = bars(timeline({2: [("a", 0, 1)]}, moves=["a"]))[0][3]
    assert pale == bars(timeline({2: [Busy("a", 0, 1, moves=True)]}))[0][3]
    assert all(
        int(pale[i : i + 2], 16) > int(figures.rank_colour(2)[i : i + 2], 16) for i in (1, 3, 5)
    )
    assert "moves data" in texts(timeline({2: [("a", 0, 1)]}, moves=["a"]))
    assert "moves data" not in texts(timeline({2: [("a", 0, 1)]}))


def test_long_label_becomes_a_number_in_the_legend():
    narrow = {0: [("send", 0.0, 0.0005), *LANES[0][1:]], 1: LANES[1]}
    shown = texts(timeline(narrow))
    assert shown.count("forward") == 2
    assert "1 send" in shown
    assert "1" in shown
    # One that is too narrow even for that is still explained, and drawn.
    spans = [("work", 0, 1), ("blink", 1, 1.0001), ("work", 1.0001, 2)]
    figure = timeline([spans])
    assert "1 blink" in texts(figure)
    assert min(bar[2] for bar in bars(figure)) == 1.0


def test_times_have_a_unit_and_start_at_zero():
    late = {rank: [(w, 7.0 + a, 7.0 + b) for w, a, b in spans] for rank, spans in LANES.items()}
    assert bars(timeline(late)) == bars(timeline(LANES))
    shown = texts(timeline(LANES))
    numbers = [text for text in shown if re.fullmatch(r"\d+", text or "")]
    assert numbers[:6] == ["0", "2", "4", "6", "8", "10"]
    assert "time (ms) \u2192" in shown
    steps = texts(timeline([[("a", 0, 3)]], unit="steps"))
    assert {"0", "1", "2", "3", "time (steps) \u2192"} <= set(steps)


def test_start_end_and_marks_are_drawn():
    drawn = bars(timeline([[("a", 1, 2)]], unit="s", start=0, end=4, marks={"half": 2}))
    assert [bar[3].startswith("url") for bar in drawn] == [True, False, True]
    assert drawn[2][2] == pytest.approx(2 * drawn[0][2], abs=0.11)
    assert "half" in texts(timeline([[("a", 1, 2)]], marks={"half": 2}))


def test_long_lane_name_fits():
    name = "parameter server"
    figure = timeline({name: [("serves", 0, 1)]})
    text = next(t for t in ElementTree.fromstring(figure.svg).iter(SVG + "text") if t.text == name)
    assert float(text.get("x")) + 0.62 * 13 * len(name) < bars(figure)[0][0]


def test_alt_text_describes_the_timeline():
    assert timeline(LANES, title="A step").alt == (
        "Timeline of 2 lanes: A step. Rank 0: send, forward, add up; idle 0% of the time. "
        "Rank 1: forward; idle 60% of the time."
    )
    assert timeline({"device 1": []} | LANES).alt.count("device 1: nothing; idle 100%") == 1
    assert timeline(LANES, alt="in my words").alt == "in my words"


def test_idle_share_counts_overlaps_once():
    assert idle_share([("a", 0, 2), ("b", 1, 3)], 0, 4) == 0.25
    assert idle_share([("all", 0, 4), ("part of it", 1, 2)], 0, 5) == 0.2
    assert idle_share([], 0, 4) == 1.0
    assert idle_share([("a", 3, 4), ("b", 0, 1)], 0, 4) == 0.5


@pytest.mark.parametrize(
    "figure",
    [
        timeline(LANES, title="One step", marks={"gathered": 0.0, "updated": 0.010}),
        timeline(
            {f"device {i}": [(f"step number {j}", j, j + 1) for j in range(30)] for i in (0, 1)}
        ),
        timeline({"a lane with a long name": [("a", 0, 1e-6)]}, unit="us"),
    ],
    ids=["short", "many", "long name"],
)
def test_text_is_large_enough_and_inside_the_figure(figure):
    root = ElementTree.fromstring(figure.svg)
    width, height = (float(v) for v in root.get("viewBox").split()[2:])
    for text in root.iter(SVG + "text"):
        size = float(text.get("font-size"))
        assert size >= 13
        long = 0.62 * size * len(text.text)
        left = float(text.get("x"))
        left -= {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")] * long
        assert left >= 0, text.text
        assert left + long <= width, text.text
        assert 0 < float(text.get("y")) < height, text.text


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: timeline([]), "nothing to draw"),
        (lambda: timeline({0: [], 1: []}), "nothing to draw"),
        (lambda: timeline([[("a", 2, 1)]]), "ends before it starts"),
        (lambda: timeline([[("a", 0, float("nan"))]]), "not finite"),
        (lambda: timeline([[("a", 0, 2)]], end=1), "outside the picture"),
        (lambda: idle_share([], 1, 1), "is empty"),
    ],
)
def test_bad_arguments_are_rejected(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
