"""The figures of lesson 11: a roofline, ranks' traces, memory over time, ways to read."""

import xml.etree.ElementTree as ElementTree

import pytest
from rank_by_rank.lesson_11 import figures
from rank_by_rank.lesson_11.figures import Point
from rank_by_rank.lesson_11.traces import Allocation, Profile, Span

POINTS = [Point("first", "one", 2e6, 1e6, 1e-3), Point("second", "other", 8e8, 2e6, 1e-2)]
ONE = Profile(
    [Span("forward", 0.0, 0.004), Span("sync", 0.004, 0.010)],
    [Span("aten::conv2d", 0.0, 0.003), Span("aten::add", 0.001, 0.002)],
    [Allocation(0.001, 2**20, 1), Allocation(0.002, 2**21, 2), Allocation(0.009, -(2**20), 1)],
)
OTHER = Profile([Span("forward", 0.0, 0.009), Span("sync", 0.009, 0.010)], [], [])


def roofline():
    return figures.roofline(POINTS, 1e11, {"memory": 1e10, "cache": 5e10})


def traces():
    return figures.ranks_of_a_step([ONE, OTHER], 0.0, 0.010, title="A step")


def memory():
    return figures.memory_over_time(ONE)


def bars():
    return figures.reading_times({"cold": {"a": 0.1, "b": 0.2}, "warm": {"a": 0.01, "b": 0.1}})


@pytest.mark.parametrize("make", [roofline, traces, memory, bars])
def test_figures_have_alt_text_and_are_deterministic(make) -> None:
    figure = make()
    ElementTree.fromstring(figure.svg)
    assert len(figure.alt.split()) > 10
    assert make().svg == figure.svg


def test_point_has_its_intensity_and_rate() -> None:
    assert (POINTS[0].intensity, POINTS[0].rate) == (2.0, 2e9)


def test_trace_shows_sections_and_outermost_operators_in_range() -> None:
    whole = traces().svg
    assert ">forward<" in whole
    assert ">conv2d<" in whole
    assert ">add<" not in whole  # it lies inside of the convolution
    late = figures.ranks_of_a_step([ONE, OTHER], 0.0045, 0.0085).svg
    assert ">conv2d<" not in late
    assert late.count("<rect") < whole.count("<rect")


def test_alt_text_of_measured_figures_has_no_times() -> None:
    later = Profile(*([span._replace(end=span.end * 1.0001) for span in ONE.sections], [], []))
    one, other = (figures.ranks_of_a_step([p, OTHER], 0.0, 0.01).alt for p in (ONE, later))
    assert one == other


def test_figures_reject_bad_arguments() -> None:
    with pytest.raises(ValueError, match="needs points"):
        figures.roofline([], 1.0, {"memory": 1.0})
    with pytest.raises(ValueError, match="is empty"):
        figures.ranks_of_a_step([ONE], 1.0, 1.0)
    with pytest.raises(ValueError, match="profile_memory=True"):
        figures.memory_over_time(OTHER)
    with pytest.raises(ValueError, match="same ways"):
        figures.reading_times({"cold": {"a": 1.0}, "warm": {"b": 1.0}})
