"""The figures of lesson 10c: ring attention, causal work, dispatch and combine, experts' loads."""

import xml.etree.ElementTree as ElementTree

import pytest
from rank_by_rank.lesson_10c import figures

CONTIGUOUS, ZIGZAG = [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 7], [1, 6], [2, 5], [3, 4]]


def work():
    return figures.causal_work({"one": CONTIGUOUS, "other": ZIGZAG})


def loads():
    return figures.expert_loads({"before": [4.0, 1.0, 1.0], "after": [2.0, 2.0, 2.0]})


@pytest.mark.parametrize(
    "make", [figures.ring_of_keys, figures.tokens_to_experts, work, loads], ids=lambda f: f.__name__
)
def test_figures_have_alt_text_and_are_deterministic(make) -> None:
    figure = make()
    ElementTree.fromstring(figure.svg)
    assert len(figure.alt.split()) > 10
    assert make().svg == figure.svg


def test_the_alternative_text_of_causal_work_counts_pairs() -> None:
    assert "one: 3, 7, 11, 15; other: 9, 9, 9, 9" in work().alt


def test_causal_work_draws_a_square_per_pair_and_a_bar_per_rank() -> None:
    one = figures.causal_work({"one": CONTIGUOUS}).svg
    assert work().svg.count("<rect") - one.count("<rect") == 8 * 8 + 4


def test_a_ring_of_more_ranks_has_more_steps() -> None:
    four, two = figures.ring_of_keys(4).svg, figures.ring_of_keys(2).svg
    assert four.count("<rect") - two.count("<rect") == 4 * (4 + 1) - 2 * (2 + 1)


def test_causal_work_rejects_orders_that_omit_a_chunk() -> None:
    with pytest.raises(ValueError, match="broken: each of the chunks 0 to 3 once"):
        figures.causal_work({"broken": [[0, 1], [2, 2]]})
    with pytest.raises(ValueError, match="3 orders: there is room for one or two"):
        figures.causal_work(dict.fromkeys("abc", ZIGZAG))


def test_expert_loads_rejects_a_router_without_copies() -> None:
    with pytest.raises(ValueError, match="none: no copies"):
        figures.expert_loads({"none": [0.0, 0.0]})
