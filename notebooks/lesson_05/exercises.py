"""The checks of lesson 05: a training step on R ranks against one process with the same data.

One runs in the notebook, three on the ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise
from course_lib.teaching.judges.trials import second_call

# Each check imports its judges when it is called: a notebook's kernel imports this module too.

# ---- gradient sync with one collective --------------------------------------------------------

SYNC_HINTS = [
    "Send one large message instead of ten small ones: lay all gradients end to end in one long "
    "vector, all-reduce that, and put the pieces back where they came from.",
    "`torch.cat([gradient.flatten() for gradient in gradients])` makes the vector, and "
    "`flat.split([gradient.numel() for gradient in gradients])` takes it apart. Before you start, "
    "leave out the parameters whose `grad` is None.",
    "```python\n"
    "gradients = [p.grad for p in model.parameters() if p.grad is not None]\n"
    "flat = torch.cat([gradient.flatten() for gradient in gradients])\n"
    "dist.all_reduce(flat, group=group)\n"
    "flat /= dist.get_world_size(group)\n"
    "for gradient, part in zip(gradients, flat.split([...]), strict=True):\n"
    "    gradient.copy_(...)  # the part, in the shape of the gradient\n"
    "```",
]


@exercise("05.sync_gradients", function="sync_gradients", where="engines", hints=SYNC_HINTS)
def check_sync_gradients(sync_gradients: Callable) -> str:
    from course_lib.teaching.judges.rank_groups import with_smaller_group

    from .judge_steps import judge_sync, observe_sync

    def judge(ranks: list[int] | None, p: int) -> None:
        judge_sync(observe_sync(sync_gradients, ranks), p)
        if ranks is None:
            with second_call():
                judge_sync(observe_sync(sync_gradients, ranks), p)

    with_smaller_group(judge)
    return "Every rank has the mean gradient, after a single collective."


# ---- a training step to fix --------------------------------------------------------------------

STEP_HINTS = [
    "Follow one gradient: where is it made, where is it averaged, where is it used? Then follow "
    "the number that is returned.",
    "The optimizer steps before the gradients are averaged, so every rank goes its own way, and "
    "the averaged gradients are thrown away. Also, the all-reduce leaves a sum in `loss`.",
    "The order is: loss, `zero_grad`, `backward`, average the gradients, `step`. At the end, "
    "after `dist.all_reduce(loss, group=group)`, divide by `dist.get_world_size(group)`.",
]


@exercise("05.train_step", function="train_step", where="engines", hints=STEP_HINTS)
def check_train_step(train_step: Callable) -> str:
    from course_lib.teaching.judges.rank_groups import with_smaller_group

    from .judge_steps import judge_adam, judge_train_step, observe_train_step

    with_smaller_group(lambda ranks, p: judge_train_step(observe_train_step(train_step, ranks), p))
    judge_adam(train_step)
    return "After three steps, every rank has the weights that one process would have."


# ---- the same number of batches on every rank ---------------------------------------------------

BATCHES_HINTS = [
    "First find the number of steps. It must be the same for all ranks, so it may depend only on "
    "`samples`, `batch_size` and `world_size`. In one step the ranks together take at most "
    "`batch_size * world_size` samples.",
    "Steps times ranks is the total number of batches. Cut the samples into that many "
    "parts, with sizes that differ by at most one; part i begins at `samples * i // parts`.",
    "```python\n"
    "steps = -(-samples // (batch_size * world_size))  # rounded up\n"
    "parts = steps * world_size\n"
    "ends = [samples * part // parts for part in range(parts + 1)]\n"
    "return [list(range(...)) for part in range(rank, parts, world_size)]\n"
    "```",
]


@exercise("05.batches_of_rank", function="batches_of_rank", where="notebook", hints=BATCHES_HINTS)
def check_batches_of_rank(batches_of_rank: Callable) -> str:
    from .judge_batches import CASES, judge_batches

    for samples, batch_size, world_size in CASES:
        given, again = (
            [batches_of_rank(samples, batch_size, rank, world_size) for rank in range(world_size)]
            for _ in range(2)
        )
        judge_batches(given, again, samples, batch_size)
    return "Every sample is used once, and every rank takes the same number of steps."


# ---- back from a checkpoint -------------------------------------------------------------------

ROOT_HINTS = [
    "Which three things must be equal for replicas to stay in step? The gradient will be, thanks "
    "to the all-reduce. Which two are left?",
    "The weights and the optimizer's state are left. On the other ranks the optimizer has no "
    "momentum buffers yet, so there is nothing to receive into. Broadcast the whole state as an "
    "object.",
    "```python\n"
    "states = [model.state_dict(), optimizer.state_dict()]\n"
    "dist.broadcast_object_list(states, src=0, group=group)\n"
    "model.load_state_dict(states[0])\n"
    "...  # and the optimizer\n"
    "```",
]


@exercise("05.sync_from_root", function="sync_from_root", where="engines", hints=ROOT_HINTS)
def check_sync_from_root(sync_from_root: Callable) -> str:
    from course_lib.teaching.judges.rank_groups import need_process_group

    from .judge_steps import judge_restore, observe_restore

    need_process_group()
    judge_restore(observe_restore(sync_from_root))
    return "All ranks carry on with rank 0's weights and momentum, as rank 0 alone would have done."
