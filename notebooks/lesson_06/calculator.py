"""The calculator of lesson 06: change one setting at a time, and see when more ranks no longer pay.

:func:`calculator` shows sliders and a picture that follows them. Where sliders cannot be moved,
as in a stored notebook, a test or a web page, it shows the picture for the given numbers.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from course_lib.teaching.cost import Link, cost
from course_lib.teaching.figures.figure import Figure

from .figures import predicted_lines
from .published_runs import BACKWARD
from .scaling import efficiency, fewest_ranks_that_pay, pays, speed_up

__all__ = ["Setting", "calculator", "speed_up_figure", "summary"]

ALGORITHMS = ("recursive doubling", "ring", "Rabenseifner")
MOST_RANKS = 4096


@dataclass(frozen=True)
class Setting:
    """The inputs of the calculator.

    Attributes:
        parameters: of the model; the gradient has 4 bytes for each.
        batch: B, samples per rank and step.
        sample_seconds: T_comp for one sample; T_comp is ``batch`` times that.
        latency: seconds per message.
        bandwidth: bytes/s of a link.
        ranks: R, the number of ranks.
    """

    parameters: float = 25.6e6
    batch: float = 32
    sample_seconds: float = 0.006
    latency: float = 20e-6
    bandwidth: float = 1.25e9
    ranks: int = 64

    @property
    def comp_seconds(self) -> float:
        """T_comp in seconds."""
        return self.batch * self.sample_seconds

    def sync_seconds(self, ranks: int) -> float:
        """Return T_sync in seconds, by the fastest of three algorithms, without overlap."""
        link = Link(self.latency, self.bandwidth)
        return min(cost(name, ranks, 4 * self.parameters).seconds(link) for name in ALGORITHMS)

    def exposed_seconds(self, ranks: int) -> float:
        """Return the seconds of T_sync that remain if it overlaps perfectly with backward."""
        # What perfect overlap can hide is backward's part of computing.
        return max(0.0, self.sync_seconds(ranks) - BACKWARD * self.comp_seconds)


def summary(setting: Setting) -> str:
    """Return the results of lesson 06's formulas, in a few lines."""
    comp, sync = setting.comp_seconds, setting.sync_seconds(setting.ranks)
    fewest = fewest_ranks_that_pay(comp, setting.sync_seconds, MOST_RANKS)
    pay = f"the smallest R that pays is {fewest}" if fewest else f"no R up to {MOST_RANKS:,} pays"
    verdict = "pays" if pays(setting.ranks, comp, sync) else "does not pay"
    hidden = setting.exposed_seconds(setting.ranks)
    return (
        f"T_comp = {_time(comp)}, T_sync = {_time(sync)}: T_sync / T_comp = {sync / comp:.3g}, "
        f"R - 1 = {setting.ranks - 1:,}: it {verdict}\n"
        f"speed-up {speed_up(setting.ranks, comp, sync):.3g} "
        f"(efficiency {efficiency(setting.ranks, comp, sync):.0%}), with perfect overlap "
        f"{speed_up(setting.ranks, comp, hidden):.3g} "
        f"({efficiency(setting.ranks, comp, hidden):.0%})\n"
        f"{pay} (all predicted)"
    )


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def speed_up_figure(setting: Setting) -> Figure:
    """Return the speed-up against R: perfect, without overlap and with perfect overlap."""
    ranks = [2**k for k in range(int(math.log2(MOST_RANKS)) + 1)]
    comp = setting.comp_seconds

    def gain(count: int, sync) -> float:
        return speed_up(count, comp, sync(count))

    predicted = {
        "perfect": np.array(ranks, dtype=float),
        "perfect overlap": [gain(r, setting.exposed_seconds) for r in ranks],
        "no overlap": [gain(r, setting.sync_seconds) for r in ranks],
    }
    here = gain(setting.ranks, setting.sync_seconds)
    return predicted_lines(
        ranks,
        predicted,
        xlabel="ranks R",
        ylabel="speed-up (times one rank)",
        marks={f"R = {setting.ranks}: {here:.3g}": (setting.ranks, here)},
        levels={"one rank": 1.0},
        title="Predicted speed-up",
        alt=(
            f"Predicted speed-up over the number of ranks up to {MOST_RANKS}, logarithmic axes: "
            "perfect, with perfect overlap, and without overlap, for "
            f"{setting.parameters:,.0f} parameters, {setting.batch:g} samples a rank, "
            f"{1e6 * setting.latency:g} us and {setting.bandwidth / 1e9:g} GB/s. At "
            f"{setting.ranks} ranks it is {here:.3g} without overlap."
        ),
    )


class _Static:
    """The picture and the words for one setting."""

    def __init__(self, setting: Setting) -> None:
        self._figure, self._words = speed_up_figure(setting), summary(setting)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {
            "text/html": f"{_html(self._figure)}<pre>{self._words}</pre>",
            "text/plain": f"{self._figure!r}\n{self._words}",
        }


def _html(figure: Figure) -> str:
    return figure._repr_mimebundle_()["text/html"]


def calculator(interactive: bool | None = None, **setting: float):
    """Show the speed-up against R, for settings that you can change.

    Args:
        interactive: sliders or a still picture. None: sliders in a notebook that a person looks
            at, the picture where the variable IPP_NONINTERACTIVE is set or ipywidgets is missing.
        **setting: fields of :class:`Setting` to begin with.

    Returns:
        Something that a notebook shows: a widget, or the picture with the words below it.
    """
    chosen = Setting(**setting)
    if interactive is None:
        interactive = os.environ.get("IPP_NONINTERACTIVE", "0") in ("", "0") and _has_widgets()
    return _with_sliders(chosen) if interactive else _Static(chosen)


def _has_widgets() -> bool:
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True


def _with_sliders(setting: Setting):
    import ipywidgets as widgets

    def slider(label: str, value: float, low: float, high: float, readout: str = ".3g"):
        return widgets.FloatLogSlider(
            value=value,
            min=low,
            max=high,
            step=0.05,
            description=label,
            readout_format=readout,
            continuous_update=False,
            style={"description_width": "11em"},
            layout={"width": "34em"},
        )

    sliders = {
        "ranks": widgets.SelectionSlider(
            options=sorted({*(2**k for k in range(1, 13)), setting.ranks}),
            value=setting.ranks,
            description="ranks R",
            continuous_update=False,
            style={"description_width": "11em"},
            layout={"width": "34em"},
        ),
        "parameters": slider("parameters", setting.parameters, 3, 12),
        "batch": slider("samples a rank", setting.batch, 0, 4),
        "sample_seconds": slider("seconds a sample", setting.sample_seconds, -6, 1),
        "latency": slider("latency (s)", setting.latency, -7, -1, ".2e"),
        "bandwidth": slider("bandwidth (bytes/s)", setting.bandwidth, 5, 12),
    }
    picture = widgets.HTML()
    words = widgets.HTML()

    def show(_=None) -> None:
        now = Setting(**{name: knob.value for name, knob in sliders.items()})
        picture.value = _html(speed_up_figure(now))
        words.value = f"<pre>{summary(now)}</pre>"

    for knob in sliders.values():
        knob.observe(show, names="value")
    show()
    # The words first: on a small screen the picture would push them out of sight.
    return widgets.VBox([*sliders.values(), words, picture])
