"""Compares a learner's prediction with what was measured.

A number that you wrote down before teaches more than one that you are shown.
"""

from __future__ import annotations

import functools
import numbers
import re
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
    large or small, in brackets or not. A number may be a text: "0.75", "3/4" or "75%".
    """
    prediction, measured = _plain(prediction), _plain(measured)
    found = _written(measured, unit)
    if prediction is None:
        print(f"You have not written down a prediction. {source}: {found}")
    elif _agree(prediction, measured, within, unit):
        print(f"You predicted {_written(prediction, unit)}. {source}: {found}. Well predicted.")
    else:
        print(
            f"You predicted {_written(prediction, unit)}. {source}: {found}. What did your "
            "reasoning leave out? The next paragraph may tell you."
        )


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _written(value: object, unit: str) -> str:
    if isinstance(value, float):
        value = f"{value:.3g}"
    return f"{value} {unit}".rstrip() if unit else f"{value}"


_DIGITS = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER = re.compile(rf"({_DIGITS})\s*(?:/\s*({_DIGITS}))?\s*(%?)")


def _agree(prediction: Any, measured: Any, within: float, unit: str) -> bool:
    if isinstance(prediction, str) and isinstance(measured, numbers.Real):
        prediction = _number(prediction, unit, of_one=abs(float(measured)) <= 1)
    if all(isinstance(value, numbers.Real) for value in (prediction, measured)):
        return abs(prediction - measured) <= within * abs(measured)
    if isinstance(prediction, list) and isinstance(measured, list):
        same_length = len(prediction) == len(measured)
        agree = functools.partial(_agree, within=within, unit=unit)
        return same_length and all(map(agree, prediction, measured))
    if isinstance(prediction, str) and isinstance(measured, str):
        return _bare(prediction) == _bare(measured)
    return prediction == measured


def _bare(text: str) -> str:
    """Return a text or a letter without the usual marks around it: ``(B)``, ``b.``."""
    return text.strip().strip("()[].\"'").strip().casefold()


def _number(text: str, unit: str, of_one: bool) -> float | str:
    """Return the number in a text, the text itself if it has none.

    ``of_one``: whether "75%" is 0.75, and not 75.
    """
    bare = text.strip().removesuffix(unit).strip()
    found = _NUMBER.fullmatch(bare)
    if found is None:
        return text
    above, below, percent = found.groups()
    if float(below or 1) == 0:
        return text
    value = float(above) / float(below or 1)
    return value / 100 if percent and of_one else value
