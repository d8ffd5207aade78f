"""The checks of lesson 07.

All run in the notebook, because the notebook is the one process of DataParallel.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise

# ---- deal out, evenly -------------------------------------------------------------------------

SCATTER_HINTS = [
    "With 10 samples on 4 devices, two devices get 3 and two get 2. In general each device gets "
    "`N // p` samples, and the first `N % p` devices get one more.",
    "Work out the list of sizes first. `torch.split(batch, sizes)` cuts a tensor into pieces of "
    "exactly these sizes, in order. The pieces still share the memory of the batch: `clone()` "
    "makes a copy.",
    "```python\n"
    "size, rest = divmod(len(batch), p)\n"
    "sizes = [size + 1] * rest + [size] * (p - rest)\n"
    "```\n"
    "Split by these sizes, and clone every piece.",
]


@exercise("07.scatter", function="scatter_evenly", where="notebook", hints=SCATTER_HINTS)
def check_scatter(scatter_evenly: Callable) -> str:
    from .judge_data_parallel import judge_scatter

    return judge_scatter(scatter_evenly)


# ---- one loss from all shards -----------------------------------------------------------------

LOSS_HINTS = [
    "Take two shards: one sample with loss 9, and three samples with mean loss 1. The mean over "
    "the four samples is (9 + 1 + 1 + 1) / 4 = 3, but the mean of the two means is 5. By what "
    "must you multiply each mean before you add the means up?",
    "A mean times its number of samples is a sum. Add up the sums, and divide by the total number "
    "of samples. Keep working with tensors: a loss that went through `item()` has no gradient.",
    "`sum(loss * size for loss, size in zip(losses, sizes) if size)` is the sum over all samples. "
    "The mean of an empty shard is 0 / 0, so leave it out; multiplying it by 0 does not help.",
]


@exercise("07.mean_loss", function="mean_loss", where="notebook", hints=LOSS_HINTS)
def check_mean_loss(mean_loss: Callable) -> str:
    from .judge_data_parallel import judge_mean_loss

    return judge_mean_loss(mean_loss)


# ---- the master is updated --------------------------------------------------------------------

UPDATE_HINTS = [
    "Replicas are thrown away after the step. What must change so that the next step's "
    "replicas are any better? And what do you still need the replicas for after backward?",
    "For each parameter of the master, add the gradients of that parameter on the replicas to the "
    "master's own `grad`. Then the optimizer, which holds the master's parameters, takes the "
    "step. Replica 0 is the master itself, so its gradient is there already.",
    "```python\n"
    "for replica in replicas[1:]:\n"
    "    for own, other in zip(model.parameters(), replica.parameters()):\n"
    "        if other.grad is not None:\n"
    "            ...  # own.grad may still be None\n"
    "optimizer.step()\n"
    "```",
]


@exercise("07.update", function="update", where="notebook", hints=UPDATE_HINTS)
def check_update(update: Callable) -> str:
    from .judge_data_parallel import judge_update

    return judge_update(update)


# ---- bytes through the master -----------------------------------------------------------------

BYTES_HINTS = [
    "Go through the step and ask for each tensor: does it leave the master or reach it, and how "
    "many devices are at the other end? The master sends nothing to itself.",
    "Out: parameters and buffers, to each of the p - 1 others; their shards of the inputs; their "
    "shards of the gradient of the outputs. In: their shards of the outputs; a gradient from each "
    "of them, for each parameter that has one. `tensor.nbytes` is the size of a tensor in bytes.",
    "```python\n"
    "weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])\n"
    "trained = sum(t.nbytes for t in model.parameters() if t.requires_grad)\n"
    "```\n"
    "Together, the others' shards of a tensor have `tensor.nbytes * (p - 1) // p` bytes.",
]


@exercise("07.master_bytes", function="master_bytes", where="notebook", hints=BYTES_HINTS)
def check_master_bytes(master_bytes: Callable) -> str:
    from .judge_data_parallel import judge_master_bytes

    return judge_master_bytes(master_bytes)


# ---- many threads, one sum --------------------------------------------------------------------

ACCUMULATE_HINTS = [
    "`shared.write(shared.read() + gradient)` does three things: read, add, write. What if another "
    "thread writes after you have read?",
    "`with lock:` admits one thread at a time. Hold the lock from the read to the write. Long "
    "work that needs no lock should stay outside; otherwise the threads work one after another.",
    "First call `gradient = compute()`, without the lock. Then, inside `with lock:`, call "
    "`shared.write(shared.read() + gradient)`.",
]


@exercise("07.accumulate", function="accumulate", where="notebook", hints=ACCUMULATE_HINTS)
def check_accumulate(accumulate: Callable) -> str:
    from .judge_accumulate import judge_accumulate

    return judge_accumulate(accumulate)
