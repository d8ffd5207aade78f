"""The usual wrong answers to lesson 05: from a mistake's name to a function that makes it."""

_FLAT = """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat{group})
    flat /= {size}
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
"""
_STEP = """import torch.nn.functional as F


def train_step(model, optimizer, images, labels, group):
"""
_SYNC = """
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
"""
_LOSS = """
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item() / dist.get_world_size(group)
"""
_FORWARD = "    loss = F.cross_entropy(model(images), labels)\n"
_BATCHES = "def batches_of_rank(samples, batch_size, rank, world_size):\n"
_ROOT = "def sync_from_root(model, optimizer, group):\n"
_WEIGHTS = """
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0, group=group)
"""

WRONG_ANSWERS = {
    "05.sync_gradients": {
        "too-many-collectives": """
def sync_gradients(model, group):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size(group)
""",
        "stumbles-over-frozen": """
def sync_gradients(model, group):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
""",
        "no-communication": """
def sync_gradients(model, group):
    for parameter in model.parameters():
        if type(parameter) is torch.Tensor:
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size(group)
""",
        "sum-not-mean": _FLAT.format(group=", group=group", size=1),
        "size-is-fixed": _FLAT.format(group=", group=group", size=4),
        "forgets-the-group": _FLAT.format(group="", size="dist.get_world_size(group)"),
        "not-copied-back": """
def sync_gradients(model, group):
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
""",
        "averages-weights": """
def sync_gradients(model, group):
    flat = torch.cat([p.data.flatten() for p in model.parameters()])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for parameter, part in zip(
        model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
    ):
        parameter.data.copy_(part.view_as(parameter))
""",
        "gathers-everything": """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    everyones = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, gradients, group=group)
    for gradient, others in zip(gradients, zip(*everyones, strict=True), strict=True):
        gradient.copy_(sum(others) / len(others))
""",
        "wakes-frozen": """
def sync_gradients(model, group):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
""",
        "no-gradient": """
def sync_gradients(model, group):
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    dist.all_reduce(flat, group=group)
    model.zero_grad()
""",
        "wrong-value": _FLAT.format(group=", group=group", size="2"),
        "wrong-place": """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for g in gradients:
        g.copy_(flat[: g.numel()].view_as(g))
""",
        "wrong-place: the other way round": """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    start = 0
    for g in reversed(gradients):
        g.copy_(flat[start : start + g.numel()].view_as(g))
        start += g.numel()
""",
        "stumbles-over-frozen: asks requires_grad": """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    parts = flat.split([g.numel() for g in gradients])
    for g, part in zip(gradients, parts):
        g.copy_(part.view_as(g))
""",
        "divides-twice": """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=group)
    flat /= dist.get_world_size(group)
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))
""",
        "only-rank-0": """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.reduce(flat, dst=dist.get_global_rank(group, 0), group=group)
    flat /= dist.get_world_size(group)
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))
""",
        "does-not-wait": """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, group=group, async_op=True)
    flat /= dist.get_world_size(group)
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))
""",
        "wrong-value: the maximum": """
def sync_gradients(model, group):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, op=dist.ReduceOp.MAX, group=group)
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))
""",
    },
    "05.train_step": {
        "steps-before-sync": _STEP
        + _FORWARD
        + "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
        + _SYNC
        + _LOSS,
        "sum-not-mean": _STEP
        + _FORWARD
        + "    optimizer.zero_grad()\n    loss.backward()\n"
        + _SYNC.replace("        parameter.grad /= dist.get_world_size(group)\n", "")
        + "    optimizer.step()\n"
        + _LOSS,
        "divides-twice": _STEP
        + _FORWARD
        + "    optimizer.zero_grad()\n    (loss / dist.get_world_size(group)).backward()\n"
        + _SYNC
        + "    optimizer.step()\n"
        + _LOSS,
        "forgets-to-clear": _STEP
        + _FORWARD
        + """
    before = [0 if p.grad is None else p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    loss.backward()
"""
        + _SYNC
        + """
    for parameter, old in zip(model.parameters(), before, strict=True):
        parameter.grad += old
    optimizer.step()
"""
        + _LOSS,
        "makes-no-step": _STEP
        + _FORWARD
        + "    optimizer.zero_grad()\n    loss.backward()\n"
        + _SYNC
        + _LOSS,
        "loss-is-a-sum": _STEP
        + _FORWARD
        + "    optimizer.zero_grad()\n    loss.backward()\n"
        + _SYNC
        + "    optimizer.step()\n"
        + _LOSS.replace(" / dist.get_world_size(group)", ""),
        "own-loss-only": _STEP
        + _FORWARD
        + "    optimizer.zero_grad()\n    loss.backward()\n"
        + _SYNC
        + "    optimizer.step()\n    return loss.item()\n",
        "loss-not-a-number": _STEP
        + _FORWARD
        + "    optimizer.zero_grad()\n    loss.backward()\n"
        + _SYNC
        + "    optimizer.step()\n    return loss.detach()\n",
        "ranks-differ": _STEP
        + _FORWARD
        + """
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        mean = parameter.grad.clone()
        dist.all_reduce(mean, group=group)
        parameter.grad += mean / dist.get_world_size(group)
    optimizer.step()
"""
        + _LOSS,
        "no-communication": _STEP
        + _FORWARD
        + """
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
""",
        "wrong-loss": _STEP
        + _FORWARD
        + "    optimizer.zero_grad()\n    loss.backward()\n"
        + _SYNC
        + "    optimizer.step()\n    return 0.0\n",
        "averages-weights": """
def train_step(model, optimizer, images, labels, group):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            dist.all_reduce(p, group=group)
            p /= dist.get_world_size(group)
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item() / dist.get_world_size(group)
""",
        "averages-the-loss": """
def train_step(model, optimizer, images, labels, group):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    with torch.no_grad():
        dist.all_reduce(loss, group=group)
        loss /= dist.get_world_size(group)
    loss.backward()
    optimizer.step()
    return loss.item()
""",
        "averages-the-loss: divided": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    dist.all_reduce(loss, group=group)
    loss = loss / dist.get_world_size(group)
    loss.backward()
    optimizer.step()
    return loss.item()
""",
        "makes-no-step: clears before the sync": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.zero_grad(set_to_none=False)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item() / dist.get_world_size(group)
""",
        "loss-after-the-step": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    optimizer.step()
    with torch.no_grad():
        loss = cross_entropy(model(images), labels)
    dist.all_reduce(loss, group=group)
    return loss.item() / dist.get_world_size(group)
""",
        "size-is-fixed": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= world_size
    optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item() / world_size
""",
        "wrong-loss: divided by the samples": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    optimizer.step()
    loss = loss.detach() / len(labels)
    dist.all_reduce(loss, group=group)
    return loss.item()
""",
        "only-rank-0s-data": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        dist.broadcast(p.data, src=dist.get_global_rank(group, 0), group=group)
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item() / dist.get_world_size(group)
""",
        "ranks-differ: steps twice": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item() / dist.get_world_size(group)
""",
        "steps-before-sync: the colleague's": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    optimizer.zero_grad()
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item() / dist.get_world_size(group)
""",
        "loss-is-a-sum: the colleague's": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    loss = cross_entropy(model(images), labels)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    optimizer.step()
    optimizer.zero_grad()
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item()
""",
        "does-not-wait": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    n = dist.get_world_size(group)
    optimizer.zero_grad()
    (cross_entropy(model(images), labels, reduction="sum") / (len(labels) * n)).backward()
    works = [dist.all_reduce(p.grad, group=group, async_op=True) for p in model.parameters()]
    with torch.no_grad():
        loss = cross_entropy(model(images), labels)
    dist.all_reduce(loss, group=group)
    optimizer.step()
    return (loss / n).item()
""",
    },
    "05.batches_of_rank": {
        "steps-differ": _BATCHES
        + """
    mine = list(range(rank, samples, world_size))
    return [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
""",
        "drops-the-rest": _BATCHES
        + """
    each = samples // world_size // batch_size * batch_size
    mine = list(range(rank * each, (rank + 1) * each))
    return [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
""",
        "given-twice": _BATCHES
        + """
    each = -(-samples // world_size)
    mine = [number % samples for number in range(rank * each, (rank + 1) * each)]
    return [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
""",
        "no-such-sample": _BATCHES
        + """
    each = -(-samples // world_size)
    mine = list(range(rank * each, (rank + 1) * each))
    return [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
""",
        "batch-too-large": _BATCHES
        + """
    steps = max(1, samples // (batch_size * world_size))
    mine = list(range(rank, samples, world_size))
    ends = [len(mine) * step // steps for step in range(steps + 1)]
    return [mine[ends[step] : ends[step + 1]] for step in range(steps)]
""",
        "empty-batch": _BATCHES
        + """
    steps = -(-samples // (batch_size * world_size))
    whole = batch_size * world_size
    together = [list(range(samples))[i * whole : (i + 1) * whole] for i in range(steps)]
    return [step[rank * batch_size : (rank + 1) * batch_size] for step in together]
""",
        "uneven": _BATCHES
        + """
    steps = -(-samples // (batch_size * world_size))
    each = steps * batch_size
    mine = list(range(rank * each, min((rank + 1) * each, samples)))
    ends = [len(mine) * step // steps for step in range(steps + 1)]
    return [mine[ends[step] : ends[step + 1]] for step in range(steps)]
""",
        "too-many-steps": _BATCHES
        + """
    steps = samples // world_size
    parts = steps * world_size
    ends = [samples * part // parts for part in range(parts + 1)]
    return [list(range(ends[p], ends[p + 1])) for p in range(rank, parts, world_size)]
""",
        "not-a-list-of-lists": _BATCHES + "    return list(range(rank, samples, world_size))\n",
        "not-the-same-again": """
import random

def batches_of_rank(samples, batch_size, rank, world_size):
    order = list(range(samples))
    random.shuffle(order)
    steps = -(-samples // (batch_size * world_size))
    mine = order[rank::world_size]
    return [mine[s::steps] for s in range(steps)]
""",
        "empty-batch: full batches first": """
def batches_of_rank(samples, batch_size, rank, world_size):
    batches = []
    for start in range(0, samples, batch_size * world_size):
        chunk = list(range(start, min(start + batch_size * world_size, samples)))
        batches.append(chunk[rank * batch_size : (rank + 1) * batch_size])
    return batches
""",
        "not-a-list-of-lists: arrays": """
import numpy as np

def batches_of_rank(samples, batch_size, rank, world_size):
    steps = -(-samples // (batch_size * world_size))
    return np.array_split(np.arange(rank, samples, world_size), steps)
""",
        "given-twice: padded": """
def batches_of_rank(samples, batch_size, rank, world_size):
    each = -(-samples // world_size)
    numbers = list(range(samples)) + list(range(each * world_size - samples))
    mine = numbers[rank * each : (rank + 1) * each]
    return [mine[i : i + batch_size] for i in range(0, each, batch_size)]
""",
    },
    "05.sync_from_root": {
        "weights-only": _ROOT + _WEIGHTS,
        "weights-differ": _ROOT
        + """
    states = [optimizer.state_dict()]
    dist.broadcast_object_list(states, src=0, group=group)
    optimizer.load_state_dict(states[0])
""",
        "momentum-lost": _ROOT
        + _WEIGHTS
        + """
    optimizer.state.clear()
""",
        "momentum-averaged": _ROOT
        + _WEIGHTS
        + """
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        dist.all_reduce(state["momentum_buffer"], group=group)
        state["momentum_buffer"] /= dist.get_world_size(group)
""",
        "spoils-the-checkpoint": _ROOT
        + """
    for parameter in model.parameters():
        dist.all_reduce(parameter.data, group=group)
        parameter.data /= dist.get_world_size(group)
    states = [optimizer.state_dict()]
    dist.broadcast_object_list(states, src=0, group=group)
    optimizer.load_state_dict(states[0])
""",
        "forgets-the-group": _ROOT
        + """
    states = [model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(states, src=0)
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
""",
        "no-communication": _ROOT + "    model.load_state_dict(model.state_dict())\n",
        "forgets-the-buffers": """
def sync_from_root(model, optimizer, group):
    for p in model.parameters():
        dist.broadcast(p.data, src=0, group=group)
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state, src=0, group=group)
    optimizer.load_state_dict(state[0])
""",
        "it-hangs": """
def sync_from_root(model, optimizer, group):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0, group=group)
    for state in optimizer.state.values():
        dist.broadcast(state["momentum_buffer"], src=0, group=group)
""",
        "rate-lost": """
def sync_from_root(model, optimizer, group):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0, group=group)
    box = [optimizer.state_dict()["state"]]
    dist.broadcast_object_list(box, src=0, group=group)
    state = optimizer.state_dict()
    state["state"] = box[0]
    optimizer.load_state_dict(state)
""",
        "weights-only: a new optimizer by the same name": """
def sync_from_root(model, optimizer, group):
    box = [model.state_dict(), optimizer]
    dist.broadcast_object_list(box, src=0, group=group)
    model.load_state_dict(box[0])
    optimizer = box[1]
""",
        "momentum-lost: cleared": """
def sync_from_root(model, optimizer, group):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0, group=group)
    optimizer.state.clear()
""",
    },
}
