"""The same lanes on a page of their own, to be zoomed by wheel, drag and keys."""

from __future__ import annotations

import json
from html import escape

from ..figures.palette import rank_colour
from .lanes import STATES, Lane, describe
from .plot import pale
from .template import TEMPLATE

__all__ = ["page", "page_height"]

MOST_ROWS = 12


def _rows(lanes: list[Lane]) -> int:
    return min(max([3, *(len(lane.rows()) for lane in lanes)]), MOST_ROWS)


def _lane_height(lanes: list[Lane]) -> int:
    """Return the height of each lane in pixels: rows of 6 below the sections and the program."""
    return 46 + 6 * _rows(lanes)


def page_height(lanes: list[Lane]) -> int:
    """Return the height in pixels that the whole page needs."""
    return 150 + _lane_height(lanes) * len(lanes)


def page(lanes: list[Lane], seconds: float, title: str) -> str:
    """Return an HTML document that shows ``lanes`` and needs nothing else."""
    data = {
        "seconds": seconds,
        "states": STATES,
        "rows": _rows(lanes),
        "lane": _lane_height(lanes),
        "lanes": [_lane(lane) for lane in lanes],
    }
    # "</" would end the script early, wherever it stands in a label.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return TEMPLATE.replace("{{title}}", escape(title)).replace("{{data}}", text)


def _lane(lane: Lane) -> dict:
    colour = rank_colour(lane.rank)
    return {
        "rank": lane.rank,
        "colour": colour,
        "pale": pale(colour),
        "program": [[STATES.index(s.state), s.start, s.end, s.label] for s in lane.program],
        "rows": [[[event.start, event.end, _told(event)] for event in row] for row in lane.rows()],
        "sections": [[event.start, event.end, event.shape] for event in lane.sections],
    }


def _told(event) -> str:
    parts = [describe(event)]
    if event.bytes >= 0:
        parts.append(f"{event.bytes:,} bytes")
    if event.tag >= 0:
        parts.append(f"tag {event.tag}")
    parts += [f"group {event.group}", event.site]
    if event.outcome not in ("ok", ""):
        parts.append(event.outcome)
    return ", ".join(filter(None, parts))
