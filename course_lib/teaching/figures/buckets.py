"""Draws a backward pass: when gradients became ready, and when their buckets were on their way.

:func:`buckets` shows what a rank's hooks saw: gradients above, buckets below them. Several runs are
drawn below each other on one time axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .figure import WIDTH, Drawing, Figure, round_step
from .palette import ALARM, INK, RULE, SOFT_INK, rank_colour, text_on

MARGIN, LABEL, LANE, HEAD, BOTTOM = 16, 82, 34, 30, 46


@dataclass(frozen=True)
class Backward:
    """One backward pass on one rank; all times in seconds from its beginning.

    Attributes:
        ready: ``(label, time)`` per gradient, in the order in which they became ready.
        sent: ``(label, start, end)`` per bucket, in the order in which they were sent.
    """

    ready: Sequence[tuple[str, float]]
    sent: Sequence[tuple[str, float, float]]

    @property
    def end(self) -> float:
        """When the last gradient and the last bucket have arrived."""
        return max([time for _, time in self.ready] + [end for _, _, end in self.sent])


def buckets(runs: Mapping[str, Backward], *, rank: int = 0, title: str = "") -> Figure:
    """Draw the backward passes ``runs``, by label, on ``rank``.

    Raises:
        ValueError: if there is no run, or one without gradients or buckets.
    """
    if not runs or not all(run.ready and run.sent for run in runs.values()):
        raise ValueError("give at least one run, each with gradients and with buckets")
    colour = rank_colour(rank)
    top = 40 if title else 12
    block = HEAD + 2 * LANE + 10
    drawing = Drawing(WIDTH, top + len(runs) * block + BOTTOM)
    left, right = MARGIN + LABEL, WIDTH - MARGIN - 12
    last = max(run.end for run in runs.values())

    def x(time: float) -> float:
        return left + (right - left) * time / last

    if title:
        drawing.text(MARGIN, 24, title, size=16, bold=True, anchor="start")
    lanes = [(top + i * block + HEAD - 4, top + (i + 1) * block - 6) for i in range(len(runs))]
    _draw_axis(drawing, x, last, lanes)
    for index, (label, run) in enumerate(runs.items()):
        _draw_run(drawing, label, run, x, top + index * block, colour)
    return drawing.finish(_in_words(runs, rank, title))


def _draw_run(
    drawing: Drawing, label: str, run: Backward, x: Callable, top: float, colour: str
) -> None:
    drawing.text(MARGIN, top + HEAD / 2, label, bold=True, anchor="start")
    backward, wire = top + HEAD + LANE / 2, top + HEAD + 1.5 * LANE
    drawing.text(MARGIN, backward, "backward", anchor="start", fill=SOFT_INK)
    drawing.text(MARGIN, wire, "all-reduce", anchor="start", fill=SOFT_INK)
    before = 0.0
    for name, time in run.ready:
        width = x(time) - x(before)
        drawing.rectangle(
            x(before) + 0.5, backward - 12, max(width - 1, 1), 24, fill=colour, radius=2
        )
        if width > 9 * len(name) + 6:
            drawing.text((x(before) + x(time)) / 2, backward, name, fill=text_on(colour))
        before = time
    for name, start, end in run.sent:
        width = max(x(end) - x(start), 1.5)
        fill = drawing.hatch(colour)
        drawing.rectangle(x(start), wire - 12, width, 24, fill=fill, stroke=colour, radius=2)
        if width > 9 * len(name) + 8:
            drawing.plate(x(start) + width / 2, wire, name)
    done = x(run.end)
    drawing.line(done, top + HEAD - 6, done, wire + 14, stroke=ALARM, width=2, dashed=True)
    drawing.text(
        done - 6 if done > WIDTH * 0.6 else done + 6,
        top + HEAD / 2,
        f"done at {1e3 * run.end:.0f} ms",
        anchor="end" if done > WIDTH * 0.6 else "start",
        fill=ALARM,
    )


def _draw_axis(drawing: Drawing, x: Callable, last: float, lanes: Sequence[tuple]) -> None:
    step = round_step(last / 8)
    bottom = lanes[-1][1] + 10
    for index in range(int(last / step) + 1):
        at = x(index * step)
        for upper, lower in lanes:
            drawing.line(at, upper, at, lower, stroke=RULE, width=1)
        drawing.text(at, bottom + 12, f"{1e3 * index * step:g}", size=13, fill=INK)
    words = "time since backward began (ms)"
    drawing.text((x(0) + x(last)) / 2, bottom + 30, words, size=13, fill=SOFT_INK)


def _in_words(runs: Mapping[str, Backward], rank: int, title: str) -> str:
    parts = [f"Timelines of backward passes on rank {rank}" + (f": {title}." if title else ".")]
    for label, run in runs.items():
        order = ", ".join(name for name, _ in run.ready)
        early = sum(start < run.ready[-1][1] for _, start, _ in run.sent)
        parts.append(
            f"{label}: gradients become ready in the order {order}; {len(run.sent)} "
            f"{'bucket is' if len(run.sent) == 1 else 'buckets are'} sent, {early} of them "
            "before backward has ended."
        )
    return " ".join(parts)
