"""Right answers to lesson 12 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "12.save_whole": {
        "a temporary file": """
import os
import tempfile


def save_whole(path, write):
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
""",
        "without a buffer, by fdatasync": """
import os


def save_whole(path, write):
    beside = path.with_suffix(".new")
    with beside.open("wb", buffering=0) as file:
        write(file)
        os.fdatasync(file)
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
""",
        "a descriptor, so a file without a name": """
import os, tempfile
def save_whole(path, write):
    fd, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(fd, 'wb') as f:
            write(f)
            f.flush()
            os.fsync(fd)
        os.rename(name, path)
    except BaseException:
        os.unlink(name)
        raise
""",
        "written in memory first": """
import os, io
def save_whole(path, write):
    memory = io.BytesIO()
    write(memory)
    beside = path.parent / (path.name + '.tmp')
    file = open(beside, 'wb', buffering=0)
    file.write(memory.getvalue())
    os.fsync(file)
    file.close()
    os.replace(str(beside), str(path))
""",
        "names imported from os": """
from os import fsync, replace
def save_whole(path, write):
    part = path.parent / ("." + path.name)
    with part.open("wb") as f:
        write(f)
        f.flush()
        fsync(f)
    replace(part, path)
""",
    },
    "12.name_the_bugs": {
        "lists": """
def name_the_bugs():
    return {
        "C": ["wrong tag", [1, 0]], "B": ["endless loop", [3]], "A": ["skipped collective", [2]]
    }
""",
        "other sets, and spelt otherwise": """
def name_the_bugs():
    bugs = "Skipped Collective", "endless loop ", "wrong tag"
    return dict(zip("ABC", zip(bugs, (frozenset([2]), 3, range(2)))))
""",
        "one of the two tags is changed": """
def name_the_bugs():
    return {'A': ('skipped collective', {2}), 'B': ('endless loop', {3}), 'C': ('wrong tag', {1})}
""",
    },
    "12.rest_of_epoch": {
        "a tuple, by islice": """
def rest_of_epoch(order, done, rank, world_size):
    from itertools import islice
    return tuple(islice(order, done + rank, None, world_size))
""",
        "a tensor": """
def rest_of_epoch(order, done, rank, world_size):
    import torch
    return torch.tensor(order)[done:][rank::world_size]
""",
        "whoever's turn it is by the place in the whole order": """
def rest_of_epoch(order, done, rank, world_size):
    return [s for i, s in enumerate(order) if i >= done and i % world_size == rank]
""",
    },
    "12.go_on": {
        "all tell all, and a rank of the world": """
from torch.nn.parallel import DistributedDataParallel as DDP
def go_on(model, optimizer, steps_done, group):
    size = dist.get_world_size(group)
    all_steps = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
    dist.all_gather(all_steps, torch.tensor([steps_done]), group=group)
    best = int(torch.cat(all_steps).argmax())
    src = dist.get_global_rank(group, best)
    box = [{'m': model.state_dict(), 'o': optimizer.state_dict(), 's': steps_done}]
    dist.broadcast_object_list(box, src=src, group=group)
    model.load_state_dict(box[0]['m'])
    optimizer.load_state_dict(box[0]['o'])
    return DDP(model, process_group=group), box[0]['s']
""",
        "everybody's state is gathered": """
from torch.nn.parallel import DistributedDataParallel as DDP
def go_on(model, optimizer, steps_done, group):
    mine = (steps_done, dist.get_rank(group), model.state_dict(), optimizer.state_dict())
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    step, _, weights, state = max(everyone, key=lambda one: one[0])
    if steps_done < step:
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    return DDP(model, None, process_group=group), step
""",
        "tensor by tensor": """
from torch.nn.parallel import DistributedDataParallel as DDP
def go_on(model, optimizer, steps_done, group):
    most = torch.tensor(steps_done)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    who = torch.tensor(dist.get_rank(group) if steps_done == most else 10**6)
    dist.all_reduce(who, op=dist.ReduceOp.MIN, group=group)
    for p in model.parameters():
        dist.broadcast(p.data, group_src=int(who), group=group)
        dist.broadcast(optimizer.state[p]['momentum_buffer'], group_src=int(who), group=group)
    return DDP(model, process_group=group), int(most)
""",
    },
    "12.best_interval": {
        "a search for the smallest loss": """
def best_interval(save_s, lifetime_s, ranks):
    M = lifetime_s / ranks
    low, high = 1e-9, 1e15
    for _ in range(300):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        f = lambda t: save_s / t + t / (2 * M)
        low, high = (low, b) if f(a) < f(b) else (a, high)
    return (low + high) / 2
""",
        "by logarithms": """
def best_interval(save_s, lifetime_s, ranks):
    from math import exp, log
    return exp(0.5 * (log(2) + log(save_s) + log(lifetime_s) - log(ranks)))
""",
        "a tensor in single precision": """
import torch
def best_interval(s, l, n): return torch.sqrt(torch.tensor(2*s*l/n))
""",
    },
}
