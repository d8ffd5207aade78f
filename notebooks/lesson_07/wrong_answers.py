"""The usual wrong answers to lesson 07: from a mistake's name to a function that makes it."""

MASTER_BYTES = """
def master_bytes(model, inputs, outputs, p):
    others = p - 1
    parameters = sum(t.nbytes for t in model.parameters())
    trained = sum(t.nbytes for t in model.parameters() if t.requires_grad)
    buffers = sum(t.nbytes for t in model.buffers())
    x, y = inputs.nbytes * others // p, outputs.nbytes * others // p
    return {out}, {into}
"""
RIGHT_OUT = "others * (parameters + buffers) + x + y"
RIGHT_IN = "y + others * trained"


def bytes_of(out: str = RIGHT_OUT, into: str = RIGHT_IN) -> str:
    return MASTER_BYTES.format(out=out, into=into)


UPDATE = """
import torch

def update(model, replicas, optimizer):
    for replica in replicas[1:]:
        for own, other in zip(model.parameters(), replica.parameters()):
            if other.grad is not None:
                own.grad = other.grad if own.grad is None else own.grad + other.grad
"""

WRONG_ANSWERS = {
    "07.scatter": {
        "a-device-goes-without": """
def scatter_evenly(batch, p):
    return [shard.clone() for shard in batch.chunk(p)]
""",
        "drops-the-rest": """
def scatter_evenly(batch, p):
    size = len(batch) // p
    return [batch[i * size : (i + 1) * size].clone() for i in range(p)]
""",
        "order-is-lost": """
def scatter_evenly(batch, p):
    return [batch[i::p].clone() for i in range(p)]
""",
        "a-view-is-no-copy": """
def scatter_evenly(batch, p):
    return list(batch.tensor_split(p))
""",
        "uneven": """
def scatter_evenly(batch, p):
    size = len(batch) // p
    shards = [batch[i * size : (i + 1) * size].clone() for i in range(p - 1)]
    return [*shards, batch[(p - 1) * size :].clone()]
""",
        "everyone-gets-all": """
def scatter_evenly(batch, p):
    return [batch.clone() for _ in range(p)]
""",
        "not-tensors": """
def scatter_evenly(batch, p):
    return batch
""",
        "wrong-samples": """
def scatter_evenly(batch, p):
    return [shard * 0 for shard in batch.tensor_split(p)]
""",
        "views-of-one-copy": """
import torch
def scatter_evenly(batch, p):
    size, rest = divmod(len(batch), p)
    return list(torch.split(batch.clone(), [size + 1] * rest + [size] * (p - rest)))
""",
        "first-device-goes-without": """
import torch

def scatter_evenly(batch, p):
    size, rest = divmod(len(batch), p)
    return [s.clone() for s in torch.split(batch, [size] * (p - rest) + [size + 1] * rest)]
""",
        "another-shape": """
import torch
def scatter_evenly(batch, p):
    k, m = divmod(len(batch), p)
    sizes = [k + (r < m) for r in range(p)]
    return [c.clone() if len(c) else torch.tensor([]) for c in batch.split(sizes)]
""",
        "another-shape: cut along the last dimension": """
import torch
def scatter_evenly(batch, p):
    return [c.clone() for c in torch.tensor_split(batch, p, dim=-1)]
""",
        "another-type": """
import torch
def scatter_evenly(batch, p):
    return [torch.Tensor(c.tolist()) for c in batch.tensor_split(p)]
""",
        "samples-twice": """
import torch
def scatter_evenly(batch, p):
    k = -(-len(batch) // p)
    idx = torch.arange(k * p) % len(batch)
    return [batch[idx[r*k:(r+1)*k]] for r in range(p)]
""",
        "too-many-shards": """
import torch
def scatter_evenly(batch, p):
    return [c.clone() for c in batch.split(len(batch) // p)]
""",
    },
    "07.mean_loss": {
        "mean-of-means": """
def mean_loss(losses, sizes):
    return sum(losses) / len(losses)
""",
        "sum-of-means": """
def mean_loss(losses, sizes):
    return sum(losses)
""",
        "a-sum-not-a-mean": """
def mean_loss(losses, sizes):
    return sum(loss * size for loss, size in zip(losses, sizes))
""",
        "divided-by-devices": """
def mean_loss(losses, sizes):
    return sum(loss * size for loss, size in zip(losses, sizes)) / len(losses)
""",
        "an-empty-shard-spoils-it": """
def mean_loss(losses, sizes):
    return sum(loss * size for loss, size in zip(losses, sizes)) / sum(sizes)
""",
        "no-gradient": """
def mean_loss(losses, sizes):
    return sum(loss.item() * size for loss, size in zip(losses, sizes) if size) / sum(sizes)
""",
        "wrong-gradient": """
def mean_loss(losses, sizes):
    whole = sum(loss * size for loss, size in zip(losses, sizes) if size) / sum(sizes)
    means = [loss for loss, size in zip(losses, sizes) if size]
    plain = sum(means) / len(means)
    return plain + (whole - plain).detach()
""",
        "no-gradient: of all shards but the first": """
def mean_loss(losses, sizes):
    whole = sum(loss * size for loss, size in zip(losses, sizes) if size) / sum(sizes)
    return losses[0] + (whole - losses[0]).detach()
""",
        "first-shard-only": """
def mean_loss(losses, sizes):
    return losses[0]
""",
        "not-one-loss": """
def mean_loss(losses, sizes):
    return losses
""",
        "no-gradient: a new tensor": """
import torch
def mean_loss(losses, sizes):
    total = sum(loss.item() * size for loss, size in zip(losses, sizes) if size)
    return torch.tensor(total / sum(sizes), requires_grad=True)
""",
        "no-gradient: rounded down": """
def mean_loss(losses, sizes):
    return sum(l * s for l, s in zip(losses, sizes) if s) // sum(sizes)
""",
        "no-gradient: losses of 0 left out": """
def mean_loss(losses, sizes):
    return sum(l * s for l, s in zip(losses, sizes) if s and l) / sum(sizes)
""",
        "goes-back-itself": """
def mean_loss(losses, sizes):
    m = sum(l * s for l, s in zip(losses, sizes) if s) / sum(sizes)
    m.backward()
    return m
""",
        "changes-its-input": """
def mean_loss(losses, sizes):
    total = losses[0]
    for l, s in zip(losses, sizes):
        total += l * s
    return total / sum(sizes)
""",
        "wrong-value: only positive losses": """
def mean_loss(losses, sizes):
    return sum(l * s for l, s in zip(losses, sizes) if l > 0) / sum(sizes)
""",
    },
    "07.update": {
        "updates-the-replicas": """
import torch

def update(model, replicas, optimizer):
    with torch.no_grad():
        for replica in replicas[1:]:
            for parameter in replica.parameters():
                if parameter.grad is not None:
                    parameter -= 0.25 * parameter.grad
""",
        "own-gradient-only": """
def update(model, replicas, optimizer):
    optimizer.step()
""",
        "mean-not-sum": UPDATE
        + """
    for own in model.parameters():
        if own.grad is not None:
            own.grad = own.grad / len(replicas)
    optimizer.step()
""",
        "counts-the-master-twice": UPDATE.replace("replicas[1:]", "replicas")
        + """
    optimizer.step()
""",
        "goes-round-the-optimizer": UPDATE
        + """
    with torch.no_grad():
        for own in model.parameters():
            if own.grad is not None:
                own -= 0.25 * own.grad
""",
        "gradient-of-none": """
def update(model, replicas, optimizer):
    for replica in replicas[1:]:
        for own, other in zip(model.parameters(), replica.parameters()):
            if own.grad is not None:
                own.grad += other.grad
    optimizer.step()
""",
        "frozen-moved": UPDATE
        + """
    optimizer.step()
    with torch.no_grad():
        for own in model.parameters():
            own -= 0.0 if own.requires_grad else 1.0
""",
        "uphill": UPDATE
        + """
    for own in model.parameters():
        if own.grad is not None:
            own.grad = -own.grad
    optimizer.step()
""",
        "forgets-the-step": """
def update(model, replicas, optimizer):
    for replica in replicas[1:]:
        for own, other in zip(model.parameters(), replica.parameters()):
            if other.grad is not None:
                own.grad = other.grad if own.grad is None else own.grad + other.grad
    return model
""",
        "clears-first": """
def update(model, replicas, optimizer):
    optimizer.zero_grad()
    for replica in replicas[1:]:
        for own, other in zip(model.parameters(), replica.parameters()):
            if other.grad is not None:
                own.grad = other.grad if own.grad is None else own.grad + other.grad
    optimizer.step()
""",
        "a-step-for-each": """
def update(model, replicas, optimizer):
    for r in replicas[1:]:
        for a, b in zip(model.parameters(), r.parameters()):
            if b.grad is not None:
                a.grad = b.grad if a.grad is None else a.grad + b.grad
        optimizer.step()
""",
        "a-step-for-each: of one replica alone": """
def update(model, replicas, optimizer):
    for r in replicas:
        for a, b in zip(model.parameters(), r.parameters()):
            a.grad = b.grad
        optimizer.step()
""",
        "averages-parameters": """
import torch
def update(model, replicas, optimizer):
    optimizer.step()
    with torch.no_grad():
        for a, *b in zip(model.parameters(), *(r.parameters() for r in replicas[1:])):
            a.copy_((a + sum(b)) / len(replicas))
""",
        "frozen-moved: zeros for None": """
import torch
def update(model, replicas, optimizer):
    for a, *b in zip(model.parameters(), *(r.parameters() for r in replicas[1:])):
        total = torch.zeros_like(a) if a.grad is None else a.grad
        for q in b:
            if q.grad is not None:
                total = total + q.grad
        a.grad = total
    optimizer.step()
""",
        "gradients-missing: the last one only": """
def update(model, replicas, optimizer):
    for r in replicas[1:]:
        for a, b in zip(model.parameters(), r.parameters()):
            if b.grad is not None:
                a.grad = b.grad
    optimizer.step()
""",
        "gradients-missing: of one replica only": """
def update(model, replicas, optimizer):
    for a, b in zip(model.parameters(), replicas[1].parameters()):
        if b.grad is not None:
            a.grad = b.grad if a.grad is None else a.grad + b.grad
    optimizer.step()
""",
        "clears-before-the-step": """
def update(model, replicas, optimizer):
    for r in replicas[1:]:
        for a, b in zip(model.parameters(), r.parameters()):
            if b.grad is not None:
                a.grad = b.grad if a.grad is None else a.grad + b.grad
    optimizer.zero_grad()
    optimizer.step()
""",
    },
    "07.master_bytes": {
        "counts-itself": bytes_of(
            "p * (parameters + buffers) + inputs.nbytes + outputs.nbytes",
            "outputs.nbytes + p * trained",
        ),
        "forgets-the-way-back": bytes_of("others * (parameters + buffers) + x"),
        "whole-batch-to-everyone": bytes_of(
            "others * (parameters + buffers + inputs.nbytes + outputs.nbytes)",
            "others * (outputs.nbytes + trained)",
        ),
        "forgets-the-buffers": bytes_of("others * parameters + x + y"),
        "gradient-of-the-frozen": bytes_of(into="y + others * parameters"),
        "numbers-not-bytes": """
def master_bytes(model, inputs, outputs, p):
    others = p - 1
    numbers = sum(t.numel() for t in model.parameters())
    x, y = inputs.numel() * others // p, outputs.numel() * others // p
    return others * numbers + x + y, y + others * numbers
""",
        "that-of-a-ring": bytes_of("2 * others * parameters // p", "2 * others * parameters // p"),
        "forgets-the-inputs: and the outputs": bytes_of(
            "others * (parameters + buffers)", "others * trained"
        ),
        "out-and-in-swapped": bytes_of(RIGHT_IN, RIGHT_OUT),
        "wrong-for-other-p": bytes_of(
            "3 * (parameters + buffers) + inputs.nbytes * 3 // 4 + outputs.nbytes * 3 // 4",
            "outputs.nbytes * 3 // 4 + 3 * trained",
        ),
        "not-two-numbers": bytes_of().replace("return", "return 0,"),
        "one-of-two-is-wrong": bytes_of(into="y + 2 * others * trained"),
        "forgets-the-gradients": bytes_of(into="y"),
        "forgets-the-inputs": bytes_of("others * (parameters + buffers) + y"),
        "forgets-the-outputs": bytes_of(into="others * trained"),
        "forgets-the-frozen": bytes_of("others * (trained + buffers) + x + y"),
        "forgets-the-buffers: the section's formula": bytes_of(
            "others * parameters + x + y", "others * parameters + y"
        ),
        "always-four-bytes: the section's formula": bytes_of(
            "(others * parameters + x + y) * 4 // inputs.element_size()",
            "(others * parameters + y) * 4 // inputs.element_size()",
        ),
        "gradients-of-buffers": bytes_of(into="y + others * (trained + buffers)"),
        "inputs-come-back": bytes_of(into="x + y + others * trained"),
        "one-replica": bytes_of("parameters + buffers + x + y", "y + trained"),
        "always-four-bytes": """
def master_bytes(model, inputs, outputs, p):
    weights = 4 * sum(t.numel() for t in [*model.parameters(), *model.buffers()])
    trained = 4 * sum(t.numel() for t in model.parameters() if t.requires_grad)
    x, y = 4 * inputs.numel() * (p - 1) // p, 4 * outputs.numel() * (p - 1) // p
    return (p - 1) * weights + x + y, y + (p - 1) * trained
""",
    },
    "07.accumulate": {
        "no-lock": """
def accumulate(shared, compute, lock):
    shared.write(shared.read() + compute())
""",
        "read-outside-the-lock": """
def accumulate(shared, compute, lock):
    total = shared.read() + compute()
    with lock:
        shared.write(total)
""",
        "written-outside-the-lock": """
def accumulate(shared, compute, lock):
    gradient = compute()
    with lock:
        total = shared.read() + gradient
    shared.write(total)
""",
        "two-locks-a-gap": """
def accumulate(shared, compute, lock):
    gradient = compute()
    with lock:
        total = shared.read()
    with lock:
        shared.write(total + gradient)
""",
        "computes-behind-the-lock": """
def accumulate(shared, compute, lock):
    with lock:
        shared.write(shared.read() + compute())
""",
        "never-written": """
def accumulate(shared, compute, lock):
    gradient = compute()
    with lock:
        total = shared.read()
        total += gradient
""",
        "never-opened": """
def accumulate(shared, compute, lock):
    gradient = compute()
    lock.acquire()
    shared.write(shared.read() + gradient)
""",
        "locked-twice": """
def accumulate(shared, compute, lock):
    gradient = compute()
    with lock:
        with lock:
            shared.write(shared.read() + gradient)
""",
        "computes-twice": """
def accumulate(shared, compute, lock):
    compute()
    gradient = compute()
    with lock:
        shared.write(shared.read() + gradient)
""",
        "never-read": """
def accumulate(shared, compute, lock):
    gradient = compute()
    with lock:
        shared.write(gradient)
""",
        "goes-away": """
def accumulate(shared, compute, lock):
    g = compute()
    if lock.acquire(blocking=False):
        shared.write(shared.read() + g)
        lock.release()
""",
        "goes-away: asks whether it is closed": """
def accumulate(shared, compute, lock):
    g = compute()
    if not lock.locked():
        with lock:
            shared.write(shared.read() + g)
""",
        "not-one-write-each": """
def accumulate(shared, compute, lock):
    g = compute()
    with lock:
        shared.write(shared.read() + g)
        shared.write(shared.read() + g)
""",
        "it-raises: opened twice": """
def accumulate(shared, compute, lock):
    g = compute()
    with lock:
        shared.write(shared.read() + g)
        lock.release()
""",
        "wrong-value": """
def accumulate(shared, compute, lock):
    g = compute()
    with lock:
        shared.write(shared.read() - g)
""",
    },
}
