"""A rubric gives points for what the checks found, and refuses what cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib.grading import rubric
from course_lib.grading.outcomes import KINDS, Outcome
from course_lib.grading.rubric import Rubric, RubricError

FULL = """\
points = 4
[shares]
wrong = 0.25
raised = 0.1
[mistakes]
"it-hangs" = 0.5
"ring-not-closed" = 0.6
[exercises."01.ring_pass"]
points = 8
mistakes = {"ring-not-closed" = 0.75}
"""


def read(folder: Path, text: str) -> Rubric:
    (folder / "rubric.toml").write_text(text)
    return rubric.read(folder / "rubric.toml")


def test_default_rubric_gives_half_for_a_known_mistake() -> None:
    worth = {kind: Rubric().score(Outcome("01.shift", kind)) for kind in KINDS}
    assert {kind: points for kind, points in worth.items() if points} == {"right": 10, "wrong": 5}


@pytest.mark.parametrize(
    ("outcome", "points"),
    [
        (Outcome("01.shift", "right"), 4),
        (Outcome("01.ring_pass", "right"), 8),
        (Outcome("01.shift", "wrong", "some-other"), 1),
        (Outcome("01.shift", "raised", "it-raises"), 0.4),
        (Outcome("01.shift", "hangs", "it-hangs"), 2),
        (Outcome("01.shift", "wrong", "ring-not-closed"), 2.4),
        (Outcome("01.ring_pass", "wrong", "ring-not-closed"), 6),
        (Outcome("01.ring_pass", "hangs", "it-hangs"), 4),
        (Outcome("01.shift", "crashed", "it-crashes"), 0),
        (Outcome("01.shift", "not attempted"), 0),
    ],
)
def test_most_specific_share_counts(tmp_path: Path, outcome: Outcome, points: float) -> None:
    assert read(tmp_path, FULL).score(outcome) == points


def test_empty_rubric_equals_the_default(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Rubric()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("points", "rubric.toml: "),
        ("point = 3", "has no 'point'; it can have: exercises"),
        ("points = -1", "points = -1: give a number from 0"),
        ("points = true", "points = True: give a number"),
        ("[shares]\nrigth = 1", "[shares] has no 'rigth'"),
        ("[shares]\nright = 1.5", "[shares] right = 1.5: give a number from 0 to 1"),
        ('[mistakes]\n"ring-not-close" = 0', "[mistakes] has no 'ring-not-close'"),
        ("mistakes = 3", "[mistakes]: expected a table"),
        ('[exercises."01.ring"]', "[exercises] has no '01.ring'"),
        ('[exercises."01.shift"]\npoint = 3', "has no 'point'; it can have: mistakes, points"),
        ('[exercises."01.shift".mistakes]\n"drops-the-rest" = 0', "has no 'drops-the-rest'"),
    ],
)
def test_malformed_rubric_is_explained(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(RubricError) as caught:
        read(tmp_path, text)
    assert problem in str(caught.value)
