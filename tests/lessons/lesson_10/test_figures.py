"""The figure of lesson 10: who computes which micro-batch when."""

import xml.etree.ElementTree as ElementTree

from rank_by_rank.lesson_10 import pipeline_schedules as schedules
from rank_by_rank.lesson_10.figures import pipeline

GPIPE = schedules.times(schedules.gpipe(4, 8), {"F": 1, "B": 2})


def test_pipeline_has_alt_text_and_is_deterministic() -> None:
    figure = pipeline(GPIPE, "GPipe")
    words = "".join(ElementTree.fromstring(figure.svg).itertext())
    assert "GPipe: 27% idle" in words
    assert "forward" in words
    assert "backward" in words
    assert "weights" not in words
    assert "time (units)" in words
    assert "35" not in words
    assert "33 units" in figure.alt
    assert "27% is idle" in figure.alt
    assert "F0 F1 F2 F3" in figure.alt
    assert pipeline(GPIPE, "GPipe").svg == figure.svg


def test_each_task_is_a_box() -> None:
    fewer = schedules.times(schedules.gpipe(4, 7), {"F": 1, "B": 2})
    counts = [pipeline(placed, "").svg.count("<rect") for placed in (GPIPE, fewer)]
    assert counts[0] - counts[1] == 4 * 2


def test_comparison_shows_both_lengths_and_held_micro_batches() -> None:
    placed = schedules.times(schedules.zero_bubble(4, 8), {"F": 1, "B": 1, "W": 1})
    figure = pipeline(placed, "ZB-H1", holds=True, against=("1F1B", GPIPE))
    texts = [text.text for text in ElementTree.fromstring(figure.svg).iter() if text.text]
    assert {"W: backward, weights", "27", "1F1B: 33", "holds"} <= set(texts)
    assert "1F1B takes 33 units. The ranks hold 4, 4, 4, 4 micro-batches at most." in figure.alt
    assert "over 27 units" in figure.alt
    alone = pipeline(placed, "ZB-H1")
    assert "holds" not in alone.svg
    assert "1F1B" not in alone.svg


def test_held_micro_batches_are_counted_per_rank() -> None:
    placed = schedules.times(schedules.one_f_one_b(4, 8), {"F": 1, "B": 2})
    assert "hold 4, 3, 2, 1 micro-batches" in pipeline(placed, "1F1B", holds=True).alt


def test_measured_pipeline_has_its_own_alt_text() -> None:
    figure = pipeline(GPIPE, "GPipe", measured=True, alt="what was seen")
    assert figure.alt == "what was seen"
    assert "(measured here)" in figure.svg
    assert "time (ms)" in figure.svg
    assert ">5000<" in figure.svg
