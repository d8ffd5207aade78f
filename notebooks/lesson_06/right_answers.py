"""Right answers to lesson 06 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "06.epoch_seconds": {
        "by NumPy": """
import numpy as np
def epoch_seconds(samples, batch, comp, sync, ranks):
    per_step = np.float64(comp) + np.where(np.asarray(ranks) == 1, 0.0, sync)
    return per_step * np.float64(samples) / (ranks * batch)
""",
        "a fraction, and whole steps": """
from fractions import Fraction
from math import ceil


def epoch_seconds(samples, batch, comp, sync, ranks):
    step = comp
    if ranks != 1:
        step += sync
    return ceil(Fraction(samples, ranks * batch)) * step
""",
    },
    "06.fewest_ranks": {
        "a list of NumPy's numbers": """
import numpy as np
def fewest_ranks(comp, sync_of, most):
    found = [r for r in np.arange(2, most + 1) if sync_of(r) < (r - 1) * comp]
    return min(found, default=None)
""",
        "by recursion, with whole steps": """
def fewest_ranks(comp, sync_of, most):
    def first(ranks):
        if ranks > most:
            return None
        return ranks if (comp + sync_of(ranks)) / ranks < comp else first(ranks + 1)

    return first(2)
""",
        "from the end": """
def fewest_ranks(comp, sync_of, most):
    best = None
    for r in range(most, 1, -1):
        if sync_of(r) < (r - 1) * comp:
            best = r
    return best
""",
    },
    "06.bucketed_sync": {
        "an object instead of a function": """
from torch.nn.utils import parameters_to_vector, vector_to_parameters
class Buckets:
    def __init__(self, parameters, bucket_bytes, group):
        self.group, self.limit = group, bucket_bytes
        self.pending, self.flying, self.size = [], [], 0
        for p in parameters:
            p.register_post_accumulate_grad_hook(self.add)
    def add(self, p):
        self.pending.append(p)
        self.size += p.grad.numel() * p.grad.element_size()
        if self.size >= self.limit:
            self.leave()
    def leave(self):
        members, self.pending, self.size = self.pending, [], 0
        flat = parameters_to_vector([p.grad for p in members]) / dist.get_world_size(self.group)
        work = dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=self.group, async_op=True)
        self.flying.append((work, flat, members))
    def __call__(self):
        if self.pending:
            self.leave()
        while self.flying:
            work, flat, members = self.flying.pop(0)
            work.wait()
            vector_to_parameters(flat, [p.grad for p in members])
def bucketed_sync(parameters, bucket_bytes, group):
    return Buckets(parameters, bucket_bytes, group)
""",
        "by futures": """
def bucketed_sync(parameters, bucket_bytes, group):
    p_count = dist.get_world_size(group)
    waiting, futures = [], []
    def send():
        members = tuple(waiting)
        waiting.clear()
        flat = torch.cat([p.grad.ravel() for p in members])
        work = dist.all_reduce(flat, group=group, async_op=True)
        def back(future):
            i = 0
            for p in members:
                p.grad[...] = flat[i:i + p.numel()].view(p.shape) / p_count
                i += p.numel()
        futures.append(work.get_future().then(back))
    def hook(p):
        waiting.append(p)
        if sum(q.grad.nbytes for q in waiting) >= bucket_bytes:
            send()
    def finish():
        if waiting:
            send()
        torch.futures.wait_all(futures)
        futures.clear()
    for p in parameters:
        p.register_post_accumulate_grad_hook(hook)
    return finish
""",
        "asks whether it has ended": """
def bucketed_sync(parameters, bucket_bytes, group):
    waiting, sent = [], []

    def send():
        flat = torch.cat([p.grad.flatten() for p in waiting])
        sent.append((dist.all_reduce(flat, group=group, async_op=True), flat, list(waiting)))
        waiting.clear()

    def hook(parameter):
        waiting.append(parameter)
        if sum(p.nbytes for p in waiting) >= bucket_bytes:
            send()

    def finish():
        if waiting:
            send()
        for handle, flat, members in sent:
            while not handle.is_completed():
                pass
            parts = (flat / dist.get_world_size(group)).split([p.numel() for p in members])
            for parameter, part in zip(members, parts):
                parameter.grad.copy_(part.view_as(parameter))
        sent.clear()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)
    return finish
""",
        "views, from the end": """
def bucketed_sync(parameters, bucket_bytes, group):
    waiting, sent = [], []
    n = group.size()
    def send():
        flat = torch.cat([p.grad.flatten() for p in waiting]).div_(n)
        sent.append([dist.all_reduce(flat, group=group, async_op=True), flat, waiting[:]])
        del waiting[:]
    @torch.no_grad()
    def hook(parameter):
        waiting.append(parameter)
        if sum(p.grad.untyped_storage().nbytes() for p in waiting) >= bucket_bytes:
            send()
    def finish():
        if len(waiting):
            send()
        for work, flat, members in reversed(sent):
            work.wait()
            for parameter in reversed(members):
                parameter.grad = flat[-parameter.numel():].reshape(parameter.shape)
                flat = flat[:-parameter.numel()]
        sent[:] = []
    [p.register_post_accumulate_grad_hook(hook) for p in list(parameters)]
    return finish
""",
    },
    "06.waiting_share": {
        "by torch, in float32": """
import torch
def waiting_share(times):
    t = torch.tensor(times)
    top = t.amax(1)
    return 1 - t.mean(1).sum() / top.sum()
""",
        "sorts and empties what it is given": """
def waiting_share(times):
    idle = total = 0
    while times:
        step = times.pop()
        step.sort()
        idle += sum(step[-1] - seconds for seconds in step)
        total += len(step) * step[-1]
    return idle / total
""",
    },
    "06.read_efficiency": {
        "an array": """
import numpy as np
def read_efficiency(base_ranks, base_rate, ranks, rate):
    e = np.divide(rate, ranks) / np.divide(base_rate, base_ranks)
    return np.array([e, (1 - e) / e])
""",
        "a tensor in float32": """
import torch


def read_efficiency(base_ranks, base_rate, ranks, rate):
    per_rank = torch.tensor([rate, base_rate]) / torch.tensor([ranks, base_ranks])
    efficiency = per_rank[0] / per_rank[1]
    return torch.stack([efficiency, (1 - efficiency) / efficiency])
""",
        "seconds of a sample": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    base_step = base_ranks / base_rate
    step = ranks / rate
    return base_step / step, (step - base_step) / base_step
""",
    },
}
