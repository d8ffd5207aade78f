"""Answers that do something to the process in which they are judged."""

from __future__ import annotations

import threading

import pytest

from course_lib.grading import __main__ as grading
from course_lib.grading import one_notebook
from course_lib.grading.answers import Answer
from course_lib.grading.outcomes import Kept, Outcome
from course_lib.grading.submissions import Learner
from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.solution_marks import unmarked

pytestmark = pytest.mark.timeout(120)

RIGHT = unmarked(exercise_cell("10.cut"))


def judged(*codes: str) -> list[Outcome]:
    answers = [Answer("10.cut", code) for code in codes]
    return list(one_notebook.judge(answers, 20, threading.Event()))


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    (outcome,) = judged("import os\nos.kill(os.getpid(), 40)")
    assert outcome.text == "Its process was killed by signal 40."


def test_an_exception_of_a_cell_that_cannot_be_shown() -> None:
    code = "class E(Exception):\n    def __str__(self):\n        raise RuntimeError\n\nraise E"
    (outcome,) = judged(code)
    assert outcome.text == (
        "The cell raised E: (its text cannot be shown: that raised RuntimeError)"
    )


def test_a_cell_that_forks_does_not_affect_the_next_answer() -> None:
    first, second = judged(f"import os\nos.fork()\n{RIGHT}", RIGHT)
    assert (first.kind, second.kind) == ("right", "right"), (first, second)


def test_a_failure_of_the_grader_itself_affects_one_notebook(monkeypatch, tmp_path, capsys) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no one has thought of this")

    monkeypatch.setattr(grading, "_one", fails)
    graded = grading._surely_one(Learner("ada"), "10", None, Kept(tmp_path), threading.Event())
    assert {outcome.kind for outcome in graded} == {"not judged"}
    (text,) = {outcome.text for outcome in graded}
    assert text == (
        "The grader itself failed; please report this: RuntimeError: no one has thought of this"
    )
    assert "in fails" in capsys.readouterr().err
