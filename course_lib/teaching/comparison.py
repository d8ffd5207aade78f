"""Compares a learner's prediction with what was measured.

A number that you wrote down before teaches more than one that you are shown.
"""

from __future__ import annotations

import numbers
from typing import Any


def compare(
    prediction: object,
    measured: object,
    *,
    within: float = 0.0,
    unit: str = "",
    source: str = "Measured here",
) -> None:
    """Print your ``prediction`` beside what was ``measured``, and whether they agree.

    ``prediction``: None as long as you have not made one. ``within``: how far off a number may
    be and still count as right, as a fraction of what was measured. ``unit``: printed after
    numbers, e.g. "s". ``source``: where ``measured`` comes from, if nothing was measured,
    e.g. "By the formula". Tensors and arrays are compared as lists, texts and letters whether
    large or small.
    """
    prediction, measured = _plain(prediction), _plain(measured)
    found = _written(measured, unit)
    if prediction is None:
        print(f"You have not written down a prediction. {source}: {found}")
    elif _agree(prediction, measured, within):
        print(f"You predicted {_written(prediction, unit)}. {source}: {found}. Well predicted.")
    else:
        print(
            f"You predicted {_written(prediction, unit)}. {source}: {found}. "
            "What did your picture of it leave out? The next paragraph may tell."
        )


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _written(value: object, unit: str) -> str:
    if isinstance(value, float):
        value = f"{value:.3g}"
    return f"{value} {unit}".rstrip() if unit else f"{value}"


def _agree(prediction: Any, measured: Any, within: float) -> bool:
    if all(isinstance(value, numbers.Real) for value in (prediction, measured)):
        return abs(prediction - measured) <= within * abs(measured)
    if isinstance(prediction, list) and isinstance(measured, list):
        same_length = len(prediction) == len(measured)
        return same_length and all(map(lambda p, m: _agree(p, m, within), prediction, measured))
    if isinstance(prediction, str) and isinstance(measured, str):
        return prediction.strip().casefold() == measured.casefold()
    return prediction == measured
