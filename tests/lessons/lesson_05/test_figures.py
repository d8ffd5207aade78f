"""The figure of lesson 05: results of several seeds beside published ones."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from rank_by_rank.lesson_05.figures import measured_beside_published


def drawn():
    return measured_beside_published(
        {"one": [1.0, 2.0], "other": [30.0, 20.0]},
        {"one": 23.6, "other": 41.67},
        xlabel="error (%)",
        published_xlabel="error (%)",
    )


def test_figure_has_alt_text_and_is_deterministic() -> None:
    figure = drawn()
    ElementTree.fromstring(figure.svg)
    assert "one 23.6, other 41.67" in figure.alt
    assert figure.svg == drawn().svg


@pytest.mark.parametrize(
    ("measured", "published", "words"),
    [
        ({"a": [1.0]}, {"b": 1.0}, "labels differ"),
        ({"a": []}, {"a": 1.0}, "no runs of 'a'"),
        ({"a": [0.0]}, {"a": 1.0}, "positive"),
    ],
)
def test_bad_arguments_are_rejected(measured, published, words) -> None:
    with pytest.raises(ValueError, match=words):
        measured_beside_published(measured, published, xlabel="", published_xlabel="")
