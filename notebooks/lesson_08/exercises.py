"""The checks of lesson 08: training with DDP must give the same result as one process.

Each check tries the learner's function with real replicas. It judges the numbers first, and then
the collectives that the function called.
"""

from __future__ import annotations

import functools

from course_lib.teaching.exercise import as_mistake, exercise

EPOCHS_HINTS = [
    "The sampler does not notice that an epoch is over. One call tells it, and it matters where "
    "you put that call.",
    "`DistributedSampler` shuffles with the seed `seed + epoch`. It computes this number when the "
    "loop over the loader *begins*. The number must be the same on all ranks.",
    "Put `sampler.set_epoch(epoch)` between the two `for` lines.",
]


@exercise("08.train_epochs", function="train_epochs", where="notebook", hints=EPOCHS_HINTS)
def check_train_epochs(train_epochs) -> str:
    from .judge_epochs import REPLICAS, epochs_of, judge_epochs

    judge_epochs([epochs_of(train_epochs, rank) for rank in range(REPLICAS)])
    return "Each epoch has every sample once, in its own order, and the ranks agree on that order."


ACCURACY_HINTS = [
    "The sampler repeats samples until all ranks have the same number. Which entries of `right` "
    "are such repeats? Leave them out of the numerator and of the denominator.",
    "Without shuffling, entry k of rank r is sample `r + k * p` of the test set, where p is the "
    "number of ranks in the group. The entry is a repeat if that number is `samples` or more.",
    "```python\n"
    "p, r = dist.get_world_size(group), dist.get_rank(group)\n"
    "real = r + p * torch.arange(len(right)) < samples\n"
    "count = (right & real).sum()\n"
    "```\n"
    "Now all-reduce `count` once, and divide by `samples`.",
]


@exercise("08.global_accuracy", function="global_accuracy", where="engines", hints=ACCURACY_HINTS)
def check_global_accuracy(global_accuracy) -> str:
    from course_lib.teaching.judges.rank_groups import on_each_rank, with_smaller_group

    from .judge_samplers import judge_accuracy, try_accuracy

    def judge_samples(samples: int, ranks: list[int] | None, p: int) -> None:
        tried = functools.partial(try_accuracy, global_accuracy, samples)
        judge_accuracy(on_each_rank(tried, ranks), samples, p)

    def judge(ranks: list[int] | None, p: int) -> None:
        # With the larger number no rank's count fits into 8 bits, nor the total into 16.
        for entries in (6, 700) if ranks is None else (6,):
            judge_samples(entries * p - min(2, p - 1), ranks, p)  # so many are repeated
        with as_mistake("fails-without-repeats"):
            judge_samples(6 * p, ranks, p)

    with_smaller_group(judge)
    return "Your function sums one number per rank in one all-reduce, and each sample counts once."


ACCUMULATE_HINTS = [
    "Each `backward()` adds to `.grad`, so gradients accumulate by themselves. You only have to "
    "prevent the all-reduce in all backward passes except the last.",
    "Run forward and backward of the first n - 1 micro-batches inside `with ddp.no_sync():`, and "
    "those of the last one outside. Each loss is a mean over its micro-batch: how do you get the "
    "mean over all samples?",
    "```python\n"
    "optimizer.zero_grad()\n"
    "*first, last = batches\n"
    "with ddp.no_sync():\n"
    "    for inputs, targets in first:\n"
    "        ...  # forward and backward, of the loss divided by len(batches)\n"
    "...  # the same for the last one, then one step\n"
    "```",
]


@exercise("08.accumulate", function="accumulate", where="engines", hints=ACCUMULATE_HINTS)
def check_accumulate(accumulate) -> str:
    import torch.distributed as dist

    from course_lib.teaching.judges.rank_groups import on_each_rank

    from .judge_accumulation import judge_accumulation, try_accumulation

    found = on_each_rank(lambda group: try_accumulation(accumulate, group))
    judge_accumulation(found, dist.get_world_size())
    return "Four micro-batches, one round of all-reduce, and the gradient of one large batch."


HOOK_HINTS = [
    "A hook replaces DDP's all-reduce of one bucket. `bucket.buffer()` holds this rank's own "
    "gradients, neither summed nor divided. The hook has to return a future of their mean.",
    "Four steps: turn the buffer into bfloat16, divide by the size of the group, all-reduce with "
    "`async_op=True`, and turn the result back into float32 in a callback of the future.",
    "```python\n"
    "compressed = bucket.buffer().to(torch.bfloat16) / dist.get_world_size(group)\n"
    "work = dist.all_reduce(compressed, group=group, async_op=True)\n"
    "return work.get_future().then(lambda done: ...)  # done.value() is a list of one tensor\n"
    "```\n"
    "`bucket.buffer().copy_(tensor)` converts the dtype, and returns the buffer.",
]


@exercise("08.bfloat16_hook", function="bfloat16_hook", where="engines", hints=HOOK_HINTS)
def check_bfloat16_hook(bfloat16_hook) -> str:
    from course_lib.teaching.judges.rank_groups import on_each_rank, with_smaller_group

    from .judge_hook import judge_hook, judge_two_buckets, try_hook, try_two_buckets

    def judge(ranks: list[int] | None, p: int) -> None:
        judge_hook(on_each_rank(lambda group: try_hook(bfloat16_hook, group), ranks), p)

    with_smaller_group(judge)
    judge_two_buckets(on_each_rank(lambda group: try_two_buckets(bfloat16_hook, group)))
    return "Your hook hands over two bytes per number, gives a float32 mean, and does not wait."


RESUME_HINTS = [
    "Three things besides the weights decide how a run continues: what the optimizer remembers, "
    "what the random generator will draw next, and where in the data the run is.",
    "Every rank loads the file. The weights belong in `ddp.module`, whose parameter names have no "
    "`module.` prefix. Each rank has its own random state.",
    "```python\n"
    "checkpoint = torch.load(path)\n"
    'ddp.module.load_state_dict(checkpoint["model"])\n'
    "...  # the optimizer, in the same way\n"
    'torch.set_rng_state(checkpoint["rng"][...])  # whose?\n'
    'return checkpoint["step"]\n'
    "```",
]


@exercise("08.resume", function="resume", where="engines", hints=RESUME_HINTS)
def check_resume(resume) -> str:
    from course_lib.teaching.judges.rank_groups import need_process_group

    from .judge_samplers import judge_resume

    need_process_group()
    judge_resume(resume)
    return "Weights, momentum and every rank's random state are restored bit for bit."
