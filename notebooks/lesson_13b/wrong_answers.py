"""The usual wrong answers to lesson 13b: from a mistake's name to a function that makes it."""

_DISTRIBUTED = """
def distributed(optimizer, group):
    own_step = optimizer.step

    def step():
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=group)
                    parameter.grad /= dist.get_world_size(group)
        own_step()

    optimizer.step = step
    return optimizer
"""
_BATCH = """
def effective_batch(setting, written, ranks, accumulate):
    if setting in ("ddp", "fabric", "accelerate"):
        return written * ranks * accumulate
    if setting in ("accelerate split_batches", "keras"):
        return written * accumulate
    return written
"""
READING = """
def reading():
    return {
        "A": ("sync", "all-reduce", "nccl"),
        "B": ("async", "server", "none"),
        "C": ("sync", "server", "none"),
        "D": ("local", "all-reduce", "gloo"),
        "E": ("sync", "all-reduce", "mpi"),
    }
"""


def changed(answer: str, right: str, wrong: str) -> str:
    """Return an answer with one thing changed."""
    if right not in answer:
        raise ValueError(f"{right!r} is not in the answer")
    return answer.replace(right, wrong)


WRONG_ANSWERS = {
    "13b.distributed": {
        "returns-nothing": changed(_DISTRIBUTED, "    return optimizer\n", ""),
        "no-communication": changed(_DISTRIBUTED, "    optimizer.step = step\n", ""),
        "trains-alone: it averages after the step": changed(
            changed(_DISTRIBUTED, "        own_step()\n", ""),
            "    def step():\n",
            "    def step():\n        own_step()\n",
        ),
        "it-hangs: rank 0 alone": changed(
            _DISTRIBUTED,
            "if parameter.grad is not None",
            "if parameter.grad is not None and dist.get_rank(group) == 0",
        ),
        "it-raises: frozen parameters": changed(
            _DISTRIBUTED, "if parameter.grad is not None", "if True"
        ),
        "sum-not-mean": changed(
            _DISTRIBUTED,
            "                    parameter.grad /= dist.get_world_size(group)\n",
            "",
        ),
        "not-the-gradients: weights after the step": """
def distributed(optimizer, group):
    own_step = optimizer.step

    def step():
        own_step()
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                dist.all_reduce(parameter.data, group=group)
                parameter.data /= dist.get_world_size(group)

    optimizer.step = step
    return optimizer
""",
        "never-steps": changed(_DISTRIBUTED, "        own_step()\n", ""),
        "steps-twice": changed(
            _DISTRIBUTED, "        own_step()\n", "        own_step()\n        own_step()\n"
        ),
        "one-rank-s-gradient": changed(
            changed(
                _DISTRIBUTED,
                "dist.all_reduce(parameter.grad",
                "dist.broadcast(parameter.grad, group_src=0",
            ),
            "                    parameter.grad /= dist.get_world_size(group)\n",
            "",
        ),
        "trains-alone: into another tensor": changed(
            changed(
                _DISTRIBUTED,
                "dist.all_reduce(parameter.grad",
                "mean = parameter.grad.clone()\n                    dist.all_reduce(mean",
            ),
            "parameter.grad /= ",
            "mean /= ",
        ),
        "forgets-the-group": changed(_DISTRIBUTED, ", group=group", ""),
        "size-is-fixed": changed(_DISTRIBUTED, "get_world_size(group)", "get_world_size()"),
        "does-not-wait": changed(_DISTRIBUTED, "group=group)\n", "group=group, async_op=True)\n"),
        "replicas-differ: the first parameter only": changed(
            _DISTRIBUTED, 'settings["params"]:', 'settings["params"][:1]:'
        ),
        "replicas-differ: the first group of parameters only": changed(
            _DISTRIBUTED, "in optimizer.param_groups:", "in optimizer.param_groups[:1]:"
        ),
        "it-raises: in a hook, on one rank": """
def distributed(optimizer, group):
    def average(parameter):
        if dist.get_rank(group) == 1:
            raise LookupError("in my hook")
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)

    for settings in optimizer.param_groups:
        for parameter in settings["params"]:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(average)
    return optimizer
""",
        "replicas-differ: on rank 0 only": changed(
            _DISTRIBUTED,
            "dist.all_reduce(parameter.grad, group=group)",
            "dist.reduce(parameter.grad, group_dst=0, group=group)",
        ),
        "no-communication: at wrapping": """
def distributed(optimizer, group):
    for settings in optimizer.param_groups:
        for parameter in settings["params"]:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=group)
    return optimizer
""",
        "it-raises: its own step again": changed(
            _DISTRIBUTED, "        own_step()\n", "        optimizer.step()\n"
        ),
        "not-the-serial-step": """
def distributed(optimizer, group):
    own_step = optimizer.step

    def step():
        own_step()
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                dist.all_reduce(parameter.data, group=group)
                parameter.data /= dist.get_world_size(group)

    steps = iter([1])

    def odd():
        for settings in optimizer.param_groups:
            settings["lr"] *= 2
        step()

    optimizer.step = odd
    return optimizer
""",
        "first-step-only": changed(
            _DISTRIBUTED,
            "        own_step()\n",
            "        own_step()\n        optimizer.step = own_step\n",
        ),
        "replicas-differ": changed(
            _DISTRIBUTED,
            "                    parameter.grad /= dist.get_world_size(group)\n",
            "                    parameter.grad /= dist.get_world_size(group)\n"
            "                    parameter.grad += 0.1 * dist.get_rank(group)\n",
        ),
    },
    "13b.effective_batch": {
        "always-of-one-rank": (
            "def effective_batch(setting, written, ranks, accumulate):\n"
            "    return written * ranks * accumulate\n"
        ),
        "ignores-setting": (
            "def effective_batch(setting, written, ranks, accumulate):\n    return written\n"
        ),
        "always-of-all-ranks": changed(
            _BATCH, "written * ranks * accumulate", "written * accumulate"
        ),
        "forgets-accumulation": changed(_BATCH, " * accumulate", ""),
        "deepspeed-counts-all": changed(
            _BATCH, "    return written\n", "    return written * accumulate\n"
        ),
        "split-batches": changed(
            _BATCH, '"accelerate")', '"accelerate", "accelerate split_batches")'
        ),
        "returns-nothing": changed(_BATCH, "return", "_ ="),
        "wrong-value: DeepSpeed's is of one rank": changed(
            _BATCH, '"accelerate")', '"accelerate", "deepspeed train_batch_size")'
        ),
        "wrong-value: Keras's is of one replica": changed(
            _BATCH, '"accelerate")', '"accelerate", "keras")'
        ),
        "wrong-value: Accelerate divides": changed(
            _BATCH, '"fabric", "accelerate")', '"fabric")'
        ).replace('("accelerate split', '("accelerate", "accelerate split'),
        "wrong-value: sums": changed(
            _BATCH, "written * ranks * accumulate", "written * (ranks + accumulate)"
        ),
        "wrong-value: Keras does not accumulate": changed(_BATCH, ', "keras")', ",)"),
        "it-raises": changed(_BATCH, "return written * ranks", "return {'ddp': ranks}[setting]"),
    },
    "13b.reading": {
        "a-server-may-wait": changed(READING, '"C": ("sync"', '"C": ("async"'),
        "local-steps": changed(READING, '"local"', '"async"'),
        "local-steps: sync": changed(READING, '"local"', '"sync"'),
        "wrong-how": changed(READING, '"B": ("async", "server"', '"B": ("async", "all-reduce"'),
        "wrong-library": changed(READING, '"nccl"', '"gloo"'),
        "wrong-library: MPI under another name": changed(READING, '"mpi"', '"gloo"'),
        "wrong-when": changed(READING, '"E": ("sync"', '"E": ("async"'),
        "unknown-word": changed(READING, '"sync", "all-reduce", "mpi"', '"sync", "ring", "mpi"'),
        "not-all-paragraphs": "def reading():\n    return {'A': ('sync', 'all-reduce', 'nccl')}\n",
        "not-a-triple": changed(READING, '("async", "server", "none")', '"async"'),
        "returns-nothing": "def reading():\n    pass\n",
        "wrong-how: local steps with a server": changed(
            READING, '("local", "all-reduce"', '("local", "server"'
        ),
        "wrong-library: calls are no collectives": changed(
            READING, '("async", "server", "none")', '("async", "server", "gloo")'
        ),
        "unknown-word: in another order": changed(
            READING, '("async", "server", "none")', '("server", "async", "none")'
        ),
        "not-all-paragraphs: a list": "def reading():\n    return [('sync', 'server')] * 5\n",
        "it-raises": "def reading():\n    return answers\n",
    },
}
