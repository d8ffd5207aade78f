"""Shows where each rank's time went: one lane a rank, from its event log.

In a notebook, after cells in which the ranks did something::

    from course_lib.teaching import timeline

    timeline(cluster)  # of the last such cell; of more with since="begin"
    timeline(cluster).figure(start=0.01, end=0.02)  # seconds from its beginning
    timeline(cluster).chrome_trace("run.pt.trace.json")  # every event, to zoom in

In a program every rank calls ``timeline()``, and gets the same lanes. All ranks' times are rank
0's (:mod:`torch_mpi4py.tools.clocks`); ``residual`` says how far that may be wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..figures.figure import Figure
from ..figures.timeline import Busy
from ..figures.timeline import timeline as draw
from .chrome_trace import trace_events
from .lanes import SENDING, WAITING, Lane, from_ranks, from_view, lanes_of

__all__ = ["Lane", "Timeline", "timeline"]


@dataclass(frozen=True)
class Timeline:
    """The activity of every rank over time.

    Attributes:
        lanes: one a rank, times in seconds from the earliest start.
        residual: upper bound of the error between two ranks' times, in seconds.
        title: above the picture.
    """

    lanes: list[Lane]
    residual: float
    title: str = ""

    @property
    def seconds(self) -> float:
        """How long it all took."""
        return max((lane.end for lane in self.lanes), default=0.0)

    def figure(self, start: float = 0.0, end: float | None = None, alt: str = "") -> Figure:
        """Draw the time from ``start`` to ``end``, in seconds from the beginning.

        A rank that waits is idle, one that sends moves data; otherwise it is at work.
        """
        end = self.seconds if end is None else end
        if not start < end:
            raise ValueError(f"the time from {start} to {end} s is empty")
        unit = "s" if end - start >= 1 else "ms" if end - start >= 1e-3 else "us"
        lanes = {lane.rank: _busy(lane, start, end) for lane in self.lanes}
        return draw(
            lanes, unit=unit, start=start, end=end, title=self.title, alt=alt or self.in_words()
        )

    def chrome_trace(self, path: str | Path) -> Path:
        """Write the events in Chrome's trace event format and return the path.

        Open it at https://ui.perfetto.dev or in chrome://tracing; both work on your machine. A
        file ``NAME.pt.trace.json`` in a log directory appears in TensorBoard's trace view, where
        the plugin torch-tb-profiler is installed (its page loads two scripts from the network).
        """
        path = Path(path)
        trace = {
            "displayTimeUnit": "ms",
            "otherData": {"clock residual (us)": f"{1e6 * self.residual:.1f}"},
            "traceEvents": trace_events(self.lanes),
        }
        path.write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")
        return path

    def in_words(self) -> str:
        """Return the alternative text; it names no times, so it is the same in each run."""
        words = f"Timeline of {len(self.lanes)} ranks" + (f": {self.title}." if self.title else ".")
        words += " In each lane: when the rank works, sends, and waits."
        names = dict.fromkeys(event.shape for lane in self.lanes for event in lane.sections)
        return words + (f" Sections: {', '.join(names)}." if names else "")

    def __repr__(self) -> str:
        return f"Timeline: {self.in_words()}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {**self.figure()._repr_mimebundle_(), "text/plain": repr(self)}


def timeline(source: Any = None, *, since: str | int | None = None, title: str = "") -> Timeline:
    """Return the timeline of what the ranks did.

    Args:
        source: a cluster, or a view of its ranks; None in a program, where every rank must call.
        since: the result of ``events.mark()``, or the name of a variable on the ranks that holds
            it. By default, in a notebook, the latest cell with operations; in a program,
            everything that the log still holds.
        title: above the picture.

    Raises:
        ValueError: if there is nothing to draw.
    """
    if source is None:
        recorded = from_ranks(0 if since is None else int(since))
    else:
        recorded = from_view(getattr(source, "view", source), since)
    lanes = lanes_of(recorded)
    if not any(lane.program for lane in lanes):
        raise ValueError("there is nothing to draw: no rank has recorded an operation")
    return Timeline(lanes, 2 * max(record.residual for record in recorded), title)


def _busy(lane: Lane, start: float, end: float) -> list[Busy]:
    """Return the visible part of ``lane``: all but its waits, within the time asked for."""
    return [
        Busy("", max(span.start, start), min(span.end, end), moves=span.state == SENDING)
        for span in lane.program
        if span.state != WAITING and span.start < end and span.end > start
    ]
