"""Reads the traces that torch.profiler has written, and puts all ranks' traces into one file.

A trace contains one rank, and its times are those of that rank's machine. The course's timeline has
all ranks on one clock, but no operators. A section that was recorded in both shows how far apart
their clocks are, so the operators can be moved into the timeline. The viewer then shows both: which
rank waited for which, and what each rank was doing meanwhile.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from course_lib.teaching.timelines import Lane, Timeline
from course_lib.teaching.timelines.chrome_trace import trace_events

OPERATOR, SECTION = "cpu_op", "user_annotation"
_NOT_THE_PROGRAMS = ("Optimizer.", "ProfilerStep", "mpi4py:")  # of PyTorch and the backend


class Span(NamedTuple):
    """Something that a rank did from ``start`` to ``end`` (seconds): a section or an operator."""

    name: str
    start: float
    end: float


class Allocation(NamedTuple):
    """At ``time`` (seconds) the operators allocated ``bytes``, or freed -``bytes``."""

    time: float
    bytes: int
    address: int


class Profile(NamedTuple):
    """The contents of one rank's trace from torch.profiler, in order of time."""

    sections: list[Span]
    operators: list[Span]
    allocations: list[Allocation]

    @property
    def spans(self) -> list[Span]:
        """Sections and operators together; one that contains another comes before it."""
        return sorted(self.sections + self.operators, key=lambda span: (span.start, -span.end))


def read_profile(path: str | Path) -> Profile:
    """Read a file that ``export_chrome_trace`` wrote, but only its threads with sections.

    Raises:
        ValueError: if it has no section.
    """
    events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    threads = {event["tid"] for event in complete if event.get("cat") == SECTION}
    if not threads:
        raise ValueError(f"{Path(path).name} has no section: use record_function")

    def spans(kind: str) -> list[Span]:
        chosen = [
            e
            for e in complete
            if e.get("cat") == kind
            and e["tid"] in threads
            and not e["name"].startswith(_NOT_THE_PROGRAMS)
        ]
        found = [Span(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in chosen]
        return sorted(found, key=lambda span: (span.start, -span.end))

    allocations = [
        Allocation(event["ts"] / 1e6, event["args"]["Bytes"], event["args"]["Addr"])
        for event in events
        if event.get("name") == "[memory]"
    ]
    return Profile(spans(SECTION), spans(OPERATOR), sorted(allocations))


def self_seconds(spans: Iterable[Span | tuple]) -> dict[str, float]:
    """Return the self time of each name: the seconds of its spans without the spans inside."""
    found: dict[str, float] = {}
    open_spans: list[Span] = []
    for span in sorted((Span(*one) for one in spans), key=lambda one: (one.start, -one.end)):
        while open_spans and open_spans[-1].end <= span.start:
            open_spans.pop()
        length = span.end - span.start
        found[span.name] = found.get(span.name, 0.0) + length
        if open_spans:
            found[open_spans[-1].name] -= length
        open_spans.append(span)
    return found


def live_bytes(allocations: Sequence[Allocation]) -> list[int]:
    """Return after each allocation how many bytes are in use, counted from the first one."""
    live, found = 0, []
    for allocation in allocations:
        live += allocation.bytes
        found.append(live)
    return found


def snapshot(profile: Profile, time: float) -> dict[str, int]:
    """Return how many bytes are in use at ``time``, by the section that allocated them."""
    taken: dict[int, tuple[int, str]] = {}
    for allocation in profile.allocations:
        if allocation.time > time:
            break
        if allocation.bytes > 0:
            taken[allocation.address] = allocation.bytes, section_at(profile, allocation.time)
        else:
            taken.pop(allocation.address, None)
    found: dict[str, int] = {}
    for size, section in taken.values():
        found[section] = found.get(section, 0) + size
    return found


def section_at(profile: Profile, time: float) -> str:
    """Return the innermost section at ``time``, or an empty string if there is none."""
    around = [one for one in profile.sections if one.start <= time <= one.end]
    return min(around, key=lambda one: one.end - one.start).name if around else ""


# ---- all ranks in one file --------------------------------------------------------------------


def moved_to(lane: Lane, profile: Profile) -> tuple[Profile, list[float]]:
    """Move a profile to the clock of the timeline's lane, by the sections that both have.

    The timeline may go on for longer than the profile.

    Returns:
        The moved profile, and for each section how many seconds its two beginnings are then apart.
        The smaller half of these numbers shows how exactly the profile is placed. A far larger one
        means that the rank was interrupted between its entries in the two logs; it does not move
        the profile, which is placed by the median.

    Raises:
        ValueError: if the two do not have the same sections in the same order.
    """
    in_lane = sorted((event.start, event.shape) for event in lane.sections)
    in_lane = in_lane[: len(profile.sections)]
    if [name for _, name in in_lane] != [span.name for span in profile.sections]:
        raise ValueError(
            f"rank {lane.rank} has different sections in its trace and in the timeline: record "
            "each section in both, and profile the whole cell"
        )
    offsets = [t - span.start for (t, _), span in zip(in_lane, profile.sections, strict=True)]
    by = statistics.median(offsets)
    apart = [abs(offset - by) for offset in offsets]
    sections = [Span(s.name, s.start + by, s.end + by) for s in profile.sections]
    operators = [Span(s.name, s.start + by, s.end + by) for s in profile.operators]
    allocations = [a._replace(time=a.time + by) for a in profile.allocations]
    return Profile(sections, operators, allocations), apart


def write_merged(path: str | Path, timeline: Timeline, profiles: Sequence[Profile]) -> Path:
    """Write the timeline's trace with every rank's operators in a thread of their own.

    ``profiles``: by rank, moved to the timeline's clock by :func:`moved_to`.
    """
    events = trace_events(timeline.lanes)
    numbers = count(max(event["tid"] for event in events) + 1)
    names, found = [], []
    for lane, profile in zip(timeline.lanes, profiles, strict=True):
        thread = next(numbers)
        names += _thread_names(lane.rank, thread)
        found += [_complete(lane.rank, thread, *times) for times in _whole(profile.operators)]
    metadata = [event for event in events if event["ph"] == "M"]
    others = [event for event in events if event["ph"] != "M"]
    ordered = sorted(others + found, key=lambda event: (event["ts"], -event.get("dur", 0)))
    trace = {"displayTimeUnit": "ms", "traceEvents": metadata + names + ordered}
    path = Path(path)
    path.write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")
    return path


def _thread_names(rank: int, thread: int) -> list[dict[str, Any]]:
    place = {"ph": "M", "pid": rank, "tid": thread, "ts": 0}
    return [
        {"name": "thread_name", "args": {"name": "operators"}, **place},
        {"name": "thread_sort_index", "args": {"sort_index": thread}, **place},
    ]


def _whole(spans: list[Span]) -> list[tuple[str, int, int]]:
    """Round times to nanoseconds, so that any two spans are disjoint or nested."""
    found: list[tuple[str, int, int]] = []
    ends: list[int] = []
    for name, start, end in spans:
        begin, finish = max(round(1e9 * start), 0), max(round(1e9 * end), 0)
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends:
            finish = min(finish, ends[-1])
        ends.append(finish)
        found.append((name, begin, finish))
    return found


def _complete(rank: int, thread: int, name: str, begin: int, end: int) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "operator",
        "ph": "X",
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "pid": rank,
        "tid": thread,
        "args": {},
    }
