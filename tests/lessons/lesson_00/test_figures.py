"""The figure of lesson 00: the digits and their labels."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from rank_by_rank.lesson_00.figures import labelled_images

PICTURES = np.eye(8).reshape(1, 1, 8, 8).repeat(3, axis=0)


def test_each_image_is_below_its_label() -> None:
    figure = labelled_images(PICTURES, [0, 5, 9])
    drawn = ElementTree.fromstring(figure.svg).iter()
    assert sum(element.tag.endswith("image") for element in drawn) == 3
    assert figure.alt == "3 images of 8 by 8 pixels, labelled 0, 5, 9."
    assert figure.svg == labelled_images(PICTURES, [0, 5, 9]).svg


def test_labelled_images_rejects_missing_labels() -> None:
    with pytest.raises(ValueError, match="3 images with 2 labels"):
        labelled_images(PICTURES, [0, 5])
