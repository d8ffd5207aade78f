"""What the judges of lesson 10c hold answers to: bytes, chunks, partial softmaxes, gradients."""

import pytest
import torch
from rank_by_rank.lesson_10c.judge_bytes import expected
from rank_by_rank.lesson_10c.judge_gradients import gradients_of
from rank_by_rank.lesson_10c.judge_merge import part_of
from rank_by_rank.lesson_10c.judge_order import chunk


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("kv_heads", [8, 16])
def test_bytes_are_the_sum_of_all_messages(ranks: int, kv_heads: int) -> None:
    tokens, heads, d = 64, 16, 4
    n = tokens // ranks
    ring = sum(2 * n * kv_heads * d * 2 for _step in range(ranks - 1))
    others = range(ranks - 1)
    ulysses = sum(
        n * (some // ranks) * d * 2 for _ in others for some in (heads, kv_heads, kv_heads, heads)
    )
    assert expected("ring", tokens, ranks, heads, kv_heads, d) == ring
    assert expected("ulysses", tokens, ranks, heads, kv_heads, d) == ulysses


@pytest.mark.parametrize(("tokens", "ranks"), [(16, 4), (37, 4), (5, 4), (0, 2), (7, 1)])
def test_chunks_cover_the_sequence_once(tokens: int, ranks: int) -> None:
    chunks = [chunk(number, tokens, ranks) for number in range(2 * ranks)]
    assert [position for one in chunks for position in one] == list(range(tokens))
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1


def test_a_chunk_and_its_counterpart_see_equally_many_keys() -> None:
    tokens, ranks = 48, 4
    seen = [
        sum(p + 1 for c in (r, 2 * ranks - 1 - r) for p in chunk(c, tokens, ranks))
        for r in range(ranks)
    ]
    assert len(set(seen)) == 1


def test_part_is_softmax_or_zero_if_fully_masked() -> None:
    scores, values = torch.randn(3, 5, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    scores[1] = -torch.inf
    m, total, weighted = part_of(scores, values)
    seen = [0, 2]
    expected_output = torch.softmax(scores[seen], -1) @ values
    torch.testing.assert_close(weighted[seen] / total[seen, None], expected_output)
    assert m[1] == -torch.inf
    assert (total[1], weighted[1].tolist()) == (0, [0, 0])


def test_sums_over_different_ranks_differ() -> None:
    """Therefore a sum over the wrong ranks is never right."""
    experts = [gradients_of(rank, torch.float64)[1][0][0].item() for rank in range(4)]
    groups = [[r for r in range(4) if mask >> r & 1] for mask in range(1, 16)]
    assert len({sum(experts[r] for r in group) for group in groups}) == 15
