"""The figures of lesson 04: computational graphs, and a batch cut into shards."""

import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
from rank_by_rank.lesson_04 import figures

from course_lib.teaching.figures import rank_colour

SVG = "{http://www.w3.org/2000/svg}"


def node(name, value, gradient=None, rule="", inputs=()):
    return SimpleNamespace(name=name, value=value, gradient=gradient, rule=rule, inputs=inputs)


def two_samples():
    """(w·x1) + (w·x2) for w = 3: what each node holds, and the sum's derivative."""
    w, x1, x2 = node("w", 3, 7.0), node("x1", 2, 3.0), node("x2", 5, 3.0)
    u1 = node("u1", 6, 1.0, "w·x1", [(w, 2), (x1, 3)])
    u2 = node("u2", 15, 1.0, "w·x2", [(w, 5), (x2, 3)])
    return node("L", 21, 1.0, "u1 + u2", [(u1, 1), (u2, 1)])


def drawn():
    return {
        "graph": figures.computational_graph(two_samples(), ranks={"u1": 0, "u2": 1}, title="Two"),
        "graph without gradients": figures.computational_graph(
            node("L", -0.12345, None, "w²", [(node("w", 3), 6)])
        ),
        "shards": figures.split_gradient([1, 2, 3, 4], title="Ten samples"),
        "eight shards": figures.split_gradient([1, 90, 90, 90, 90, 90, 90, 200]),
    }


@pytest.mark.parametrize("name", drawn())
def test_text_is_inside_the_figure_and_alt_text_exists(name):
    figure = drawn()[name]
    assert len(figure.alt) > 40
    assert figure.svg == drawn()[name].svg, "two drawings of the same differ"
    root = ElementTree.fromstring(figure.svg)
    width, height = (float(v) for v in root.get("viewBox").split()[2:])
    for text in root.iter(SVG + "text"):
        size, words = float(text.get("font-size")), "".join(text.itertext())
        assert size >= 13, words
        long = 0.62 * size * len(words)
        left = float(text.get("x")) - {"start": 0, "middle": 0.5}[text.get("text-anchor")] * long
        assert left >= 0, words
        assert left + long <= width, words
        assert 0 < float(text.get("y")) < height, words


def boxes(figure):
    """(x, y) of each node's box in the drawing of a graph."""
    rectangles = ElementTree.fromstring(figure.svg).findall(f"{SVG}rect")
    return [(float(r.get("x")), float(r.get("y"))) for r in rectangles if r.get("height") == "48.0"]


def test_graph_shows_every_node_once_without_overlap():
    figure = drawn()["graph"]
    places = boxes(figure)
    assert len(places) == len(set(places)) == 6
    for i, (x, y) in enumerate(places):
        for other_x, other_y in places[:i]:
            assert abs(x - other_x) >= 92 or abs(y - other_y) >= 48
    said = dict(re.findall(r"(\w+) = [^;.]*derivative (−?[\d.]+)", figure.alt))
    assert said == {"w": "7", "x1": "3", "u1": "1", "x2": "3", "u2": "1", "L": "1."}


def test_inputs_are_left_of_their_consumers():
    figure = drawn()["graph"]
    columns = sorted(x for x, _ in boxes(figure))
    assert columns[0] == columns[1] == columns[2] < columns[3] == columns[4] < columns[5]


def test_boxes_have_the_colour_of_their_rank():
    shapes = ElementTree.fromstring(drawn()["graph"].svg).findall(f"{SVG}rect")
    frames = [r.get("stroke") for r in shapes if r.get("height") == "48.0"]
    assert frames.count(rank_colour(0)) == frames.count(rank_colour(1)) == 1


def test_shard_width_is_proportional_to_its_samples():
    root = ElementTree.fromstring(drawn()["shards"].svg)
    wide = {
        r.get("fill"): float(r.get("width"))
        for r in root.findall(f"{SVG}rect")
        if r.get("height") == "30.0" and r.get("rx") == "4"
    }
    unit = wide[rank_colour(0)]
    for rank in range(4):
        assert wide[rank_colour(rank)] == pytest.approx((rank + 1) * unit, abs=0.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figures.computational_graph(node("", 1)), "a name of its own"),
        (
            lambda: figures.computational_graph(node("L", 1, inputs=[(node("L", 2), 1)])),
            "a name of its own",
        ),
        (lambda: figures.split_gradient([]), "1 to 8"),
        (lambda: figures.split_gradient([3] * 9), "1 to 8"),
        (lambda: figures.split_gradient([3, 0]), "at least one sample"),
    ],
)
def test_bad_arguments_are_rejected(call, words):
    with pytest.raises(ValueError, match=words):
        call()
