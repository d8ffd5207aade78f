"""Draws messages as arrows between ranks, in time or in space.

:func:`point_to_point` draws ranks as lanes with time running to the right (a space-time diagram,
after L. Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System",
Communications of the ACM 21(7), 1978). :func:`who_sends_to_whom` leaves time out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .figure import WIDTH, Drawing, Figure
from .palette import ALARM, PAPER, RULE, SOFT_INK, rank_colour, text_on

MARGIN, LABEL, LANE, BOTTOM = 16, 74, 58, 30
Point = tuple[float, float]


class Message(NamedTuple):
    """A message from rank ``source`` to rank ``dest``.

    ``sent`` and ``received`` are times in any unit. Without them the i-th message of a diagram
    leaves at time i and arrives at time i + 1.
    """

    source: int
    dest: int
    label: str = ""
    sent: float | None = None
    received: float | None = None


class Wait(NamedTuple):
    """Rank ``rank`` is blocked in a call from ``start`` to ``end``; None: indefinitely."""

    rank: int
    start: float
    end: float | None = None
    label: str = ""


def point_to_point(
    messages: Iterable[tuple],
    waits: Iterable[tuple] = (),
    *,
    world_size: int | None = None,
    title: str = "",
) -> Figure:
    """Draw messages between rank lanes, time running to the right.

    ``messages``: :class:`Message` or tuples of its fields, e.g. ``(0, 1, "hello")``.
    ``waits``: :class:`Wait` or tuples of its fields, e.g. ``(1, 0, 2, "Recv from 0")``. A wait
    without an end runs off the picture and is marked as endless; two or more of them are marked
    as a deadlock. ``world_size``: number of lanes, by default just enough.
    """
    arrows = [_timed(index, *message) for index, message in enumerate(messages)]
    blocked = [Wait(*wait) for wait in waits]
    p = _lanes(world_size, [r for a in arrows for r in (a.source, a.dest)], blocked)
    known: list[Any] = [t for a in arrows for t in (a.sent, a.received)]
    known += [t for w in blocked for t in (w.start, w.end) if t is not None]
    first, last = min(known, default=0), max(known, default=1)
    last += 0.6 * max(1, last - first) if any(w.end is None for w in blocked) else 0

    top = 36 if title else 12
    drawing = Drawing(WIDTH, top + p * LANE + BOTTOM)
    start, end = MARGIN + LABEL + 12, WIDTH - MARGIN - 12

    def x(time: float) -> float:
        return start + (end - start) * (time - first) / max(last - first, 1e-12)

    def y(rank: int) -> float:
        return top + rank * LANE + LANE / 2

    if title:
        drawing.text(MARGIN, 24, title, size=16, bold=True, anchor="start")
    for rank in range(p):
        drawing.line(MARGIN + LABEL, y(rank), WIDTH - MARGIN, y(rank), stroke=RULE, width=2)
        drawing.rank_label(rank, MARGIN, y(rank))
    for wait in blocked:
        _draw_wait(drawing, wait, x(wait.start), x(last if wait.end is None else wait.end), y)
    for message in arrows:
        _draw_message(drawing, message, x, y)
    stuck = sorted({wait.rank for wait in blocked if wait.end is None})
    foot = top + p * LANE + 8
    drawing.text(WIDTH - MARGIN, foot, "time \u2192", fill=SOFT_INK, anchor="end")
    if stuck:
        words = (
            "Deadlock: each waits for another, for ever." if len(stuck) > 1 else "Waits for ever."
        )
        drawing.text(MARGIN, foot, words, fill=ALARM, bold=True, anchor="start")
    return drawing.finish(_in_words(p, title, arrows, blocked, stuck))


def who_sends_to_whom(
    pairs: Iterable[tuple], *, world_size: int | None = None, title: str = ""
) -> Figure:
    """Draw ranks on a circle and an arrow per ``(source, dest)`` or ``(source, dest, label)``."""
    arrows = [Message(*pair) for pair in pairs]
    p = _lanes(world_size, [r for a in arrows for r in (a.source, a.dest)], [])
    radius, disc = 88 + 6 * max(0, p - 4), 21
    top = 44 if title else 16
    size = 2 * (radius + disc)
    drawing = Drawing(360, top + size + 16)
    middle_x, middle_y = 180, top + size / 2

    def place(rank: int) -> tuple[float, float]:
        angle = 2 * math.pi * rank / p - math.pi / 2
        return middle_x + radius * math.cos(angle), middle_y + radius * math.sin(angle)

    if title:
        drawing.text(180, 24, title, size=16, bold=True)
    both_ways = {(a.source, a.dest) for a in arrows} & {(a.dest, a.source) for a in arrows}
    for arrow in arrows:
        bend = 15 if (arrow.source, arrow.dest) in both_ways else 0
        _draw_arc(drawing, arrow, place(arrow.source), place(arrow.dest), bend, disc + 3)
    for rank in range(p):
        colour = rank_colour(rank)
        drawing.circle(*place(rank), disc, fill=colour)
        drawing.text(*place(rank), rank, size=17, fill=text_on(colour), bold=True)
    lines = "; ".join(f"rank {a.source} sends {_quoted(a)}to rank {a.dest}" for a in arrows)
    heading = f"{title}: " if title else ""
    return drawing.finish(f"{heading}{p} ranks on a circle; {lines or 'no messages'}.")


def _timed(index: int, *fields: Any) -> Message:
    message = Message(*fields)
    sent = index if message.sent is None else message.sent
    received = sent + 1 if message.received is None else message.received
    if received < sent:
        raise ValueError(f"{message} is received before it is sent")
    return message._replace(sent=sent, received=received)


def _lanes(world_size: int | None, ranks: list[int], waits: Iterable[Wait]) -> int:
    needed = max([*ranks, *(wait.rank for wait in waits)], default=0) + 1
    if world_size is None:
        return needed
    if world_size < needed:
        raise ValueError(f"world_size is {world_size}, but rank {needed - 1} takes part")
    return world_size


def _draw_wait(
    drawing: Drawing, wait: Wait, start: float, end: float, y: Callable[[int], float]
) -> None:
    for_ever = wait.end is None
    colour = rank_colour(wait.rank)
    height = y(wait.rank)
    drawing.rectangle(
        start, height - 10, end - start, 20, fill=drawing.hatch(colour), stroke=colour
    )
    if wait.label:
        drawing.plate((start + end) / 2, height, wait.label)
    if for_ever:
        drawing.circle(end, height, 11, fill=ALARM)
        for slope in (-1, 1):
            drawing.line(
                end - 5, height - 5 * slope, end + 5, height + 5 * slope, stroke=PAPER, width=2.5
            )


def _draw_message(drawing: Drawing, message: Message, x: Callable, y: Callable) -> None:
    colour = rank_colour(message.source)
    x1, y1, x2, y2 = x(message.sent), y(message.source), x(message.received), y(message.dest)
    drawing.circle(x1, y1, 5, fill=colour)
    drawing.line(x1, y1, x2, y2, stroke=colour, width=2.5, arrow=True)
    if message.label:
        # At 0.4 of the way, not half: the labels of two messages that cross stay apart.
        drawing.plate(x1 + 0.4 * (x2 - x1), y1 + 0.4 * (y2 - y1), message.label)


def _draw_arc(
    drawing: Drawing, arrow: Message, start: Point, end: Point, bend: float, clear: float
) -> None:
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    if length == 0:
        raise ValueError(f"rank {arrow.source} cannot send to itself")
    # The control point lies to the side of the straight line; a bend of zero is straight.
    side_x, side_y = (y2 - y1) / length, -(x2 - x1) / length
    control = ((x1 + x2) / 2 + 2 * bend * side_x, (y1 + y2) / 2 + 2 * bend * side_y)
    x1, y1 = _towards((x1, y1), control, clear)
    x2, y2 = _towards((x2, y2), control, clear)
    commands = f"M {x1:.1f} {y1:.1f} Q {control[0]:.1f} {control[1]:.1f} {x2:.1f} {y2:.1f}"
    drawing.path(commands, stroke=rank_colour(arrow.source), width=2.5, arrow=True)
    if arrow.label:
        middle = ((x1 + 2 * control[0] + x2) / 4, (y1 + 2 * control[1] + y2) / 4)
        drawing.plate(*middle, arrow.label)


def _towards(point: Point, target: Point, distance: float) -> Point:
    length = math.hypot(target[0] - point[0], target[1] - point[1])
    share = distance / length
    return point[0] + share * (target[0] - point[0]), point[1] + share * (target[1] - point[1])


def _quoted(message: Message) -> str:
    return f'"{message.label}" ' if message.label else ""


def _in_words(
    p: int, title: str, messages: Iterable[Any], waits: Iterable[Wait], stuck: list[int]
) -> str:
    parts = [f"Space-time diagram of {p} ranks" + (f": {title}." if title else ".")]
    for m in sorted(messages, key=lambda m: m.sent):
        parts.append(f"Rank {m.source} sends {_quoted(m)}to rank {m.dest}.")
    for w in waits:
        span = "for ever" if w.end is None else f"from time {w.start:g} to {w.end:g}"
        parts.append(f"Rank {w.rank} waits {span}" + (f" in {w.label}." if w.label else "."))
    if len(stuck) > 1:
        parts.append("This is a deadlock.")
    return " ".join(parts)
