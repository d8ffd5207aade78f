"""Each mistake of lesson 11 that is recognised gives answers that nothing else gives."""

from __future__ import annotations

import pytest
from rank_by_rank.lesson_11 import judge_culprit, judge_roofline
from rank_by_rank.lesson_11.judge_culprit import expected, made_up, waited

from course_lib.teaching.exercise import WrongAnswer


def test_trace_mistakes_and_answer_are_all_different() -> None:
    cases = list(made_up().values())
    answers = [tuple(expected(case) for case in cases)]
    answers += [
        tuple(makes(case) for case in cases) for _, makes in judge_culprit._CULPRIT_MISTAKES
    ]
    assert len(set(answers)) == len(answers)


def test_made_up_traces_have_one_clear_culprit() -> None:
    for case in made_up().values():
        waits = sorted(waited(spans) for spans in case)
        assert waits[0] < 0.7 * waits[1]


def test_spans_are_disjoint_or_nested() -> None:
    for case in made_up().values():
        for spans in case:
            for _, a, b in spans:
                for _, c, d in spans:
                    assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


@pytest.mark.parametrize(
    ("mistakes", "right", "cases"),
    [
        (
            judge_roofline._INTENSITY_MISTAKES,
            judge_roofline.intensity,
            judge_roofline._INTENSITY_CASES,
        ),
        (judge_roofline._LEAST_MISTAKES, judge_roofline.least, judge_roofline._LEAST_CASES),
    ],
    ids=["intensity", "least"],
)
def test_formula_mistakes_and_answer_are_all_different(mistakes, right, cases) -> None:
    answers = [str([mistake.makes(*case) for case in cases]) for mistake in mistakes]
    answers.append(str([right(*case) for case in cases]))
    assert len(set(answers)) == len(answers)


def test_leftover_file_does_not_affect_a_right_answer() -> None:
    from rank_by_rank.lesson_11.judge_reads import judge_read_share

    def forgets_where_it_stands(file, starts, rank, world_size):
        n = len(starts) - 1
        first, last = n * rank // world_size, n * (rank + 1) // world_size
        return [file.read(starts[i + 1] - starts[i]) for i in range(first, last)]

    with pytest.raises(WrongAnswer) as caught:
        judge_read_share(forgets_where_it_stands)
    assert caught.value.name == "wrong-place-in-the-file"
