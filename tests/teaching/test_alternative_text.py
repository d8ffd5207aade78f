"""A picture without words is found, wherever it comes from."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_output

from course_lib.teaching import figures
from tools.lint_lessons import (
    pictures_without_words,
    pictures_without_words_in_text,
)

SVG = '<svg xmlns="http://www.w3.org/2000/svg">{}<path d="M 0 0"/></svg>'


@pytest.mark.parametrize(
    "text",
    [
        "![](ring.svg)",
        "![  ](ring.svg)",
        "text <img src='ring.svg'> text",
        '<img src="ring.svg" alt="">',
        '<IMG ALT=" " SRC="ring.svg">',
        SVG.format(""),
        SVG.format("<title> </title>"),
        '![a ring](ring.svg) and <img src="ring.svg">',
    ],
)
def test_missing_alt_text_is_found(text: str) -> None:
    assert len(list(pictures_without_words_in_text(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "![a ring](ring.svg)",
        "a[0] (not a picture), wow! [a link](ring.svg)",
        '<img alt="1 &gt; 0" src="ring.svg">',
        "<img src='ring.svg' alt='a ring'>",
        SVG.format("<title>a ring</title>"),
    ],
)
def test_image_with_alt_text_passes(text: str) -> None:
    assert list(pictures_without_words_in_text(text)) == []


def shown(data: dict, **metadata):
    return new_output("display_data", data=data, metadata=metadata)


def test_images_in_outputs_are_checked() -> None:
    png = {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure size 700x110 with 10 Axes>"}
    assert list(pictures_without_words(shown(png))) == ["image/png"]
    assert list(pictures_without_words(shown(png, **{"image/png": {"alt": "ten digits"}}))) == []
    assert len(list(pictures_without_words(shown({"text/html": '<img src="ring.svg">'})))) == 1
    assert list(pictures_without_words(new_output("stream", text='<img src="ring.svg">'))) == []
    drawn = figures.collective("broadcast")._repr_mimebundle_()
    assert list(pictures_without_words(shown(drawn))) == []
