"""The map of lesson 13b has every framework, and no box lies on another."""

import itertools
import xml.etree.ElementTree as ElementTree

from rank_by_rank.lesson_13b.figures import _BOXES, framework_map
from rank_by_rank.lesson_13b.frameworks import FRAMEWORKS


def test_framework_map_has_alt_text_and_is_deterministic() -> None:
    figure = framework_map()
    ElementTree.fromstring(figure.svg)
    assert figure.svg == framework_map().svg
    assert "Horovod stands directly on NCCL, gloo or MPI" in figure.alt


def test_framework_map_shows_every_framework() -> None:
    words = " ".join(box[0] for box in _BOXES)
    titles = {f.title.removeprefix("Lightning ") for f in FRAMEWORKS.values()} - {"one process"}
    assert [title for title in titles if title not in words] == []


def test_boxes_do_not_overlap() -> None:
    for one, other in itertools.combinations(_BOXES, 2):
        beside = one[1] + one[2] <= other[1] or other[1] + other[2] <= one[1]
        above = one[4] < other[3] or other[4] < one[3]
        assert beside or above, (one, other)
