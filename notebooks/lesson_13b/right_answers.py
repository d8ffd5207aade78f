"""Right answers to lesson 13b in other styles than the worked solutions."""

from .wrong_answers import READING, changed

RIGHT_ANSWERS = {
    "13b.distributed": {
        "by a hook of the optimizer": """
def distributed(optimizer, group):
    def average(optimizer, *_):
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                if parameter.grad is not None:
                    parameter.grad /= dist.get_world_size(group)
                    dist.all_reduce(parameter.grad, group=group)

    optimizer.register_step_pre_hook(average)
    return optimizer
""",
        "a wrapper, one message": """
class Distributed:
    def __init__(self, inner, group):
        self.inner, self.group = inner, group

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        listed = [p for s in self.inner.param_groups for p in s["params"] if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in listed])
        dist.all_reduce(flat, group=self.group)
        flat /= dist.get_world_size(self.group)
        for p, part in zip(listed, flat.split([p.numel() for p in listed])):
            p.grad.copy_(part.view_as(p))
        self.inner.step()


def distributed(optimizer, group):
    return Distributed(optimizer, group)
""",
        "as the gradients come": """
def distributed(optimizer, group):
    def average(parameter):
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)

    for settings in optimizer.param_groups:
        for parameter in settings["params"]:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(average)
    return optimizer
""",
    },
    "13b.effective_batch": {
        "a table": """
def effective_batch(setting, written, ranks, accumulate):
    of_one = (ranks, accumulate)
    factors = {
        "ddp": of_one,
        "fabric": of_one,
        "accelerate": of_one,
        "accelerate split_batches": (1, accumulate),
        "keras": (1, accumulate),
        "deepspeed train_batch_size": (1, 1),
    }
    across, over = factors[setting]
    return written * across * over
""",
        "by words": """
def effective_batch(setting, written, ranks, accumulate):
    step = "train_batch_size" in setting
    everyone = step or "split" in setting or setting == "keras"
    return written * (1 if everyone else ranks) * (1 if step else accumulate)
""",
    },
    "13b.reading": {
        "lists, in capitals": changed(changed(READING, '"sync"', '"SYNC"'), '"nccl"', '"NCCL"'),
        "in another order": """
def reading():
    answers = dict(E=["sync", "all-reduce", "mpi"], D=["local", "all-reduce", "gloo"])
    answers |= dict(C=["sync", "server", "none"], B=["async", "server", "none"])
    return answers | dict(A=["sync", "all-reduce", "nccl"])
""",
    },
}
