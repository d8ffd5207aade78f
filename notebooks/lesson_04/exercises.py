"""The checks of lesson 04: most mistakes are a wrong weight in a sum over samples.

Two checks run in the notebook, two on the ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise
from course_lib.teaching.judges.trials import second_call

# Each check imports its judges when it is called: a notebook's kernel imports this module too.

# ---- backward by hand -------------------------------------------------------------------------

BACKWARD_HINTS = [
    "Write the forward pass as four lines, `u`, `h`, `e` and `loss`, and go back through them in "
    "reverse order. `w` occurs in two places, so add up two contributions for it.",
    "Start with `d_e = 2 * e`. Then `d_h = d_e`. A ReLU passes its gradient on where `u` is "
    "positive, and passes on nothing elsewhere. That leaves `u = w * x + b`, and the `w ** 2`.",
    "```python\n"
    "u = w * x + b\n"
    "h = max(u, 0)\n"
    "e = h - y\n"
    "d_u = 2 * e if u > 0 else 0\n"
    "d_w = ...  # through u: d_u times the local derivative; directly: that of w ** 2\n"
    "d_b = ...\n"
    "return e**2 + w**2, d_w, d_b\n"
    "```",
]


@exercise("04.gradients", function="gradients", where="notebook", hints=BACKWARD_HINTS)
def check_gradients(gradients: Callable) -> str:
    from .judge_gradients import judge_gradients

    judge_gradients(gradients)
    return "All three are exact, for positive and for negative u."


# ---- gradient accumulation --------------------------------------------------------------------

ACCUMULATE_HINTS = [
    "`backward()` *adds* to `parameter.grad`; it does not replace it. So the pieces add up by "
    "themselves if you give each one its weight before `backward()`. What is the weight of a "
    "piece of 2 samples in a batch of 10?",
    "Clear the gradients once, at the start. Split with `images.split(most)` and "
    "`labels.split(most)`: the last piece may be smaller. The mean over a piece, times "
    "`len(piece) / len(images)`, is its part of the mean over the batch.",
    "```python\n"
    "model.zero_grad()\n"
    "for x, y in zip(images.split(most), labels.split(most)):\n"
    "    loss = loss_function(model(x), y) * ...  # this piece's weight\n"
    "    loss.backward()\n"
    "```",
]


@exercise(
    "04.accumulate_gradient",
    function="accumulate_gradient",
    where="notebook",
    hints=ACCUMULATE_HINTS,
)
def check_accumulate_gradient(accumulate_gradient: Callable) -> str:
    from .judge_gradients import judge_accumulation

    pieces, enough = judge_accumulation(accumulate_gradient)
    told = "The gradient of the whole batch, with at most 4 samples in the model at a time."
    if pieces > enough:
        told += f" (You used {pieces} pieces; {enough} are enough, and each call takes time.)"
    return told


# ---- the mean over uneven shards --------------------------------------------------------------

MEAN_GRADIENT_HINTS = [
    "Multiply a mean over n samples by n to recover the sum. Such sums can be added up over "
    "the ranks. What must you divide the total by, and how does a rank find that out?",
    "The total number of samples is a sum over the ranks too. Each rank's count can travel in "
    "the same all-reduce, as one more element at the end of the gradient.",
    "```python\n"
    "count = gradient.new_tensor([samples])\n"
    "flat = torch.cat([gradient * samples, count])\n"
    "dist.all_reduce(flat, group=group)\n"
    "return ...  # all but the last element, divided by the last one\n"
    "```",
]


@exercise("04.mean_gradient", function="mean_gradient", where="engines", hints=MEAN_GRADIENT_HINTS)
def check_mean_gradient(mean_gradient: Callable) -> str:
    from course_lib.teaching.judges.rank_groups import with_smaller_group

    from .judge_splitting import judge_mean_gradient, observe_mean_gradient

    def judge(ranks: list[int] | None, p: int, first: float = 1.0) -> None:
        judge_mean_gradient(observe_mean_gradient(mean_gradient, ranks, first), p, first)
        if ranks is None and first == 1:
            with second_call():
                judge(ranks, p, first=2.0)

    with_smaller_group(judge)
    return "One all-reduce, and every sample counts the same."


# ---- clipping ---------------------------------------------------------------------------------

CLIP_HINTS = [
    "What would one process do with the whole batch? It has one gradient, computes its norm, and "
    "shortens the gradient if the norm is above `largest`. A rank's own gradient has a different "
    "norm.",
    "So average first, then clip: after the all-reduce, every rank holds the same gradient, and "
    "can work out its norm without asking the others.",
    "```python\n"
    "mean = gradient.clone()\n"
    "dist.all_reduce(mean, group=group)\n"
    "mean /= dist.get_world_size(group)\n"
    "norm = mean.norm()\n"
    "return ...  # mean as it is, or scaled by largest / norm\n"
    "```",
]


@exercise("04.clipped_mean", function="clipped_mean", where="engines", hints=CLIP_HINTS)
def check_clipped_mean(clipped_mean: Callable) -> str:
    from course_lib.teaching.judges.rank_groups import with_smaller_group

    from .judge_splitting import CLIPPING_CASES, judge_clipped_mean, observe_clipped_mean

    def judge(ranks: list[int] | None, p: int) -> None:
        for case in CLIPPING_CASES:
            judge_clipped_mean(observe_clipped_mean(clipped_mean, case, ranks), case, p)

    with_smaller_group(judge)
    return "Clipped as in one process, with a single all-reduce."
