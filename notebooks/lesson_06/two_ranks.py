"""What two ranks gained over one in each round of a measurement, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from course_lib.teaching.figures.curves import measured_and_predicted
from course_lib.teaching.figures.figure import Figure

from .scaling import speed_up

__all__ = ["Gain", "picture", "table"]

_TITLES = f"""\
{"T_comp (ms)":>42} T_sync {"predicted":>19}   measured speed-up
            parameters batch  alone   both   (ms)  ratio     S1    S2  median  middle half"""


class Gain(NamedTuple):
    """Two ranks against one, with one network and batch size.

    Attributes:
        seconds: T_comp of one rank alone, T_comp of both, and T_sync, as medians.
        ratio: T_sync over T_comp of both, the median.
        step: T_comp of both plus T_sync, over T_comp of one alone, the median.
        measured: the quartiles of the measured speed-up.
    """

    network: str
    parameters: int
    batch: int
    seconds: tuple[float, ...]
    ratio: float
    step: float
    measured: tuple[float, ...]

    @classmethod
    def of(cls, network: str, parameters: int, batch: int, rounds: Sequence) -> Gain:
        """Return the medians and quartiles of ``rounds``, each of four times in seconds.

        The times are T_comp of one rank alone, T_comp of both, T_sync, and a whole step of both.
        """
        alone, comp, sync, together = np.array(rounds).T
        return cls(
            *(network, parameters, batch),
            tuple(float(np.median(seconds)) for seconds in (alone, comp, sync)),
            float(np.median(sync / comp)),
            float(np.median((comp + sync) / alone)),
            tuple(map(float, np.percentile(2 * alone / together, [25, 50, 75]))),
        )

    def __str__(self) -> str:
        times = " ".join(f"{1e3 * seconds:6.2f}" for seconds in self.seconds)
        predicted = f"{speed_up(2, 1.0, self.ratio):6.2f} {2 / self.step:5.2f}"
        low, median, high = self.measured
        row = f"{self.network:10} {self.parameters:11,} {self.batch:5} {times} {self.ratio:6.2f}"
        return f"{row} {predicted} {median:7.2f}  {low:.2f} to {high:.2f}"


def table(gains: Sequence[Gain]) -> str:
    """Return a row for each network and batch size: times, the predicted S1 and S2, measured."""
    return "\n".join([_TITLES, *map(str, gains)])


def picture(gains: Sequence[Gain]) -> Figure:
    """Plot the measured speed-ups against the quantity that predicts S2, and S2 as a line."""
    low, median, high = zip(*(gain.measured for gain in gains), strict=True)
    return measured_and_predicted(
        [gain.step for gain in gains],
        median,
        lambda step: 2 / step,
        spread=list(zip(low, high, strict=True)),
        xlabel="(T_comp of both + T_sync) / T_comp of one alone",
        ylabel="speed-up of 2 ranks over 1",
        title=f"{len({gain.network for gain in gains})} networks, "
        f"{len({gain.batch for gain in gains})} batch sizes",
        alt="Speed-up of two ranks over one against T_comp of both ranks plus T_sync, over T_comp "
        f"of one alone, logarithmic axes: {len(gains)} measured points, each with a bar for the "
        "middle half of its rounds, and the predicted line, which falls straight and is 1 where "
        "the horizontal axis says 2.",
    )
