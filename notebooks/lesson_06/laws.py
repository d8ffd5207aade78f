"""What does not run in parallel sets the limit; Amdahl, Gustafson, Karp-Flatt.

Sources: Amdahl, "Validity of the single processor approach to achieving large scale computing
capabilities", AFIPS 1967; Gustafson, "Reevaluating Amdahl's law", CACM 31(5), 1988; Karp and
Flatt, "Measuring parallel processor performance", CACM 33(5), 1990. Speed-ups have no unit.
"""

from __future__ import annotations

from course_lib.teaching.cost.checked import count, positive

__all__ = ["amdahl", "amdahl_limit", "gustafson", "serial_fraction"]


def _fraction(serial: float) -> float:
    if not 0 <= serial <= 1:
        raise ValueError(f"the serial fraction must lie between 0 and 1, not {serial!r}")
    return serial


def amdahl(ranks: int, serial: float) -> float:
    """Return the speed-up of a fixed problem: 1 / (s + (1 - s) / R).

    Args:
        serial: s, the part of *one* rank's time that cannot be shared.
    """
    return 1.0 / (_fraction(serial) + (1.0 - serial) / count("ranks", ranks))


def amdahl_limit(serial: float) -> float:
    """Return the speed-up of infinitely many ranks, 1/s; infinite for s = 0."""
    return float("inf") if _fraction(serial) == 0 else 1.0 / serial


def gustafson(ranks: int, serial: float) -> float:
    """Return the speed-up of a problem that grows with R: s + (1 - s) R.

    Args:
        serial: s, the part of the *parallel* run's time that is not shared.
    """
    return _fraction(serial) + (1.0 - serial) * count("ranks", ranks)


def serial_fraction(ranks: int, speed_up: float) -> float:
    """Return s from a measured speed-up (Karp-Flatt): (1/S - 1/R) / (1 - 1/R).

    If it grows with R, the loss is communication rather than serial work.
    """
    if count("ranks", ranks) < 2:
        raise ValueError("one rank tells nothing about the serial fraction")
    return (1.0 / positive("speed_up", speed_up) - 1.0 / ranks) / (1.0 - 1.0 / ranks)
