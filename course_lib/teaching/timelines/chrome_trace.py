"""Writes timelines as Chrome trace events, with flows from each send to its receive.

The format is Google's "Trace Event Format" (the document that docs/trace-event-format.md of
catapult, the viewer of chrome://tracing and of TensorBoard, links to): ``ph`` "X" is a complete
event with ``ts`` and ``dur`` in microseconds, "M" names processes and threads, "s" and "f" begin
and end a flow. A rank is a process; its threads are the program's states, its sections, and its
operations. The viewers' importers decide what the document leaves open (catapult's
trace_event_importer.html; json_trace_tokenizer.cc, slice_tracker.cc and flow_tracker.cc of
Perfetto):

- Of two events of a thread that overlap by a nanosecond, Perfetto drops one. So all times are
  whole nanoseconds, rounded before anything is subtracted.
- Perfetto treats a ``tid`` of 0, or one that equals a ``pid``, as the main thread of that process.
  So the program has its rank's ``pid`` as ``tid``, and every other thread a number of its own.
- Perfetto draws a flow from the event that begins earlier to the later one, and a receive often
  begins before its send. So a flow ends in an event of its own, at the end of the receive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

from .lanes import Ended, Lane, describe

Placed = tuple[int, Ended]  # thread, operation


def trace_events(lanes: list[Lane]) -> list[dict[str, Any]]:
    """Return the trace events of all lanes, names first and then in order of time."""
    names, found = [], []
    placed: dict[int, list[Placed]] = {}
    numbers = count(max((lane.rank for lane in lanes), default=0) + 1)
    for lane in lanes:
        threads = {lane.rank: "program"}
        found += [
            _complete(lane.rank, lane.rank, span.state, "program", span.start, span.end, span.label)
            for span in lane.program
        ]
        for events in _nested_rows(lane.sections):
            threads[thread := next(numbers)] = "sections"
            found += [_section(lane.rank, thread, event) for event in events]
        placed[lane.rank] = []
        for events in _nested_rows(lane.operations):
            threads[thread := next(numbers)] = "messages and collectives"
            found += [_operation(lane.rank, thread, event) for event in events]
            placed[lane.rank] += [(thread, event) for event in events]
        names += _names(lane.rank, threads)
    found += _flows(placed)
    return names + sorted(found, key=lambda event: (event["ts"], -event.get("dur", 0)))


def _names(rank: int, threads: dict[int, str]) -> list[dict[str, Any]]:
    def name(what: str, tid: int, **args: Any) -> dict[str, Any]:
        return {"name": what, "ph": "M", "pid": rank, "tid": tid, "ts": 0, "args": args}

    found = [
        name("process_name", rank, name=f"rank {rank}"),
        name("process_sort_index", rank, sort_index=rank),
    ]
    for thread, words in threads.items():
        found.append(name("thread_name", thread, name=words))
        found.append(name("thread_sort_index", thread, sort_index=thread))
    return found


def _nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)


def _complete(
    rank: int, thread: int, name: str, category: str, start: float, end: float, label: str = "",
    **args: Any,
) -> dict[str, Any]:  # fmt: skip
    begin, finish = _nanoseconds(start), _nanoseconds(end)
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": begin / 1000,
        "dur": (finish - begin) / 1000,
        "pid": rank,
        "tid": thread,
        "args": {"for": label, **args} if label else args,
    }


def _section(rank: int, thread: int, event: Ended) -> dict[str, Any]:
    times = (event.start, event.end)
    return _complete(rank, thread, event.shape, "section", *times, site=event.site)


def _operation(rank: int, thread: int, event: Ended) -> dict[str, Any]:
    known = ("group", "bytes", "dtype", "shape", "tag", "root", "site")
    args = {name: value for name in known if (value := getattr(event, name)) not in (-1, "")}
    args["outcome"] = event.outcome or "still under way"
    category = "collective" if event.collective else "message"
    return _complete(rank, thread, describe(event), category, event.start, event.end, **args)


def _nested_rows(events: list[Ended]) -> list[list[Ended]]:
    """Put events into rows in which any two are disjoint or nested."""
    rows: list[tuple[list[Ended], list[float]]] = []  # events, ends of those still open
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        for row, ends in rows:
            while ends and ends[-1] <= event.start:
                ends.pop()
            if not ends or event.end <= ends[-1]:
                row.append(event)
                ends.append(event.end)
                break
        else:
            rows.append(([event], [event.end]))
    return [row for row, _ in rows]


def _flows(placed: dict[int, list[Placed]]) -> Iterator[dict[str, Any]]:
    """Join the n-th message of a rank to another with its n-th receive, tag by tag.

    MPI keeps this order. If one side is not recorded completely, the sizes decide.
    """
    sent, received = defaultdict(list), defaultdict(list)
    for rank, events in placed.items():
        for thread, event in sorted(events, key=lambda one: one[1].number):
            if event.outcome not in ("ok", "dropped") or event.world_peer < 0:
                continue
            if event.sends:
                key = (rank, event.world_peer, event.group, event.tag)
                sent[key].append((thread, event))
            elif event.receives:
                key = (event.world_peer, rank, event.group, event.tag)
                received[key].append((thread, event))
    number = 0
    for key, outgoing in sent.items():
        incoming = received.get(key, [])
        sizes = [[event.bytes for _, event in side] for side in (outgoing, incoming)]
        if sizes[0] != sizes[1]:
            continue
        for (thread, send), (other, receive) in zip(outgoing, incoming, strict=True):
            number += 1
            yield from _flow(number, key[:2], (thread, other), send, receive)


def _flow(
    number: int,
    ranks: tuple[int, int],
    threads: tuple[int, int],
    send: Ended,
    receive: Ended,
) -> Iterator[dict[str, Any]]:
    """Draw a flow from the beginning of a send to the last nanosecond of its receive."""
    begin, first, last = map(_nanoseconds, (send.start, receive.start, receive.end))
    arrival = max(first, last - 1)
    if arrival < begin:  # by the residual of the clocks: such an arrow would go back in time
        return
    common = {"name": "message", "cat": "message", "id": number}
    yield {**common, "ph": "s", "ts": begin / 1000, "pid": ranks[0], "tid": threads[0]}
    place = {"ts": arrival / 1000, "pid": ranks[1], "tid": threads[1]}
    name = f"message from {ranks[0]}"
    dur = (last - arrival) / 1000
    yield {"name": name, "cat": "arrival", "ph": "X", "dur": dur, "args": {}, **place}
    yield {**common, "ph": "f", "bp": "e", **place}
