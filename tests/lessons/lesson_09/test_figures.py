"""A sequence diagram shows the messages that there were; a histogram counts what it was given."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from itertools import pairwise

import pytest
from rank_by_rank.lesson_09 import figures

from course_lib.teaching.figures.palette import PAPER, rank_colour

SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Event:
    rank: int
    kind: str
    peer: int
    label: str
    start: float
    end: float


def conversation():
    """Worker 2 says hello while the server (0) is busy with worker 1."""
    return [
        Event(0, "recv", 1, "hello", 0.000, 0.0102),
        Event(1, "send", 0, "hello", 0.010, 0.0101),
        Event(2, "send", 0, "hello", 0.011, 0.0111),
        Event(0, "send", 1, "parameters", 0.014, 0.0141),
        Event(1, "recv", 0, "parameters", 0.0101, 0.0142),
        Event(0, "recv", 2, "hello", 0.0142, 0.0143),
        Event(0, "send", 2, "parameters", 0.017, 0.0171),
        Event(2, "recv", 0, "parameters", 0.0111, 0.0172),
    ]


def parts(figure):
    return ElementTree.fromstring(figure.svg)


def arrows(figure):
    """(y of the tail, y of the head) of each arrow, as drawn."""
    found = []
    for path in parts(figure).iter(f"{SVG}path"):
        if path.get("marker-end"):
            numbers = [float(v) for v in re.findall(r"-?\d+\.?\d*", path.get("d"))]
            found.append((numbers[1], numbers[3]))
    return found


def waits(figure, rank):
    """Heights of the hatched bars in the column of ``rank``, the key left out."""
    bars = [
        bar
        for bar in parts(figure).iter(f"{SVG}rect")
        if bar.get("fill", "").startswith("url(#hatch") and bar.get("stroke") == rank_colour(rank)
    ]
    column = float(bars[0].get("x"))
    return [float(bar.get("height")) for bar in bars if float(bar.get("x")) == column]


def test_every_message_is_an_arrow_forward_in_time():
    figure = figures.sequence(conversation())
    assert len(arrows(figure)) == 4
    assert all(head >= tail for tail, head in arrows(figure))
    tails = [tail for tail, _ in arrows(figure)]
    assert tails == sorted(tails)
    assert all(later - earlier >= 20 for earlier, later in pairwise(tails))


def test_alt_text_describes_the_arrows():
    words = figures.sequence(conversation(), roles={0: "server"}, title="Two").alt
    assert words == (
        "Two: sequence diagram of server, rank 1, rank 2. "
        'rank 1 sends "hello" to server. rank 2 sends "hello" to server. '
        'server sends "parameters" to rank 1. server sends "parameters" to rank 2.'
    )


def test_longer_waits_have_longer_hatched_bars():
    figure = figures.sequence(conversation())
    # Worker 2 waits for 6 ms, worker 1 for 4 ms.
    assert sum(waits(figure, 2)) > sum(waits(figure, 1)) > 0


def test_a_quick_send_is_work_and_a_slow_one_is_waiting():
    quick = [Event(0, "send", 1, "x", 0.0, 1e-4), Event(1, "recv", 0, "x", 0.0, 1e-3)]
    slow = [Event(0, "send", 1, "x", 0.0, 0.5), Event(1, "recv", 0, "x", 0.4, 0.5)]
    hatch = f"url(#hatch-{rank_colour(0).lstrip('#')})"
    assert hatch not in figures.sequence(quick).svg
    assert hatch in figures.sequence(slow).svg


def test_messages_with_a_label_are_joined_if_finished():
    events = [Event(0, "send", 1, "x", t, t + 1e-5) for t in (0.0, 0.1)]
    events += [Event(1, "recv", 0, "x", 0.0, 0.05), Event(1, "recv", 0, "x", 0.05, 0.15)]
    events += [Event(1, "recv", None, "x", 0.15, None)]
    (tail, head), (later_tail, _) = arrows(figures.sequence(events))
    assert tail < head < later_tail


def test_a_part_of_the_time_can_be_drawn():
    assert len(arrows(figures.sequence(conversation(), last=0.0145))) == 3
    assert len(arrows(figures.sequence(conversation(), first=0.012))) == 2


def test_longer_times_take_more_space():
    def after(seconds):
        events = [Event(0, "send", 1, "x", t, t) for t in (0.0, seconds)]
        return [*events, Event(1, "recv", 0, "x", 0, 1e-6), Event(1, "recv", 0, "x", 0, seconds)]

    short, long = (arrows(figures.sequence(after(seconds))) for seconds in (1e-5, 0.05))
    assert short[1][0] - short[0][0] < long[1][0] - long[0][0]


def test_clock_skew_never_makes_an_arrow_point_up():
    events = [Event(0, "send", 1, "x", 1.0, 1.0001), Event(1, "recv", 0, "x", 0.5, 0.9)]
    ((tail, head),) = arrows(figures.sequence(events))
    assert head >= tail


def test_text_is_inside_the_figure_and_large_enough():
    long = [Event(0, "send", 7, "parameters", 0.0, 1e-5), Event(7, "recv", 0, "parameters", 0, 1)]
    for figure in (figures.sequence(conversation(), title="Two"), figures.sequence(long)):
        root = parts(figure)
        width, height = (float(v) for v in root.get("viewBox").split()[2:])
        assert root.find(f"{SVG}rect").get("fill") == PAPER
        for text in root.iter(f"{SVG}text"):
            long_ = 0.62 * float(text.get("font-size")) * len(text.text)
            start = {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
            left = float(text.get("x")) - start * long_
            assert left >= 0, text.text
            assert left + long_ <= width, text.text
            assert 0 < float(text.get("y")) < height
            assert float(text.get("font-size")) >= 13


def test_figure_is_deterministic():
    assert figures.sequence(conversation()).svg == figures.sequence(conversation()[::-1]).svg


def bars(figure):
    """Heights of a histogram's bars as multiples of the smallest."""
    heights = []
    for path in parts(figure).iter(f"{SVG}path"):
        if path.get("clip-path") and "fill: #" in (path.get("style") or ""):
            ys = [float(pair.split()[1]) for pair in re.findall(r"[ML] ([\d. ]+)", path.get("d"))]
            heights.append(max(ys) - min(ys))
    return [round(height / min(heights), 3) for height in heights]


def test_histogram_shows_counts_and_mean():
    figure = figures.histogram({"run": [0, 1, 1, 1, 2, 2]}, predicted=1)
    assert bars(figure) == [1, 3, 2]
    assert figure.svg == figures.histogram({"run": [2, 1, 1, 0, 1, 2]}, predicted=1).svg
    assert "Solid line: the mean; dotted line: predicted." in figure.alt
    assert "predicted" not in figures.histogram({"run": [0]}).alt


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figures.sequence([]), "no message"),
        (lambda: figures.sequence(conversation(), first=9.0), "no message"),
        (lambda: figures.histogram({}), "no numbers"),
        (lambda: figures.histogram({"run": []}), "in 'run'"),
    ],
)
def test_bad_arguments_are_rejected(call, words):
    with pytest.raises(ValueError, match=words):
        call()
