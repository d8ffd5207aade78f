"""The figure of lesson 10: who computes which micro-batch when."""

import xml.etree.ElementTree as ElementTree

from course_lib.parallel import pipeline_schedules as schedules
from notebooks.lesson_10.figures import pipeline

GPIPE = schedules.times(schedules.gpipe(4, 8), {"F": 1, "B": 2})


def test_it_is_a_picture_with_words_the_same_each_time() -> None:
    figure = pipeline(GPIPE, "GPipe")
    words = "".join(ElementTree.fromstring(figure.svg).itertext())
    assert "GPipe: 27% idle" in words
    assert "forward" in words
    assert "backward" in words
    assert "weights' half" not in words
    assert "27% is idle" in figure.alt
    assert "F0 F1 F2 F3" in figure.alt
    assert pipeline(GPIPE, "GPipe").svg == figure.svg


def test_each_task_is_a_box() -> None:
    fewer = schedules.times(schedules.gpipe(4, 7), {"F": 1, "B": 2})
    counts = [pipeline(placed, "").svg.count("<rect") for placed in (GPIPE, fewer)]
    assert counts[0] - counts[1] == 4 * 2


def test_weights_are_apart_where_the_schedule_has_them_apart() -> None:
    placed = schedules.times(schedules.zero_bubble(4, 8), {"F": 1, "B": 1, "W": 1})
    assert "weights' half" in pipeline(placed, "Zero bubble").svg.replace("&#x27;", "'")


def test_measured_times_have_words_of_their_own() -> None:
    figure = pipeline(GPIPE, "GPipe", measured=True, alt="what was seen")
    assert figure.alt == "what was seen"
    assert "(measured here)" in figure.svg
