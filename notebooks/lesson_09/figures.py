"""The figures of lesson 09: a sequence diagram of messages, and a histogram of staleness.

A sequence diagram is drawn from recorded events, with one column per rank and time running down.
The distance between two rows grows with the time between them, but not in proportion: a message
takes microseconds and a gradient milliseconds, and both have to be visible. Each row shows its
time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from course_lib.teaching.figures.curves import LINE_COLOURS, draw, finish_axes
from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure
from course_lib.teaching.figures.palette import INK, RULE, SOFT_INK, rank_colour, text_on

__all__ = [
    "histogram",
    "sequence",
]

TIMES, TOP, ROW, LEAST, BAR = 78, 70, 20, 3, 12  # pixels
SEND_WAITS_S = 1e-3  # a send that takes less has not waited for the receiver
_HATCHES = ("", "///", "...", "xx")


# ---- sequence diagram ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Arrow:
    source: int
    dest: int
    label: str
    sent: float
    received: float


@dataclass(frozen=True)
class _Span:
    rank: int
    start: float
    end: float
    waits: bool


def sequence(
    events: Iterable,
    *,
    roles: Mapping[int, str] | None = None,
    first: float | None = None,
    last: float | None = None,
    title: str = "",
    alt: str = "",
) -> Figure:
    """Draw the messages of several ranks as a sequence diagram.

    Args:
        events: those of all ranks; each has the attributes ``rank``, ``kind`` ("send" or
            "recv"), ``peer``, ``label``, ``start`` and ``end`` in seconds of one clock, such as
            :class:`~rank_by_rank.lesson_09.message_recording.Message`. Solid: the rank works;
            hatched: it is inside a send or a receive, that is, it waits.
        roles: the label above a rank's column, e.g. ``{0: "server"}``; by default "rank r".
        first: seconds after the earliest event from which to draw; by default all.
        last: seconds after the earliest event up to which to draw; by default all.
        title: above the picture.
        alt: alternative text; by default all messages in order.

    Raises:
        ValueError: if no message was sent and received in that time.
    """
    events = [event for event in events if event.peer is not None and event.end is not None]
    begin = min((event.start for event in events), default=0.0)
    after = begin + (0.0 if first is None else first)
    before = math.inf if last is None else begin + last
    arrows = [a for a in _arrows(events) if after <= a.sent and a.received <= before]
    if not arrows:
        raise ValueError("no message was sent and received in that time")
    ranks = sorted({event.rank for event in events} | {event.peer for event in events})
    spans = _spans(events, min(a.sent for a in arrows), max(a.received for a in arrows))
    y, foot = _rows(arrows, spans, TOP + (24 if title else 0))
    drawing = Drawing(WIDTH, foot + 40)
    step = (WIDTH - TIMES - 60) / max(1, len(ranks) - 1)
    x = {rank: TIMES + 24 + index * step for index, rank in enumerate(ranks)}
    if title:
        drawing.text(16, 24, title, size=16, bold=True, anchor="start")
    _draw_lanes(drawing, ranks, roles or {}, x, foot, 24 if title else 0)
    for span in spans:
        _draw_span(drawing, span, x[span.rank], y)
    for arrow in arrows:
        _draw_arrow(drawing, arrow, x, y)
        drawing.text(
            TIMES - 22, y[arrow.sent], f"{1e3 * (arrow.sent - begin):.1f}",
            size=13, fill=SOFT_INK, anchor="end",
        )  # fmt: skip
    drawing.text(16, foot + 22, "time in ms \u2193", size=13, fill=SOFT_INK, anchor="start")
    _draw_key(drawing, rank_colour(ranks[-1]), foot + 22)
    return drawing.finish(alt or _in_words(ranks, roles or {}, arrows, title))


def _arrows(events: list) -> list[_Arrow]:
    """Match receives with sends: between two ranks, messages of one label keep their order."""
    sent: dict[tuple, deque] = defaultdict(deque)
    for event in sorted(events, key=lambda event: event.start):
        if event.kind == "send":
            sent[event.rank, event.peer, event.label].append(event)
    found = []
    for event in sorted(events, key=lambda event: event.end):
        waiting = sent[event.peer, event.rank, event.label]
        if event.kind == "recv" and waiting:
            start = waiting.popleft().start
            # Clocks of two machines may differ; an arrow never points back in time.
            arrow = _Arrow(event.peer, event.rank, event.label, start, max(start, event.end))
            found.append(arrow)
    return sorted(found, key=lambda arrow: (arrow.sent, arrow.received))


def _spans(events: list, first: float, last: float) -> list[_Span]:
    """Return when each rank works and waits; it waits in a receive or a slow send."""
    found = []
    by_rank: dict[int, list] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.start):
        by_rank[event.rank].append(event)
    for rank, mine in by_rank.items():
        working = mine[0].start
        for event in mine:
            if event.kind == "send" and event.end - event.start < SEND_WAITS_S:
                continue
            found.append(_Span(rank, working, event.start, waits=False))
            found.append(_Span(rank, event.start, event.end, waits=True))
            working = event.end
        found.append(_Span(rank, working, mine[-1].end, waits=False))
    cut = [_Span(s.rank, max(s.start, first), min(s.end, last), s.waits) for s in found]
    return [span for span in cut if span.end > span.start]


def _rows(arrows: list[_Arrow], spans: list[_Span], top: float) -> tuple[dict[float, float], float]:
    """Give each time a height: at least a row between two sends, more where more time passes."""
    sends = {arrow.sent for arrow in arrows}
    receivers = defaultdict(set)
    for arrow in arrows:
        receivers[arrow.received].add(arrow.dest)
    times = sends | set(receivers) | {time for span in spans for time in (span.start, span.end)}
    y, height, row, before = {}, top, -math.inf, None
    received: dict[int, float] = {}  # the height of the last arrow head at each rank
    for time in sorted(times):
        if before is not None:
            height += max(LEAST, min(34, 5 * math.log2(1 + (time - before) / 2e-4)))
        if time in sends:
            height = row = max(height, row + ROW)
        for rank in receivers.get(time, ()):
            height = received[rank] = max(height, received.get(rank, -math.inf) + ROW)
        y[time], before = height, time
    return y, height


def _draw_lanes(drawing: Drawing, ranks, roles, x, foot: float, down: float) -> None:
    for rank in ranks:
        colour, words = rank_colour(rank), roles.get(rank, f"rank {rank}")
        width = 0.62 * 14 * len(words) + 14
        drawing.line(x[rank], 48 + down, x[rank], foot + 6, stroke=RULE, width=2)
        # The outer plates stay on the paper.
        left = min(max(x[rank] - width / 2, 8), WIDTH - 8 - width)
        drawing.rectangle(left, 22 + down, width, 26, fill=colour, radius=13)
        drawing.text(left + width / 2, 35 + down, words, fill=text_on(colour), bold=True)


def _draw_span(drawing: Drawing, span: _Span, x: float, y: Mapping[float, float]) -> None:
    colour = rank_colour(span.rank)
    fill = drawing.hatch(colour) if span.waits else colour
    height = y[span.end] - y[span.start]
    drawing.rectangle(
        x - BAR / 2, y[span.start], BAR, height, fill=fill, stroke=colour, radius=2
    )  # fmt: skip


def _draw_arrow(drawing: Drawing, arrow: _Arrow, x, y) -> None:
    right = 1 if x[arrow.dest] > x[arrow.source] else -1
    x1, x2 = x[arrow.source] + right * BAR / 2, x[arrow.dest] - right * BAR / 2
    y1, y2 = y[arrow.sent], y[arrow.received]
    drawing.line(x1, y1, x2, y2, stroke=rank_colour(arrow.source), width=2, arrow=True)
    if not arrow.label:
        return
    # Between the outer rank's column and the one before it, where no other column is in the way.
    columns = sorted(x.values())
    outer = max(x[arrow.source], x[arrow.dest])
    middle = (outer + columns[columns.index(outer) - 1]) / 2
    share = (middle - x1) / (x2 - x1)
    drawing.plate(middle, y1 + share * (y2 - y1), arrow.label)


def _draw_key(drawing: Drawing, colour: str, y: float) -> None:
    for left, fill, words in (
        (WIDTH - 190, colour, "works"),
        (WIDTH - 100, drawing.hatch(colour), "waits"),
    ):
        drawing.rectangle(left, y - 7, BAR, 14, fill=fill, stroke=colour, radius=2)
        drawing.text(left + BAR + 8, y, words, size=13, fill=SOFT_INK, anchor="start")


def _in_words(ranks, roles, arrows: list[_Arrow], title: str) -> str:
    names = {rank: roles.get(rank, f"rank {rank}") for rank in ranks}
    heading = f"{title}: s" if title else "S"
    lines = [f"{heading}equence diagram of {', '.join(names.values())}."]
    for a in arrows:
        lines.append(f'{names[a.source]} sends "{a.label}" to {names[a.dest]}.')
    return " ".join(lines)


# ---- histogram ----------------------------------------------------------------------------------


def histogram(
    runs: Mapping[str, Iterable[int]],
    *,
    predicted: Mapping[str, float] | float | None = None,
    xlabel: str = "staleness (updates)",
    ylabel: str = "gradients",
    title: str = "",
    alt: str = "",
) -> Figure:
    """Draw one panel per run: a bar per whole number, a solid line at the mean.

    Args:
        runs: maps a label to whole numbers.
        predicted: a number, or one per label, drawn as a dashed line.
        xlabel: below the panels.
        ylabel: beside the first panel.
        title: above all panels.
        alt: alternative text; leave measured numbers out of it.

    Raises:
        ValueError: if there is no run, or one without numbers.
    """
    counts = {label: Counter(sorted(map(int, values))) for label, values in runs.items()}
    empty = [label for label, counted in counts.items() if not counted]
    if not counts or empty:
        raise ValueError(f"no numbers to count{f' in {empty[0]!r}' if empty else ''}")
    if not isinstance(predicted, Mapping):
        predicted = {} if predicted is None else dict.fromkeys(counts, predicted)
    most = max(max(counted) for counted in counts.values())

    def plot(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(counts), squeeze=False, sharex=True, sharey=True)[0]
        styles = zip(panels, counts.items(), LINE_COLOURS, _HATCHES * 2, strict=False)
        for axes, (label, counted), colour, hatch in styles:
            axes.bar(
                counted.keys(), counted.values(), width=0.8, color=colour, edgecolor=INK,
                linewidth=0.6, hatch=hatch,
            )  # fmt: skip
            mean = sum(value * times for value, times in counted.items()) / counted.total()
            axes.axvline(mean, color=INK, linewidth=2, label=f"mean {mean:.2f}, measured")
            if label in predicted:
                axes.axvline(
                    predicted[label], color=INK, linewidth=2, linestyle=(0, (1, 1.5)),
                    label=f"{predicted[label]:g}, predicted",
                )  # fmt: skip
            axes.set(title=label, xlabel=xlabel, xlim=(-0.7, max(most, 1) + 0.7))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
            finish_axes(axes)
            axes.legend(loc="upper right", frameon=False, fontsize=10)
        panels[0].set_ylabel(ylabel)
        if title:
            canvas.suptitle(title, fontsize=13, fontweight="bold")

    alt = alt or f"{title or 'Histogram'}: {ylabel} over {xlabel} for {'; '.join(counts)}." + (
        " Solid line: the mean; dotted line: predicted." if predicted else " Line: the mean."
    )
    return draw(plot, alt, height=3.0)
