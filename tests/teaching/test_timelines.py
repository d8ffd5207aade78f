"""Timelines: what a rank did at each moment, the picture, the trace."""

from __future__ import annotations

import pytest
from torch_mpi4py.board.event_board import Event

from course_lib.teaching.timelines import Timeline
from course_lib.teaching.timelines.lanes import (
    COMPUTING,
    OVERLAPPING,
    SENDING,
    WAITING,
    RankEvents,
    _latest_cell,
    lanes_of,
)
from tests.teaching.trace_format import check_trace, flows

RANKS = (0, 1)


def event(number, kind, start, end, waited_from=None, peer=-1, name="(3,)", **more) -> Event:
    given = {
        "group": "default", "root": -1, "tag": 0 if peer >= 0 else -1, "bytes": 12,
        "dtype": "float32", "site": "program.py:1", "outcome": "ok" if end else "",
    }  # fmt: skip
    given |= more
    waiting = None if kind == "section" else waited_from is not None
    return Event(
        number=number, kind=kind, peer=peer, shape=name, start=start, end=end, waiting=waiting,
        ranks=RANKS, waited_from=waited_from, **given,
    )  # fmt: skip


# Rank 1's clock is 100 s ahead. Times in eighths of a second, which are exact in binary.
RECORDS = [
    RankEvents(
        0,
        [
            event(1, "section", 8.0, 10.0, name="forward </script>"),
            event(2, "all_reduce", 8.5, 9.5, waited_from=9.0),
            event(3, "send", 10.0, 10.5, waited_from=10.0, peer=1),
            event(4, "recv", 10.5, None, waited_from=10.5, peer=1, tag=7),
        ],
        0.0,
        0.0,
    ),
    RankEvents(
        1,
        [
            event(1, "all_reduce", 108.25, 109.5, waited_from=108.25),
            event(2, "recv", 109.75, 110.625, waited_from=109.75, peer=0),
            event(3, "section", 111.0, 111.5, name="step"),
        ],
        100.0,
        1e-6,
    ),
]


@pytest.fixture
def drawn() -> Timeline:
    return Timeline(lanes_of(RECORDS), 2e-6, "a title")


def test_each_moment_has_one_state(drawn) -> None:
    first, second = drawn.lanes
    assert [tuple(span) for span in first.program] == [
        (COMPUTING, 0.0, 0.5, ""),
        (OVERLAPPING, 0.5, 1.0, "all_reduce"),
        (WAITING, 1.0, 1.5, "all_reduce"),
        (COMPUTING, 1.5, 2.0, ""),
        (SENDING, 2.0, 2.5, "send to 1"),
        (WAITING, 2.5, 3.5, "recv from 1"),  # still open: up to the end of all
    ]
    assert [tuple(span) for span in second.program] == [
        (WAITING, 0.25, 1.5, "all_reduce"),
        (COMPUTING, 1.5, 1.75, ""),
        (WAITING, 1.75, 2.625, "recv from 0"),
        (COMPUTING, 2.625, 3.5, ""),
    ]
    assert drawn.seconds == 3.5


def test_partly_overlapping_operations_get_separate_threads(tmp_path) -> None:
    operations = [
        event(1, "isend", 0.0, 2.0, peer=1),
        event(2, "irecv", 0.5, 1.0, peer=1),
        event(3, "irecv", 1.0, 3.0, peer=1),
    ]
    timeline = Timeline(lanes_of([RankEvents(0, operations, 0.0, 0.0)]), 0.0)
    events = check_trace(timeline.chrome_trace(tmp_path / "run.pt.trace.json"))
    threads = {e["ts"]: e["tid"] for e in events if e.get("cat") == "message"}
    assert threads[0.0] == threads[0.5e6] != threads[1e6]


def test_figure_shows_a_window(drawn) -> None:
    whole, part = drawn.figure(), drawn.figure(1.0, 1.25)
    assert "a title" in whole.alt
    assert "Sections: forward" in whole.alt
    assert len(part.svg) < len(whole.svg)
    for start, end in ((1.0, 1.0), (2.0, 1.0)):
        with pytest.raises(ValueError, match="is empty"):
            drawn.figure(start, end)


