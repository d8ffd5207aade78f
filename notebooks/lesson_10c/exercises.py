"""The checks of lesson 10c: attention in parts, and experts on several ranks.

Three checks try the learner's function on each rank by itself, one tries it on groups of ranks, and
one compares it with a formula in the notebook.
"""

from __future__ import annotations

from course_lib.teaching.exercise import exercise

MERGE_HINTS = [
    "You can add numerators and denominators if all were divided by the same e^m. Which of the two "
    "values of m keeps every exponential at 1 or below?",
    "Let m be torch.maximum of both. For a part whose own maximum is m_1, the factor is "
    "exp(m_1 - m). Multiply `total` by it as it is, and `weighted` by the factor with one more "
    "dimension, `[..., None]`. Where m is minus infinity, subtract 0 instead: exp(-inf) is 0.",
    "```python\n"
    "m = torch.maximum(one[0], other[0])\n"
    "reference = m.masked_fill(m.isneginf(), 0.0)\n"
    "first, second = torch.exp(one[0] - reference), torch.exp(other[0] - reference)\n"
    "total = first * one[1] + second * other[1]\n"
    "...  # weighted in the same way\n"
    "```",
]


@exercise("10c.merge", function="merge", where="engines", hints=MERGE_HINTS, ranks=1, sure_on=1)
def check_merge(merge) -> str:
    from .judge_merge import judge_merge

    judge_merge(merge)
    return "Merged parts give the softmax of all keys, whatever the scores."


ORDER_HINTS = [
    "Queries of chunk j see j + 1 chunks of keys. How do you pair the chunks so that every pair "
    "has the same sum?",
    "The first goes with the last, the second with the last but one: j and 2p - 1 - j.",
    "```python\n"
    "def positions(chunk):\n"
    "    return list(range(chunk * tokens // (2 * ranks), ...))\n\n"
    "return [positions(r) + positions(...) for r in range(ranks)]\n"
    "```",
]


@exercise(
    "10c.balanced_order",
    function="balanced_order",
    where="engines",
    hints=ORDER_HINTS,
    ranks=1,
    sure_on=1,
)
def check_balanced_order(balanced_order) -> str:
    from .judge_order import judge_order

    judge_order(balanced_order)
    return "All ranks compute the same number of pairs, and each token is on one rank."


BYTES_HINTS = [
    "The ring passes on keys and values p - 1 times. Ulysses exchanges four tensors, and 1/p of "
    "each stays on its rank.",
    "A rank's part of a tensor with H heads has tokens / ranks * H * d numbers of 2 bytes. Queries "
    "and output have `heads`, keys and values `kv_heads`.",
    "```python\n"
    "n = tokens // ranks\n"
    'if way == "ring":\n'
    "    return (ranks - 1) * 2 * n * kv_heads * d * 2\n"
    "...  # (ranks - 1) / ranks of four tensors\n"
    "```",
]


@exercise("10c.attention_bytes", function="attention_bytes", where="notebook", hints=BYTES_HINTS)
def check_attention_bytes(attention_bytes) -> str:
    from .judge_bytes import judge_bytes

    judge_bytes(attention_bytes)
    return "The ring sends keys and values only. Ulysses sends all four, 1/p of each to each rank."


DISPATCH_HINTS = [
    "Sorting gives the order, counting gives the counts. Neither needs a loop over the copies.",
    "`torch.argsort(chosen)` returns the indices of the copies in the order of their experts. "
    "`torch.bincount` counts. Tell it how many experts there are; otherwise it stops at the last "
    "expert that was chosen.",
    "```python\n"
    "order = torch.argsort(chosen)\n"
    "counts = torch.bincount(chosen, minlength=...)\n"
    "return order, counts.view(...)\n"
    "```",
]


@exercise(
    "10c.dispatch", function="dispatch", where="engines", hints=DISPATCH_HINTS, ranks=1, sure_on=1
)
def check_dispatch(dispatch) -> str:
    from .judge_dispatch import judge_dispatch

    judge_dispatch(dispatch)
    return "The copies are sorted by expert, and all experts are counted, including the empty ones."


AVERAGE_HINTS = [
    "Add up over the ranks that have the weight, and divide by the number of ranks that have "
    "samples. Which ranks have the weight?",
    "Shared gradients: all_reduce over `everyone`. Experts' gradients: all_reduce over "
    "`replicas`. The gradient of an expert is already a sum over its team, so both kinds are "
    "divided by the size of `everyone`.",
    "```python\n"
    "for gradient in shared:\n"
    "    dist.all_reduce(gradient, group=everyone)\n"
    "    gradient /= dist.get_world_size(everyone)\n"
    "...  # the experts' in the same way, over another group\n"
    "```",
]


@exercise(
    "10c.average_gradients", function="average_gradients", where="engines", hints=AVERAGE_HINTS
)
def check_average_gradients(average_gradients) -> str:
    from course_lib.teaching.judges.rank_groups import on_each_rank, with_smaller_group

    from .judge_gradients import judge_gradients, try_gradients

    def judge(ranks: list[int] | None, p: int) -> None:
        judge_gradients(on_each_rank(lambda group: try_gradients(average_gradients, group), ranks))

    with_smaller_group(judge)
    return "Every gradient is that of the mean loss over all samples."
