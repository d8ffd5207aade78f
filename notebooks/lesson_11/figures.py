"""The figures of lesson 11: a roofline, ranks' traces, memory over time, and reading times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from course_lib.teaching.figures.curves import LINE_COLOURS, draw, finish_axes, log_ticks
from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure, round_step
from course_lib.teaching.figures.palette import (
    ALARM,
    INK,
    PAPER,
    RULE,
    SOFT_INK,
    blend,
    rank_colour,
    text_on,
)

from .traces import Profile, Span, live_bytes

__all__ = ["Point", "memory_over_time", "ranks_of_a_step", "reading_times", "roofline"]

_MODEL_MARKERS = ("o", "s", "D", "^")
LABEL, ROW, GAP, AXIS = 70, 22, 14, 30
_SIZE = 13
_LETTER = 0.6 * _SIZE


class Point(NamedTuple):
    """A layer in the roofline.

    Attributes:
        name: the layer's name.
        model: the model that the layer belongs to; layers of one model have the same marker.
        flops: floating-point operations of one call.
        bytes: the bytes that one call has to read and write at least.
        seconds: the measured time of one call.
    """

    name: str
    model: str
    flops: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flops / self.seconds


def roofline(points: Sequence[Point], peak: float, bandwidths: Mapping[str, float]) -> Figure:
    """Draw layers below the roofs of a machine.

    Args:
        points: the layers, numbered in this order.
        peak: operations per second, the flat roof.
        bandwidths: bytes per second by the name of the memory, the slanted roofs; fastest last.

    Raises:
        ValueError: if there is no point, or no bandwidth.
    """
    if not points or not bandwidths:
        raise ValueError("a roofline needs points and at least one bandwidth")
    models = list(dict.fromkeys(point.model for point in points))

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        low = min(0.1, min(point.intensity for point in points) / 2)
        high = 3 * max(max(p.intensity for p in points), peak / min(bandwidths.values()))
        x = np.geomspace(low, high, 300)
        for number, (name, bandwidth) in enumerate(bandwidths.items()):
            roof = np.minimum(peak, x * bandwidth) / 1e9
            style = "-" if number == 0 else "--"
            axes.plot(x, roof, style, color=INK, linewidth=2, label=f"roof: {name}")
        for number, point in enumerate(points, 1):
            model = models.index(point.model)
            colour = LINE_COLOURS[model % len(LINE_COLOURS)]
            axes.plot(
                point.intensity, point.rate / 1e9, _MODEL_MARKERS[model % len(_MODEL_MARKERS)],
                color=colour, mec=INK, mew=0.8, ms=14,
            )  # fmt: skip
            axes.annotate(
                str(number), (point.intensity, point.rate / 1e9), ha="center", va="center",
                fontsize=10, fontweight="bold", color=text_on(colour),
            )  # fmt: skip
        axes.set(xscale="log", yscale="log")
        axes.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="speed (GFLOP/s)")
        log_ticks(axes.xaxis, "FLOP/byte")
        log_ticks(axes.yaxis, "GFLOP/s")
        finish_axes(axes)
        handles = axes.get_legend_handles_labels()[0]
        handles += [
            Line2D(
                [], [], linestyle="none", mec=INK, mew=0.8, ms=9,
                marker=_MODEL_MARKERS[models.index(p.model) % len(_MODEL_MARKERS)],
                color=LINE_COLOURS[models.index(p.model) % len(LINE_COLOURS)],
                label=f"{number} {p.name}",
            )
            for number, p in enumerate(points, 1)
        ]  # fmt: skip
        canvas.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)

    rows = (len(points) + len(bandwidths) + 1) // 2
    names = ", ".join(f"{number} {point.name}" for number, point in enumerate(points, 1))
    return draw(
        plot,
        "Roofline with logarithmic axes: speed in GFLOP/s over arithmetic intensity in FLOP per "
        f"byte; slanted roofs for {', '.join(bandwidths)} meet one flat roof; points: {names}.",
        3.6 + 0.23 * rows,
    )


def ranks_of_a_step(
    profiles: Sequence[Profile], start: float, end: float, title: str = "", section: str = "sync"
) -> Figure:
    """Draw what each rank did: its sections, and below them its outermost operators.

    Args:
        profiles: by rank, all on one clock.
        start: where the picture begins, in seconds on that clock.
        end: where the picture ends.
        title: the line above the picture.
        section: the section in which ranks wait for each other, which is hatched.

    Raises:
        ValueError: if the time is empty.
    """
    if not start < end:
        raise ValueError(f"the time from {start} to {end} s is empty")
    top = 40 if title else 14
    height = top + len(profiles) * (2 * ROW + GAP) + AXIS + 24
    drawing = Drawing(WIDTH, height)
    left, right = 16 + LABEL, WIDTH - 16
    bottom = height - AXIS - 24

    def x(time: float) -> float:
        share = (min(max(time, start), end) - start) / (end - start)
        return left + (right - left) * share

    if title:
        drawing.text(16, 22, title, size=16, bold=True, anchor="start")
    _milliseconds(drawing, x, start, end, top, bottom)
    for rank, profile in enumerate(profiles):
        y = top + rank * (2 * ROW + GAP)
        drawing.rank_label(rank, 16, y + ROW)
        colour = rank_colour(rank)
        for span in _shown(_outermost(profile.sections), start, end):
            waits = span.name == section
            fill = drawing.hatch(RULE) if waits else blend(colour, PAPER, 0.25)
            _bar(drawing, x, span, y, fill, "" if waits else text_on(blend(colour, PAPER, 0.25)))
        for span in _shown(_outermost(profile.operators), start, end):
            _bar(drawing, x, span, y + ROW, blend(colour, PAPER, 0.75), INK)
    y = height - 14
    drawing.text(16, y, "upper row: sections; lower row: operators;", size=_SIZE, anchor="start")
    drawing.rectangle(318, y - 7, 22, 14, fill=drawing.hatch(RULE), stroke=RULE, radius=0)
    drawing.text(346, y, section, size=_SIZE, anchor="start")
    drawing.text(WIDTH - 16, y, "time (ms) \u2192", size=_SIZE, fill=SOFT_INK, anchor="end")
    names = ", ".join(dict.fromkeys(span.name for p in profiles for span in p.sections))
    return drawing.finish(
        f"Traces of {len(profiles)} ranks on one clock, two rows each: sections ({names}), and "
        f"the operators in them. The time in {section} is hatched."
    )


def _milliseconds(drawing: Drawing, x, start: float, end: float, top: float, bottom: float) -> None:
    step = round_step(1e3 * (end - start) / 7)
    for tick in range(int(1e3 * (end - start) / step + 1e-9) + 1):
        place = x(start + tick * step / 1e3)
        drawing.line(place, top, place, bottom, stroke=RULE, width=1)
        drawing.text(place, bottom + 12, f"{tick * step:g}", size=_SIZE, fill=SOFT_INK)


def _outermost(spans: Sequence[Span]) -> list[Span]:
    found: list[Span] = []
    for span in spans:
        if not found or span.start >= found[-1].end:
            found.append(span)
    return found


def _shown(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    return [span for span in spans if span.start < end and span.end > start]


def _bar(drawing: Drawing, x, span: Span, y: float, fill: str, ink: str) -> None:
    width = x(span.end) - x(span.start)
    drawing.rectangle(
        x(span.start), y + 1, max(width, 0.6), ROW - 3, fill=fill, stroke=SOFT_INK, radius=0
    )
    words = span.name.removeprefix("aten::")
    if ink and width > _LETTER * len(words) + 6:
        middle = (x(span.start) + x(span.end)) / 2
        drawing.text(middle, y + ROW / 2, words, size=_SIZE, fill=ink)


def memory_over_time(profile: Profile) -> Figure:
    """Draw the bytes in use over the time of a profile, with its sections above.

    Raises:
        ValueError: if the profile has no allocations (they need ``profile_memory=True``).
    """
    if not profile.allocations:
        raise ValueError("no allocations: profile with profile_memory=True")
    live = live_bytes(profile.allocations)
    start = min(profile.allocations[0].time, profile.sections[0].start)

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        times = [1e3 * (allocation.time - start) for allocation in profile.allocations]
        mebibytes = np.array(live) / 2**20
        axes.fill_between(times, mebibytes, step="post", color="#56B4E9", alpha=0.6)
        axes.step(times, mebibytes, where="post", color=rank_colour(0), linewidth=1.5)
        top = 1.3 * max(mebibytes)
        for number, section in enumerate(profile.sections):
            begin, finish = 1e3 * (section.start - start), 1e3 * (section.end - start)
            axes.axvline(begin, color=SOFT_INK, linewidth=1, linestyle=":")
            axes.axvline(finish, color=SOFT_INK, linewidth=1, linestyle=":")
            place = 0.95 if number % 2 == 0 else 0.87
            axes.text((begin + finish) / 2, place * top, section.name, ha="center", va="top")
        peak = int(np.argmax(mebibytes))
        axes.plot(times[peak], mebibytes[peak], "v", color=ALARM, ms=9, label="most")
        axes.set(xlabel="time (ms)", ylabel="memory in use (MiB)", ylim=(0, top))
        axes.legend(loc="center right", facecolor=PAPER, edgecolor=RULE)
        finish_axes(axes, grid="y")

    names = ", ".join(span.name for span in profile.sections)
    return draw(
        plot,
        f"Memory in use, in MiB, over time in ms, through the sections {names}: it rises in "
        "steps to its maximum, which a triangle marks, and falls again.",
        3.6,
    )


def reading_times(seconds: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw bars of the time that each way of reading took, for each state of the cache.

    Args:
        seconds: for each state ("cold", "warm") the seconds of each way; the same ways in all.

    Raises:
        ValueError: if the states do not have the same ways.
    """
    ways = list(next(iter(seconds.values())))
    if any(list(times) != ways for times in seconds.values()):
        raise ValueError("each state needs the same ways of reading")

    def plot(canvas: Canvas) -> None:
        axes = canvas.subplots()
        height = 0.8 / len(seconds)
        for number, (state, times) in enumerate(seconds.items()):
            places = [row + (number - (len(seconds) - 1) / 2) * height for row in range(len(ways))]
            hatch = ("//", "")[number % 2]
            axes.barh(
                places, [1e3 * times[way] for way in ways], height, label=state, hatch=hatch,
                color=LINE_COLOURS[number], edgecolor=PAPER,
            )  # fmt: skip
        shortest = min(value for times in seconds.values() for value in times.values())
        axes.set(xscale="log", xlabel="time to read everything (ms)")
        axes.set_xlim(left=10 ** np.floor(np.log10(0.9e3 * shortest)))
        log_ticks(axes.xaxis, "ms")
        axes.set_yticks(range(len(ways)), ways)
        axes.invert_yaxis()
        finish_axes(axes, grid="x")
        canvas.legend(loc="outside upper center", ncols=len(seconds), frameon=False)

    return draw(
        plot,
        f"Bars of the time in ms to read the same samples from {', '.join(ways)}, each "
        f"{' and '.join(seconds)}, on a logarithmic axis.",
        1.6 + 0.55 * len(ways),
    )
