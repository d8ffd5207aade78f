"""The checks of lesson 10b: slices and shards must give the whole result for the fewest bytes.

Two checks try the learner's function on all ranks and on one rank fewer; the third compares it with
the formulas of the ZeRO paper.
"""

from __future__ import annotations

from course_lib.teaching.exercise import as_mistake, exercise

ROW_HINTS = [
    "Each rank can multiply what it has. Its product already has the right shape. What does it "
    "still lack?",
    "The whole product is the sum of the ranks' products. The bias belongs to the sum, not to each "
    "of its terms.",
    "```python\nproduct = inputs @ weight.T\n...  # sum the products over the group\n"
    "return product + bias\n```",
]


@exercise("10b.row_linear", function="row_linear", where="engines", hints=ROW_HINTS)
def check_row_linear(row_linear) -> str:
    from course_lib.teaching.judges.rank_groups import on_each_rank, with_smaller_group

    from .judge_slices import judge_row_linear, try_row_linear

    def judge(ranks: list[int] | None, p: int) -> None:
        judge_row_linear(on_each_rank(lambda group: try_row_linear(row_linear, group), ranks), p)

    with_smaller_group(judge)
    return "Every rank has the whole output, after one all-reduce of its size."


STEP_HINTS = [
    "Each rank updates one part of the weights, so which part of the mean gradient does it need? "
    "And what does it have to send to the others afterwards?",
    "`dist.reduce_scatter(part, parts)` gives rank r part r of the sum, and "
    "`dist.all_gather(parts, part)` puts the parts together again. `list(vector.chunk(p))` "
    "returns the parts of a vector as views. The update comes between the two, on one part only.",
    "```python\n"
    "part = torch.empty_like(velocity)\n"
    "dist.reduce_scatter(part, list(gradient.chunk(p)), group=group)\n"
    "velocity.mul_(0.9).add_(part / p)\n"
    "...  # this rank's part of the weights, minus 0.1 * velocity\n"
    "...  # all parts into weights\n"
    "```",
]


@exercise("10b.sharded_step", function="sharded_step", where="engines", hints=STEP_HINTS)
def check_sharded_step(sharded_step) -> str:
    from course_lib.teaching.judges.rank_groups import on_each_rank, with_smaller_group

    from .judge_shards import PARTS, judge_sharded_step, try_sharded_step

    def try_part(part: int, ranks: list[int] | None, p: int) -> None:
        found = on_each_rank(lambda group: try_sharded_step(sharded_step, part, group), ranks)
        judge_sharded_step(found, p, part)

    def judge(ranks: list[int] | None, p: int) -> None:
        first, other = PARTS
        try_part(first, ranks, p)
        if ranks is None:
            with as_mistake("length-is-fixed", first=first, other=other):
                try_part(other, ranks, p)

    with_smaller_group(judge)
    return "SGD with momentum, a part of its state per rank, and no more bytes than an all-reduce."


BYTES_HINTS = [
    "16 bytes per parameter in all: 2 for weights, 2 for gradients, 12 for the optimizer. Each "
    "stage divides one more of the three by the number of ranks.",
    "Stage 1 divides the optimizer's 12 bytes, stage 2 the gradients' 2 as well, stage 3 the "
    "weights' 2 too. Stage 0 divides nothing.",
    "```python\n"
    "weights = 2 / ranks if stage >= 3 else 2\n"
    "...  # the other two in the same way\n"
    "return parameters * (weights + gradients + optimizer)\n"
    "```",
]


@exercise("10b.bytes_per_rank", function="bytes_per_rank", where="notebook", hints=BYTES_HINTS)
def check_bytes_per_rank(bytes_per_rank) -> str:
    from .judge_memory import judge_bytes_per_rank

    judge_bytes_per_rank(bytes_per_rank)
    return "16 bytes per parameter in all, and each stage divides one more kind."