def test_figure_is_idle_where_the_rank_waits(drawn) -> None:
    def hatched(figure) -> int:
        return figure.svg.count('fill="url(#')

    legend = 1
    assert hatched(drawn.figure(0.25, 0.75)) == legend + 1  # rank 1 waits for its all_reduce
    assert hatched(drawn.figure(1.5, 1.75)) == legend  # both compute
    assert "moves data" in drawn.figure().svg
    assert "moves data" not in drawn.figure(0.0, 1.9).svg  # rank 0 has not begun to send


def test_notebook_displays_the_figure(drawn) -> None:
    shown = drawn._repr_mimebundle_()
    assert shown["text/html"].startswith('<img alt="Timeline of 2 ranks: a title.')
    assert shown["text/plain"].startswith("Timeline: ")


def test_trace_follows_the_format(drawn, tmp_path) -> None:
    events = check_trace(drawn.chrome_trace(tmp_path / "run.pt.trace.json"))
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"}
    assert names == {(0, "rank 0"), (1, "rank 1")}
    send = next(e for e in events if e["name"] == "send to 1")
    assert (send["ts"], send["dur"], send["args"]["bytes"]) == (2e6, 0.5e6, 12)
    (flow,) = flows(events)  # the receive that is open has no message
    begin, end = sorted((e for e in events if e.get("id") == flow), key=lambda e: e["ts"])
    assert (begin["pid"], begin["ph"], end["pid"], end["ph"]) == (0, "s", 1, "f")
    arrival = next(e for e in events if e.get("cat") == "arrival")
    assert (arrival["name"], arrival["pid"], arrival["tid"]) == ("message from 0", 1, end["tid"])
    assert arrival["ts"] + arrival["dur"] == 2.625e6
    still_open = next(e for e in events if e["name"] == "recv from 1")
    assert still_open["args"]["outcome"] == "still under way"


def test_trace_tolerates_rounding_and_clock_skew(tmp_path) -> None:
    """Events that touch do so to the nanosecond, and no arrow goes back in time."""
    third = 1e-6 / 3
    times = [(n * third, (n + 1) * third) for n in range(30)]
    sends = [event(n, "send", *times[n], times[n][0], peer=1, bytes=n) for n in range(30)]
    early = [event(n, "recv", 0.0 if n == 9 else times[n][0], times[n][1], peer=0, bytes=n)
             for n in range(30)]  # fmt: skip
    early = [one._replace(start=one.start - 2e-6, end=one.end - 2e-6) for one in early]
    records = [RankEvents(0, sends, 0.0, 0.0), RankEvents(1, early, 0.0, 3e-6)]
    drawn = Timeline(lanes_of(records), 6e-6)
    assert flows(check_trace(drawn.chrome_trace(tmp_path / "back.json"))) == set()
    records[1] = RankEvents(1, early, -2.5e-6, 3e-6)
    drawn = Timeline(lanes_of(records), 6e-6)
    assert len(flows(check_trace(drawn.chrome_trace(tmp_path / "forward.json")))) == 30


def test_crossing_sections_get_separate_rows(tmp_path) -> None:
    crossing = [
        event(1, "section", 0.0, 2.0, name="a"),
        event(2, "section", 0.5, 1.0, name="within a"),
        event(3, "section", 1.5, 3.0, name="of another thread"),
    ]
    drawn = Timeline(lanes_of([RankEvents(0, crossing, 0.0, 0.0)]), 0.0)
    events = check_trace(drawn.chrome_trace(tmp_path / "run.json"))
    rows = {e["name"]: e["tid"] for e in events if e.get("cat") == "section"}
    assert rows["a"] == rows["within a"] != rows["of another thread"]


def test_only_the_latest_cell_is_kept() -> None:
    def records(*sites) -> list[RankEvents]:
        events = [event(n, "barrier", float(n), n + 0.5, site=site) for n, site in enumerate(sites)]
        return [RankEvents(0, events, 0.0, 0.0)]

    cells = records("cell 3, line 1", "cell 12, line 2", "", "cell 12, line 3")
    assert [one.number for one in _latest_cell(cells)[0].events] == [1, 2, 3]
    program = records("program.py:1", "program.py:2")
    assert _latest_cell(program) == program
