"""A number that makes no sense is refused at the door, with its name."""

from __future__ import annotations

import math

__all__ = ["at_least", "count", "positive"]


def at_least(name: str, value: float, least: float = 0.0) -> float:
    """Return ``value`` if it is finite and at least ``least``, else raise ValueError."""
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name} must be a finite number of at least {least:g}, not {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is finite and above 0, else raise ValueError."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")
    return float(value)


def count(name: str, value: int, least: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``least``, else raise ValueError."""
    if not math.isfinite(value) or value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)
