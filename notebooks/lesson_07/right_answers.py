"""Right answers to lesson 07 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "07.scatter": {
        "through NumPy": """
import numpy as np, torch
def scatter_evenly(batch, p):
    return [torch.tensor(part) for part in np.array_split(batch.numpy(), p)]
""",
        "by recursion": """
import torch
def scatter_evenly(batch, p):
    if p == 1:
        return [batch.clone()]
    k = -(-len(batch) // p)
    return [batch[:k].clone()] + scatter_evenly(batch[k:], p - 1)
""",
        "stacks single samples": """
import torch
def scatter_evenly(batch, p):
    nothing = batch.new_empty((0, *batch.shape[1:]))
    parts = batch.tensor_split(p)
    return [torch.stack(list(part)) if len(part) else nothing.clone() for part in parts]
""",
    },
    "07.mean_loss": {
        "where and weights": """
import torch
def mean_loss(losses, sizes):
    weights = torch.tensor(sizes, dtype=losses[0].dtype)
    stacked = torch.stack(losses)
    return torch.where(weights > 0, stacked, 0).mul(weights).sum() / weights.sum()
""",
        "a running mean": """
def mean_loss(losses, sizes):
    mean, seen = None, 0
    for loss, size in zip(losses, sizes):
        if not size:
            continue
        seen += size
        mean = loss if mean is None else mean + (loss - mean) * (size / seen)
    return mean
""",
        "a dot product": """
import torch
def mean_loss(losses, sizes):
    keep = [(l, n) for l, n in zip(losses, sizes) if n]
    l, n = zip(*keep)
    return torch.dot(torch.stack(l), torch.tensor(n, dtype=l[0].dtype) / sum(sizes))
""",
    },
    "07.update": {
        "column by column": """
def update(model, replicas, optimizer):
    for column in zip(*(r.parameters() for r in replicas)):
        grads = [p.grad for p in column if p.grad is not None]
        if grads:
            column[0].grad = sum(grads)
    optimizer.step()
""",
        "by names, in place": """
import torch
def update(model, replicas, optimizer):
    with torch.no_grad():
        for replica in replicas[1:]:
            others = dict(replica.named_parameters())
            for name, own in model.named_parameters():
                g = others[name].grad
                if g is None:
                    continue
                if own.grad is None:
                    own.grad = g.clone()
                else:
                    own.grad.add_(g)
    optimizer.step()
""",
        "stacked, and cleared afterwards": """
import torch
def update(model, replicas, optimizer):
    for i, own in enumerate(model.parameters()):
        grads = [list(r.parameters())[i].grad for r in replicas]
        grads = [g for g in grads if g is not None]
        if grads:
            own.grad = torch.stack(grads).sum(0)
    optimizer.step()
    optimizer.zero_grad()
""",
    },
    "07.master_bytes": {
        "by the state dict": """
def master_bytes(model, inputs, outputs, p):
    w = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    g = sum(t.nbytes for t in model.parameters() if t.requires_grad)
    x, y = inputs.nbytes // p, outputs.nbytes // p
    return (p - 1) * (w + x + y), (p - 1) * (g + y)
""",
        "in a loop, by storages": """
import itertools
def master_bytes(model, inputs, outputs, p):
    out = arrived = 0
    for _ in range(1, p):
        for t in itertools.chain(model.parameters(), model.buffers()):
            out += t.untyped_storage().nbytes()
        out += inputs.nbytes // p
        arrived += outputs.nbytes // p
        out += outputs.nbytes // p
        for t in model.parameters():
            arrived += t.nbytes * t.requires_grad
    return out, arrived
""",
        "by chunks, as a list": """
def master_bytes(model, inputs, outputs, p):
    size = lambda ts: sum(t.element_size() * t.nelement() for t in ts)
    others = lambda t: size(t.chunk(p)[1:])
    replica = size(model.parameters()) + size(model.buffers())
    grads = size(filter(lambda t: t.requires_grad, model.parameters()))
    return [replica * (p - 1) + others(inputs) + others(outputs), grads * (p - 1) + others(outputs)]
""",
    },
    "07.accumulate": {
        "acquire and release": """
def accumulate(shared, compute, lock):
    g = compute()
    lock.acquire()
    try:
        total = shared.read()
        shared.write(total + g)
    finally:
        lock.release()
""",
        "tries again and again": """
import time
def accumulate(shared, compute, lock):
    g = compute()
    while not lock.acquire(blocking=False):
        time.sleep(0)
    shared.write(shared.read() + g)
    lock.release()
""",
        "waits while it is closed": """
def accumulate(shared, compute, lock):
    g = compute()
    while lock.locked():
        pass
    with lock:
        shared.write(shared.read() + g)
""",
    },
}
