"""Traces: what is read from a profiler's file, self times, one clock, one file, snapshots."""

from __future__ import annotations

import pytest
import torch
from rank_by_rank.lesson_11.traces import (
    Allocation,
    Profile,
    Span,
    live_bytes,
    moved_to,
    read_profile,
    self_seconds,
    snapshot,
    write_merged,
)
from torch.profiler import ProfilerActivity, profile, record_function
from torch_mpi4py.board.event_board import Event

from course_lib.teaching.timelines import Timeline
from course_lib.teaching.timelines.lanes import RankEvents, lanes_of
from tests.teaching.trace_format import check_trace


def recorded(path) -> Profile:
    """Profile a product of 1 MiB twice, in two sections."""
    one = torch.ones(512, 512)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        with record_function("forward"):
            kept = one @ one
        with record_function("sync"):
            one @ one
    profiler.export_chrome_trace(str(path))
    assert kept[0, 0] == 512
    return read_profile(path)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Profile:
    return recorded(tmp_path_factory.mktemp("traces") / "one.pt.trace.json")


def test_profiler_file_is_read(real: Profile) -> None:
    assert [span.name for span in real.sections] == ["forward", "sync"]
    products = [span for span in real.operators if span.name == "aten::mm"]
    for section, product in zip(real.sections, products, strict=True):
        assert section.start <= product.start <= product.end <= section.end


def test_read_profile_rejects_a_file_without_sections(tmp_path) -> None:
    path = tmp_path / "none.pt.trace.json"
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(3).add_(1)
    profiler.export_chrome_trace(str(path))
    with pytest.raises(ValueError, match="has no section"):
        read_profile(path)


def test_sections_of_pytorch_are_ignored(tmp_path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones(3)
    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("update"):
        optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "update.pt.trace.json"))
    sections = read_profile(tmp_path / "update.pt.trace.json").sections
    assert [span.name for span in sections] == ["update"]


def test_self_time_excludes_nested_spans() -> None:
    spans = [("a", 0, 10), ("b", 1, 4), ("c", 2, 3), ("b", 4, 6), ("a", 10, 11), ("d", 0, 1)]
    assert self_seconds(spans) == {"a": 10 - 1 - 3 - 2 + 1, "b": 2 + 2, "c": 1, "d": 1}


def test_memory_in_use_and_a_snapshot(real: Profile) -> None:
    live = live_bytes(real.allocations)
    assert max(live) >= 2 * 2**20  # the first product was kept
    assert snapshot(real, real.sections[0].end)["forward"] == 2**20


def test_snapshot_assigns_live_memory_to_sections() -> None:
    sections = [Span("outer", 0, 10), Span("inner", 2, 4)]
    taken = [(1, 100, 7), (3, 50, 8), (5, -100, 7), (6, 30, 7)]
    one = Profile(sections, [], [Allocation(*each) for each in taken])
    assert snapshot(one, 4) == {"outer": 100, "inner": 50}
    assert snapshot(one, 5.5) == {"inner": 50}
    assert snapshot(one, 20) == {"inner": 50, "outer": 30}
    assert live_bytes(one.allocations) == [100, 150, 50, 80]


def event(number: int, name: str, start: float, end: float) -> Event:
    return Event(
        number=number, kind="section", peer=-1, shape=name, start=start, end=end, waiting=None,
        ranks=(0, 1), waited_from=None, group="default", root=-1, tag=-1, bytes=0, dtype="",
        site="program.py:1", outcome="ok",
    )  # fmt: skip


def both(real: Profile) -> tuple[Timeline, list[Profile]]:
    """A timeline of two ranks whose sections are those of the profile, on clocks of their own."""
    records = []
    for rank, ahead in enumerate((0.0, 100.0)):
        sections = [
            event(number, span.name, ahead + span.start, ahead + span.end)
            for number, span in enumerate(real.sections, 1)
        ]
        records.append(RankEvents(rank, sections, ahead, 1e-6))
    return Timeline(lanes_of(records), 1e-6), [real, real]


def test_profiles_are_shifted_to_the_timelines_clock(real: Profile) -> None:
    timeline, profiles = both(real)
    moved = [moved_to(*pair) for pair in zip(timeline.lanes, profiles, strict=True)]
    for profile_, apart in moved:
        assert len(apart) == 2
        assert max(apart) < 1e-6
        assert profile_.sections[0].start == pytest.approx(0.0, abs=1e-6)
    assert moved[0][0].sections[1].start == pytest.approx(moved[1][0].sections[1].start, abs=1e-6)


def test_interrupted_section_does_not_affect_the_shift(real: Profile) -> None:
    three = real._replace(sections=[*real.sections, real.sections[1]._replace(name="update")])
    timeline, _ = both(three)
    late = three.sections[1]._replace(start=three.sections[1].start + 0.04)
    moved, apart = moved_to(
        timeline.lanes[0], three._replace(sections=[three.sections[0], late, three.sections[2]])
    )
    assert apart == pytest.approx([0.0, 0.04, 0.0], abs=1e-6)
    assert moved.sections[0].start == pytest.approx(0.0, abs=1e-6)


def test_moved_to_rejects_sections_that_differ_from_the_timeline(real: Profile) -> None:
    timeline, _ = both(real)
    first, second = real.sections
    for others in ([second, first], [first, second, first]):
        with pytest.raises(ValueError, match="rank 1 has different sections"):
            moved_to(timeline.lanes[1], real._replace(sections=others))
    shorter = real._replace(sections=[first])
    assert moved_to(timeline.lanes[1], shorter)[0].sections[0].name == "forward"


def test_merged_file_follows_the_trace_format(real: Profile, tmp_path) -> None:
    timeline, profiles = both(real)
    moved = [moved_to(*pair)[0] for pair in zip(timeline.lanes, profiles, strict=True)]
    events = check_trace(write_merged(tmp_path / "merged.pt.trace.json", timeline, moved))
    operators = [event for event in events if event.get("cat") == "operator"]
    assert {event["pid"] for event in operators} == {0, 1}
    assert len(operators) == 2 * len(real.operators)
    named = [e for e in events if e["name"] == "thread_name" and e["args"]["name"] == "operators"]
    assert {event["tid"] for event in named} == {event["tid"] for event in operators}


def test_operators_that_overlap_by_a_nanosecond_are_cut(real: Profile, tmp_path) -> None:
    timeline, _ = both(real)
    overlapping = [Span("outer", 0.0, 10.4e-9), Span("inner", 2e-9, 10.6e-9)]
    profiles = [Profile(real.sections, overlapping, []) for _ in range(2)]
    check_trace(write_merged(tmp_path / "merged.pt.trace.json", timeline, profiles))
