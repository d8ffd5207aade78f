"""Draws the activity of each rank or device over time.

Each has a lane; time runs to the right, and idle time is hatched: it is paid for like the rest.
Work that moves data is drawn pale, work that computes solid.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .figure import WIDTH, Drawing, Figure, round_step
from .palette import INK, PAPER, RULE, SOFT_INK, blend, rank_colour, text_on

MARGIN, LABEL, LANE, BAR = 16, 76, 40, 26
AXIS, KEY_LINE = 42, 20
PALE = 0.72  # how much paper is mixed into the colour of a lane's moves
SIZE = 13
LETTER = 0.62 * SIZE
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}


@dataclass(frozen=True)
class Busy:
    """A lane was busy with ``label`` from ``start`` to ``end``; ``moves``: moving data."""

    label: str
    start: float
    end: float
    moves: bool = False


def timeline(
    lanes: Mapping[Any, Iterable[Busy | tuple]] | Sequence[Iterable[Busy | tuple]],
    *,
    unit: str = "ms",
    moves: Iterable[str] = (),
    start: float | None = None,
    end: float | None = None,
    marks: Mapping[str, float] | None = None,
    ends: Mapping[Any, float] | None = None,
    title: str = "",
    alt: str = "",
) -> Figure:
    """Draw the activity of each lane over time.

    ``lanes``: a list of spans for each lane, by the lane's name. A whole number is a rank, and
    gets the rank's plate and colour; a list of lanes is ranks 0, 1, 2, ...; any other name is
    written as it is, and lanes take their colours in order. A span is a :class:`Busy` or a tuple
    ``(label, start, end)``, in seconds on any clock; the picture starts at ``start``, by default
    the first start, and ends at ``end``. A span whose label is in ``moves`` moves data. ``unit``:
    of the axis, "s", "ms" or "us"; for anything else, as "steps", times are not converted.
    ``marks``: named moments, drawn across all lanes. ``ends``: for a lane that ends before the
    picture, such as that of a process that dies, when it does; it is not idle afterwards.

    A label that does not fit into its span becomes a number, explained below. Spans of a lane may
    touch; where two overlap, the later one is drawn over the earlier one.

    ``alt``: alternative text. The default tells all labels and shares of idle time; give one of
    your own where times are measured, so that it is the same in each run.

    Raises ValueError if one ends before it starts or is cut off, or if there is neither a span nor
    a ``start`` and ``end``.
    """
    named = lanes.items() if isinstance(lanes, Mapping) else enumerate(lanes)
    moving = set(moves)
    rows = [(name, [_busy(span, moving) for span in spans]) for name, spans in named]
    everything = [span for _, spans in rows for span in spans]
    if not everything and (not rows or start is None or end is None):
        raise ValueError("there is nothing to draw: no lane has a span")
    for span in everything:
        if not (math.isfinite(span.start) and math.isfinite(span.end) and span.start <= span.end):
            raise ValueError(f"{span} ends before it starts, or is not finite")
    first = min(span.start for span in everything) if start is None else start
    last = max(span.end for span in everything) if end is None else end
    for span in everything:
        if span.start < first or span.end > last:
            raise ValueError(f"{span} is outside the picture, which goes from {first} to {last}")
    return _Timeline(rows, first, last, unit, marks or {}, ends or {}, title).draw(alt)


def idle_share(spans: Iterable[Busy | tuple], start: float, end: float) -> float:
    """Return the fraction of the time from ``start`` to ``end`` in which a lane does nothing."""
    if end <= start:
        raise ValueError(f"the time from {start} to {end} is empty")
    return sum(b - a for a, b in _gaps([_busy(s, ()) for s in spans], start, end)) / (end - start)


def _busy(span: Busy | tuple, moving: Collection[str]) -> Busy:
    span = span if isinstance(span, Busy) else Busy(*span)
    return Busy(span.label, span.start, span.end, span.moves or span.label in moving)


def _gaps(spans: list[Busy], start: float, end: float) -> list[tuple[float, float]]:
    """The times in which no span is on; spans may overlap."""
    found, reached = [], start
    for span in sorted(spans, key=lambda span: span.start):
        if span.start > reached:
            found.append((reached, min(span.start, end)))
        reached = max(reached, span.end)
    if reached < end:
        found.append((reached, end))
    return found


class _Timeline:
    def __init__(
        self,
        rows: list[tuple[int | str, list[Busy]]],
        first: float,
        last: float,
        unit: str,
        marks: Mapping[str, float],
        ends: Mapping[Any, float],
        title: str,
    ) -> None:
        self.rows, self.first, self.last, self.unit = rows, first, last, unit
        self.marks, self.ends, self.title = marks, ends, title
        self.top = (36 if title else 12) + (20 if marks else 0)
        names = [name for name, _ in rows if not isinstance(name, int)]
        label = max([LABEL, *(20 + LETTER * len(name) for name in names)])
        self.left, self.right = MARGIN + label, WIDTH - MARGIN
        self.bottom = self.top + len(rows) * LANE
        self.numbers = self._number_the_narrow()
        self.key = self._key_lines()
        self.drawing = Drawing(WIDTH, self.bottom + AXIS + KEY_LINE * (len(self.key) + 1))

    def x(self, time: float) -> float:
        share = (time - self.first) / max(self.last - self.first, 1e-12)
        return self.left + (self.right - self.left) * share

    def draw(self, alt: str) -> Figure:
        drawing = self.drawing
        if self.title:
            drawing.text(MARGIN, 24, self.title, size=16, bold=True, anchor="start")
        self._axis()
        for row, (name, spans) in enumerate(self.rows):
            self._lane(row, name, spans)
        for words, time in self.marks.items():
            x = self.x(time)
            drawing.line(x, self.top - 4, x, self.bottom, stroke=INK, width=1.5, dashed=True)
            half = LETTER * len(words) / 2
            place = min(max(x, MARGIN + half), WIDTH - MARGIN - half)
            drawing.text(place, self.top - 12, words, size=SIZE, fill=SOFT_INK)
        for line, words in enumerate(self.key):
            y = self.bottom + AXIS + KEY_LINE * line
            drawing.text(MARGIN, y, words, size=SIZE, anchor="start")
        self._legend(self.bottom + AXIS + KEY_LINE * len(self.key))
        return drawing.finish(alt or self._in_words())

    # ---- parts ---------------------------------------------------------------------------------

    def _lane(self, row: int, name: int | str, spans: list[Busy]) -> None:
        y = self.top + row * LANE + LANE / 2
        colour = self._colour(row, name)
        if isinstance(name, int):
            self.drawing.rank_label(name, MARGIN, y)
        else:
            self.drawing.rectangle(MARGIN, y - 13, 6, 26, fill=colour, radius=2)
            self.drawing.text(MARGIN + 12, y, name, size=SIZE, anchor="start")
        for begin, end in _gaps(spans, self.first, self._end(name)):
            self._bar(begin, end, y, self.drawing.hatch(RULE), RULE)
        for span in sorted(spans, key=lambda span: span.start):
            fill = blend(colour, PAPER, PALE) if span.moves else colour
            x, width = self._bar(span.start, span.end, y, fill, colour if span.moves else PAPER)
            words = self._mark(span)
            if words:
                ink = text_on(fill)
                self.drawing.text(x + width / 2, y, words, size=SIZE, fill=ink, bold=True)

    def _bar(self, begin: float, end: float, y: float, fill: str, stroke: str) -> tuple:
        x, width = self.x(begin), self.x(end) - self.x(begin)
        shown = max(width, 1.0)  # however short, it is there
        self.drawing.rectangle(x, y - BAR / 2, shown, BAR, fill=fill, stroke=stroke, radius=0)
        return x, width

    def _end(self, name: int | str) -> float:
        return min(self.last, self.ends.get(name, self.last))

    def _colour(self, row: int, name: int | str) -> str:
        return rank_colour(name if isinstance(name, int) else row)

    def _width(self, span: Busy) -> float:
        return self.x(span.end) - self.x(span.start)

    def _number_the_narrow(self) -> dict[str, int]:
        """Labels that fit in none of their spans, numbered in order of time."""
        widest: dict[str, float] = {}
        for _, spans in self.rows:
            for span in sorted(spans, key=lambda span: span.start):
                widest[span.label] = max(widest.get(span.label, 0.0), self._width(span))
        starts = {
            label: min(s.start for _, spans in self.rows for s in spans if s.label == label)
            for label in widest
        }
        narrow = [label for label in widest if label and widest[label] < _room(label)]
        return {label: i for i, label in enumerate(sorted(narrow, key=starts.__getitem__), 1)}

    def _mark(self, span: Busy) -> str:
        """What is written into a span: its label, else its number, else nothing."""
        words = str(self.numbers.get(span.label, span.label))
        margin = 1 if span.label in self.numbers else 4
        return words if self._width(span) >= _room(words, margin) else ""

    def _key_lines(self) -> list[str]:
        lines: list[str] = []
        for label, number in self.numbers.items():
            words = f"{number} {label}"
            if lines and LETTER * len(f"{lines[-1]} \u00b7 {words}") <= WIDTH - 2 * MARGIN:
                lines[-1] += f" \u00b7 {words}"
            else:
                lines.append(words)
        return lines

    def _axis(self) -> None:
        scale = UNITS.get(self.unit, 1.0)
        step = round_step((self.last - self.first) * scale / 6)
        ticks = int((self.last - self.first) * scale / step + 1e-9) if step else 0
        for tick in range(ticks + 1):
            x = self.x(self.first + tick * step / scale)
            self.drawing.line(x, self.top, x, self.bottom + 4, stroke=RULE, width=1)
            words = f"{tick * step:g}"
            place = min(x, WIDTH - 2 - LETTER * len(words) / 2)
            self.drawing.text(place, self.bottom + 14, words, size=SIZE, fill=SOFT_INK)

    def _legend(self, y: float) -> None:
        colour = self._colour(0, self.rows[0][0])
        kinds = [("at work", colour)]
        if any(span.moves for _, spans in self.rows for span in spans):
            kinds.append(("moves data", blend(colour, PAPER, PALE)))
        kinds.append(("idle", self.drawing.hatch(RULE)))
        x: float = MARGIN
        for words, fill in kinds:
            stroke = RULE if words == "idle" else colour
            self.drawing.rectangle(x, y - 7, 22, 14, fill=fill, stroke=stroke, radius=0)
            self.drawing.text(x + 28, y, words, size=SIZE, fill=SOFT_INK, anchor="start")
            x += 28 + LETTER * len(words) + 18
        words = f"time ({self.unit}) \u2192"
        self.drawing.text(WIDTH - MARGIN, y, words, size=SIZE, fill=SOFT_INK, anchor="end")

    def _in_words(self) -> str:
        parts = [
            f"Timeline of {len(self.rows)} lanes" + (f": {self.title}." if self.title else ".")
        ]
        for name, spans in self.rows:
            who = f"Rank {name}" if isinstance(name, int) else str(name)
            does = ", ".join(span.label for span in sorted(spans, key=lambda span: span.start))
            share = idle_share(spans, self.first, self.last) if self.last > self.first else 0.0
            parts.append(f"{who}: {does or 'nothing'}; idle {share:.0%} of the time.")
        return " ".join(parts)


def _room(words: str, margin: float = 4) -> float:
    return LETTER * len(words) + margin
