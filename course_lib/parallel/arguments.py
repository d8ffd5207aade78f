"""Checks arguments where they are given, with errors that name them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from numbers import Real
from typing import Any


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return ``value`` as an int.

    Raises:
        TypeError: if it is no whole number.
        ValueError: if it is less than ``least``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    return number


def seconds(name: str, value: Any) -> float:
    """Return ``value``, a time.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is negative, infinite or not a number.
    """
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"{name} must be at least 0 seconds, and finite, not {value!r}")
    return float(value)


def function(name: str, value: Any, like: str) -> Callable:
    """Return ``value``, a function; ``like`` is an example of one in words.

    Raises:
        TypeError: if it cannot be called.
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function like {like}, not {value!r}")
    return value
