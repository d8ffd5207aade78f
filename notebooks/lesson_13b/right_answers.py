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
        "in the class of the optimizer": """
def distributed(optimizer, group):
    class Averaging(type(optimizer)):
        def step(self, closure=None):
            for settings in self.param_groups:
                for parameter in settings["params"]:
                    if parameter.grad is not None:
                        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=group)
            return super().step(closure)

    optimizer.__class__ = Averaging
    return optimizer
""",
        "all under way at once, and everything else passed on": """
class Distributed:
    def __init__(self, inner, group):
        self.inner, self.group = inner, group

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self):
        listed = [p for s in self.param_groups for p in s["params"] if p.grad is not None]
        works = [dist.all_reduce(p.grad, group=self.group, async_op=True) for p in listed]
        for work, parameter in zip(works, listed):
            work.wait()
            parameter.grad /= self.group.size()
        self.inner.step()


def distributed(optimizer, group):
    return Distributed(optimizer, group)
""",
        "by gathering": """
def distributed(optimizer, group):
    own_step = optimizer.step

    def step():
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                if parameter.grad is None:
                    continue
                parts = [torch.empty_like(parameter.grad) for _ in range(group.size())]
                dist.all_gather(parts, parameter.grad, group=group)
                parameter.grad = torch.stack(parts).mean(0)
        own_step()

    optimizer.step = step
    return optimizer
""",
    },
    "13b.effective_batch": {
        "from samples on a rank": """
def effective_batch(setting, written, ranks, accumulate):
    of_one = written if setting in ("ddp", "fabric", "accelerate") else written / ranks
    if "deepspeed" in setting:
        of_one /= accumulate
    return round(of_one * ranks * accumulate)
""",
        "match": """
def effective_batch(setting, written, ranks, accumulate):
    match setting:
        case "ddp" | "fabric" | "accelerate":
            return float(written * ranks * accumulate)
        case "deepspeed train_batch_size":
            return written
        case _:
            return written * accumulate
""",
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
        "in other spellings": changed(
            changed(
                changed(READING, '"all-reduce"', '"AllReduce"'), '"server"', '"parameter server"'
            ),
            '"sync"',
            '"synchronous"',
        ).replace('"none"', "None"),
        "small keys, one text": """
def reading():
    text = "a sync all_reduce nccl; b async server none; c sync server none; "
    text += "d local all_reduce gloo; e sync all_reduce mpi"
    words = [part.split() for part in text.split("; ")]
    return {paragraph: answer for paragraph, *answer in words}
""",
        "in another order": """
def reading():
    answers = dict(E=["sync", "all-reduce", "mpi"], D=["local", "all-reduce", "gloo"])
    answers |= dict(C=["sync", "server", "none"], B=["async", "server", "none"])
    return answers | dict(A=["sync", "all-reduce", "nccl"])
""",
    },
}
