"""The last line of a program."""

from __future__ import annotations

import json

from course_lib.training.report import result_line


def test_a_result_line_is_one_line_of_json() -> None:
    line = result_line(script="x", loss=0.123456789, steps=3, by_size={4: 1.5})
    assert json.loads(line) == {"script": "x", "loss": 0.123457, "steps": 3, "by_size": {"4": 1.5}}
    assert "\n" not in line
