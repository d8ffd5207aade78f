"""Right answers to lesson 05 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "05.sync_gradients": {
        "vectors of torch.nn.utils, new gradients": """
from torch.nn.utils import parameters_to_vector, vector_to_parameters

def sync_gradients(model, group):
    having = [p for p in model.parameters() if p.grad is not None]
    vector = parameters_to_vector(p.grad for p in having)
    dist.all_reduce(vector, op=dist.ReduceOp.AVG, group=group)
    start = 0
    for p in having:
        p.grad = vector[start : start + p.numel()].reshape(p.shape)
        start += p.numel()
""",
        "divides first, not blocking": """
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

def sync_gradients(model, group):
    grads = [p.grad.data for p in model.parameters() if p.grad is not None]
    flat = _flatten_dense_tensors(grads).div_(dist.get_world_size(group))
    dist.all_reduce(flat, group=group, async_op=True).wait()
    torch._foreach_copy_(grads, _unflatten_dense_tensors(flat, grads))
""",
    },
    "05.train_step": {
        "the colleague's order": """
from torch.nn.functional import cross_entropy
import torch.nn.functional as F

def train_step(model, optimizer, images, labels, group):
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    optimizer.step()
    optimizer.zero_grad()
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item() / dist.get_world_size(group)
""",
        "the loss travels with the gradients": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    optimizer.zero_grad(set_to_none=True)
    loss = cross_entropy(model(images), labels)
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([loss.detach().reshape(1), *(g.reshape(-1) for g in grads)])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=group)
    mean, *parts = flat.split([1, *(g.numel() for g in grads)])
    for g, part in zip(grads, parts):
        g.copy_(part.reshape(g.shape))
    optimizer.step()
    return float(mean)
""",
        "a share of the sum, not blocking": """
from torch.nn.functional import cross_entropy

def train_step(model, optimizer, images, labels, group):
    n = dist.get_world_size(group)
    optimizer.zero_grad()
    (cross_entropy(model(images), labels, reduction="sum") / (len(labels) * n)).backward()
    works = [dist.all_reduce(p.grad, group=group, async_op=True) for p in model.parameters()]
    with torch.no_grad():
        loss = cross_entropy(model(images), labels)
    for work in works:
        work.wait()
    dist.all_reduce(loss, group=group)
    optimizer.step()
    return (loss / n).item()
""",
    },
    "05.batches_of_rank": {
        "array_split": """
import math
import numpy as np

def batches_of_rank(samples, batch_size, rank, world_size):
    steps = math.ceil(samples / (batch_size * world_size))
    pieces = np.array_split(np.arange(samples), steps * world_size)
    return [pieces[step * world_size + rank].tolist() for step in range(steps)]
""",
        "numbers of NumPy": """
import numpy as np

def batches_of_rank(samples, batch_size, rank, world_size):
    steps = -(-samples // (batch_size * world_size))
    mine = np.arange(rank, samples, world_size)
    return [list(part) for part in np.array_split(mine, steps)]
""",
        "shuffled by one seed": """
import random

def batches_of_rank(samples, batch_size, rank, world_size):
    order = list(range(samples))
    random.Random(7).shuffle(order)
    steps = 1
    while steps * batch_size * world_size < samples:
        steps += 1
    mine = order[rank::world_size]
    return [mine[step::steps] for step in range(steps)]
""",
        "ranges": """
def batches_of_rank(samples, batch_size, rank, world_size):
    steps = -(-samples // (batch_size * world_size))
    return [range(rank + s * world_size, samples, steps * world_size) for s in range(steps)]
""",
    },
    "05.sync_from_root": {
        "one object, for the others only": """
def sync_from_root(model, optimizer, group):
    is_root = dist.get_rank() == 0
    box = [(model.state_dict(), optimizer.state_dict()) if is_root else None]
    dist.broadcast_object_list(box, src=0, group=group)
    if not is_root:
        weights, state = box[0]
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
""",
        "tensors and an object, group_src": """
import copy

@torch.no_grad()
def sync_from_root(model, optimizer, group):
    root = dist.get_group_rank(group, 0)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, group=group, group_src=root)
    box = [copy.deepcopy(optimizer.state_dict())]
    dist.broadcast_object_list(box, group=group, group_src=root)
    optimizer.load_state_dict(box.pop())
""",
        "the bytes of a file": """
import io

def sync_from_root(model, optimizer, group):
    buffer = io.BytesIO()
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    size = torch.tensor([buffer.getbuffer().nbytes])
    dist.broadcast(size, src=0, group=group)
    data = torch.zeros(int(size), dtype=torch.uint8)
    if dist.get_rank() == 0:
        data.copy_(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8))
    dist.broadcast(data, src=0, group=group)
    checkpoint = torch.load(io.BytesIO(data.numpy().tobytes()))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
""",
        "the source by its rank in the group": """
def sync_from_root(model, optimizer, group):
    src = dist.get_global_rank(group, 0)
    box = [model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(box, src=src, group=group)
    model.load_state_dict(box[0])
    optimizer.load_state_dict(box[1])
""",
    },
}
