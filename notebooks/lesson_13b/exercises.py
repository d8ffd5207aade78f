"""The checks of lesson 13b: what a framework does, and what its documentation says it does."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise

STEP_HINTS = [
    "A wrapped optimizer has to do one more thing before its step: what `sync_gradients` does "
    "in lesson 05.",
    "Save the optimizer's own `step` in a variable, and replace it with a function of yours "
    "(`optimizer.step = ...`) that averages the gradients of all parameters in "
    "`optimizer.param_groups` over `group`, and then calls the saved `step`.",
    "```python\n"
    "own_step = optimizer.step\n\n"
    "def step():\n"
    "    for settings in optimizer.param_groups:\n"
    "        for parameter in settings['params']:\n"
    "            ...  # sum over group, divide by its size\n"
    "    own_step()\n\n"
    "optimizer.step = step\n"
    "return optimizer\n"
    "```",
]


@exercise("13b.distributed", function="distributed", where="engines", hints=STEP_HINTS)
def check_distributed(distributed: Callable) -> str:
    from course_lib.teaching.judges.rank_groups import with_smaller_group

    from .judge_wrapping import judge_wrapping, observe_wrapping

    with_smaller_group(lambda ranks, p: judge_wrapping(observe_wrapping(distributed, ranks), p))
    return "After three steps every rank has the weights of one process with the whole batch."


BATCH_HINTS = [
    "Ask two questions for each framework: does the number in the settings count the samples of "
    "one rank or of all ranks, and of one backward pass or of one optimizer step?",
    "With DDP, Fabric and Accelerate the number is for one rank and one backward pass (every "
    "rank makes its own DataLoader). With Keras, and with Accelerate's split_batches, it is for "
    "all ranks and one backward pass. DeepSpeed's train_batch_size is for all ranks and all "
    "backward passes.",
    "```python\n"
    'if setting in ("ddp", "fabric", "accelerate"):\n'
    "    return written * ranks * accumulate\n"
    'if setting in ("accelerate split_batches", "keras"):\n'
    "    return ...\n"
    "return ...  # deepspeed train_batch_size\n"
    "```",
]


@exercise("13b.effective_batch", function="effective_batch", where="notebook", hints=BATCH_HINTS)
def check_effective_batch(effective_batch: Callable) -> str:
    from .judge_reading import judge_batch

    judge_batch(effective_batch)
    return "A batch size of 32 means three different experiments in these six settings."


READ_HINTS = [
    "Look for the verbs. Which ranks wait for which others before the weights change? Do weights "
    "live on every rank or on a server? Does the text name a library, or a kind of device?",
    "'At once', 'as soon as it arrives', 'without waiting' mean asynchronous. 'Push' and 'pull' "
    "mean a server. 'Mirrored', 'replicas in lockstep', 'identical after each step' mean "
    "synchronous all-reduce. Tensors sent directly between NVIDIA GPUs mean NCCL.",
    "A is sync, all-reduce, NCCL. B is async with a server, and no collective library. C is sync, "
    "but with a server. For D, ask what the ranks do during the 500 steps. E is "
    "started with mpirun, on CPUs.",
]


@exercise("13b.reading", function="reading", where="notebook", hints=READ_HINTS)
def check_reading(reading: Callable) -> str:
    from .judge_reading import judge_reading

    judge_reading(reading)
    return "Five paragraphs, three questions each."
