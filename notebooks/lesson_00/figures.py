"""The figure of lesson 00: the images that the network is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure as Canvas

from course_lib.teaching.figures.curves import draw
from course_lib.teaching.figures.figure import Figure

__all__ = ["labelled_images"]

_INCHES = 1.15  # height of a row with its labels


def labelled_images(pictures: np.ndarray, labels: Sequence[int]) -> Figure:
    """Draw grey images in one row, each below its label.

    Args:
        pictures: (N, 1, H, W) or (N, H, W), a tensor or an array; the largest value is black.
        labels: N labels.

    Raises:
        ValueError: if the numbers of images and labels differ.
    """
    pictures = np.asarray(pictures)
    labels = [str(int(label)) for label in labels]
    if len(labels) != len(pictures):
        raise ValueError(f"{len(pictures)} images with {len(labels)} labels")
    *_, height, width = pictures.shape

    def plot(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(labels), squeeze=False)[0]
        for panel, picture, label in zip(panels, pictures, labels, strict=True):
            panel.imshow(picture.reshape(height, width), cmap="gray_r")
            panel.set(title=label, xticks=[], yticks=[])

    alt = f"{len(labels)} images of {width} by {height} pixels, labelled {', '.join(labels)}."
    return draw(plot, alt, _INCHES)
