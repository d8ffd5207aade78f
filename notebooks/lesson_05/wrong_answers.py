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
    },
}
