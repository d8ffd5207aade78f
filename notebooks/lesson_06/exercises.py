"""The checks of lesson 06: formulas by their results, overlap by when messages are sent.

Four run in the notebook, one on the ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise

# Each check imports its judges when it is called: a notebook's kernel imports this module too.

EPOCH_HINTS = [
    "Two questions: how many steps does an epoch have when R ranks take B samples each at the same "
    "time, and how long does one step take?",
    "There are N / (R B) steps. A step takes T_comp, plus T_sync if there is another rank to "
    "synchronise with.",
    "```python\n"
    "steps = samples / (ranks * batch)\n"
    "step_seconds = comp + ...  # sync, but not for one rank alone\n"
    "return steps * step_seconds\n"
    "```",
]


@exercise("06.epoch_seconds", function="epoch_seconds", where="notebook", hints=EPOCH_HINTS)
def check_epoch_seconds(epoch_seconds: Callable) -> str:
    from .judge_formulas import judge_epoch

    judge_epoch(epoch_seconds)
    return "Your function handles one rank as well as several."


FEWEST_HINTS = [
    "Try R = 2, 3, 4, ... one after another, and stop at the first that pays. T_sync is "
    "different for each R.",
    "R pays if `sync_of(R) / comp < R - 1`; equality is not enough. If the loop has tried "
    "every R up to and including `most` without finding one, no number of ranks pays.",
    "```python\n"
    "for ranks in range(2, most + 1):\n"
    "    if ...:  # the condition\n"
    "        return ranks\n"
    "return None\n"
    "```",
]


@exercise("06.fewest_ranks", function="fewest_ranks", where="notebook", hints=FEWEST_HINTS)
def check_fewest_ranks(fewest_ranks: Callable) -> str:
    from .judge_formulas import judge_fewest

    judge_fewest(fewest_ranks)
    return "Your function finds the smallest number that pays, and None if no number does."


BUCKETS_HINTS = [
    "The hooks are called in the order in which backward computes the gradients. So the list of "
    "waiting gradients fills by itself; you only have to decide when to send it.",
    "In the hook: append the parameter; if the list holds at least `bucket_bytes` bytes, flatten "
    "the gradients into one tensor, start an all-reduce with `async_op=True`, remember the handle, "
    "the tensor and the parameters, and empty the list. In `finish`: send the rest, wait for all "
    "handles, divide, copy the parts back, and clear the list of handles.",
    "```python\n"
    "waiting, sent = [], []\n\n"
    "def send():\n"
    "    flat = torch.cat([p.grad.flatten() for p in waiting])\n"
    "    handle = dist.all_reduce(flat, group=group, async_op=True)\n"
    "    sent.append((handle, flat, list(waiting)))\n"
    "    waiting.clear()\n\n"
    "def hook(parameter):\n"
    "    waiting.append(parameter)\n"
    "    ...  # send if it is full\n\n"
    "def finish():\n"
    "    ...  # send what is left; for each of sent: wait, divide, split, copy_\n"
    "    sent.clear()\n"
    "```\n"
    "Then call `parameter.register_post_accumulate_grad_hook(hook)` for each parameter, and "
    "`return finish`.",
]


@exercise("06.bucketed_sync", function="bucketed_sync", where="engines", hints=BUCKETS_HINTS)
def check_bucketed_sync(bucketed_sync: Callable) -> str:
    import torch

    from course_lib.teaching.judges.rank_groups import on_each_rank, with_smaller_group

    from .judge_buckets import judge_buckets, judge_wide_buckets, try_buckets

    def wide(group) -> dict:
        return try_buckets(bucketed_sync, group, torch.float64)

    def judge(ranks: list[int] | None, p: int) -> None:
        judge_buckets(on_each_rank(lambda group: try_buckets(bucketed_sync, group), ranks), p)
        if ranks is None:
            judge_wide_buckets(on_each_rank(wide), p)

    with_smaller_group(judge)
    return "Five parameters travel in three messages, and two of these leave before backward ends."


WAITING_HINTS = [
    "All ranks begin a step together, and it ends when the slowest is done. How long does it "
    "take, and for how much of that time did each rank compute?",
    "In each step, all ranks together spend R times the maximum. They compute for the sum of "
    "all the times. The rest is waiting.",
    "```python\n"
    "ranks = len(times[0])\n"
    "spent = ranks * sum(max(step) for step in times)\n"
    "computed = ...\n"
    "return (spent - computed) / spent\n"
    "```",
]


@exercise("06.waiting_share", function="waiting_share", where="notebook", hints=WAITING_HINTS)
def check_waiting_share(waiting_share: Callable) -> str:
    from .judge_formulas import judge_waiting

    judge_waiting(waiting_share)
    return "Each step has its own slowest rank."


EFFICIENCY_HINTS = [
    "An efficiency compares the samples per second *per rank* of the large run with those of the "
    "baseline. The baseline may have had several ranks too.",
    "e = (rate / ranks) / (base_rate / base_ranks). Relative to a baseline that loses nothing, "
    "e = T_comp / (T_comp + T_sync). Solve that for T_sync / T_comp.",
    "```python\n"
    "efficiency = (rate / ranks) / (base_rate / base_ranks)\n"
    "ratio = ...  # from efficiency = 1 / (1 + ratio)\n"
    "return efficiency, ratio\n"
    "```",
]


@exercise(
    "06.read_efficiency", function="read_efficiency", where="notebook", hints=EFFICIENCY_HINTS
)
def check_read_efficiency(read_efficiency: Callable) -> str:
    from .judge_formulas import judge_efficiency

    judge_efficiency(read_efficiency)
    return "Your function handles any baseline, and finds T_sync / T_comp from the efficiency."
