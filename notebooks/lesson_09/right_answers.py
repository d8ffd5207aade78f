"""Right answers to lesson 09 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "09.staleness": {
        "an array": """
import numpy as np


def staleness(order):
    last = {worker: 0 for worker in order}
    found = np.zeros(len(order), dtype=np.int64)
    for version, worker in enumerate(order):
        found[version] = version - last[worker]
        last[worker] = version + 1
    return found
""",
        "numbers of NumPy in a list": """
import numpy as np


def staleness(order):
    found = []
    for version, worker in enumerate(order):
        before = [v + 1 for v in range(version) if order[v] == worker]
        found.append(np.int64(version - max(before, default=0)))
    return found
""",
        "a comprehension": """
def staleness(order):
    def fetched(v, worker):
        return max([u + 1 for u in range(v) if order[u] == worker], default=0)

    return [v - fetched(v, worker) for v, worker in enumerate(order)]
""",
    },
    "09.work": {
        "ranks of the group, and copies": """
def work(compute, parameters, rounds, group):
    losses = []
    for i in range(rounds):
        found = compute(parameters).clone()
        dist.send(torch.tensor([1.0]), group_dst=0, group=group, tag=1)
        go = torch.empty(1)
        dist.recv(go, group_src=0, group=group, tag=2)
        dist.send(found, group_dst=0, group=group, tag=3)
        new = torch.empty_like(parameters)
        dist.recv(new, group_src=0, group=group, tag=4)
        parameters[:] = new
        losses.append(float(found[-1]))
    return losses
""",
        "without blocking, by recursion": """
def work(compute, parameters, rounds, group):
    if rounds == 0:
        return []
    *gradient, loss = compute(parameters).tolist()
    hello = dist.isend(torch.ones(1), dst=0, group=group, tag=1)
    ready = dist.irecv(torch.zeros(1), src=0, group=group, tag=2)
    hello.wait(); ready.wait()
    sent = dist.isend(torch.tensor([*gradient, loss]), dst=0, group=group, tag=3)
    dist.irecv(parameters, src=0, group=group, tag=4).wait()
    sent.wait()
    return [loss] + work(compute, parameters, rounds - 1, group)
""",
    },
    "09.serve": {
        "a list comprehension over one round": """
def serve(parameters, update, rounds, group):
    def one():
        worker = dist.recv(torch.zeros(1), group=group, tag=1)
        dist.isend(torch.ones(1), worker, group=group, tag=2).wait()
        coming = torch.zeros(len(parameters) + 1)
        dist.irecv(coming, worker, group=group, tag=3).wait()
        update(parameters, coming[:len(parameters)])
        dist.isend(parameters.clone(), worker, group=group, tag=4).wait()
        return worker
    return [one() for _ in range(rounds)]
""",
        "a buffer for each worker": """
def serve(parameters, update, rounds, group):
    one, order = torch.ones(1), []
    workers = range(1, dist.get_world_size(group))
    buffers = {worker: torch.empty(parameters.shape[0] + 1) for worker in workers}
    for left in range(rounds, 0, -1):
        order.append(dist.recv(torch.empty(1), None, group, 1))
        dist.send(one, order[-1], group, 2)
        dist.recv(buffers[order[-1]], order[-1], group, 3)
        *_, loss = buffers[order[-1]]
        update(parameters, buffers[order[-1]][:parameters.shape[0]])
        dist.send(parameters, order[-1], group, 4)
    return order
""",
    },
    "09.rate_for": {
        "or": """
def rate_for(base, staleness):
    return base / (staleness or 1)
""",
        "an exception": """
def rate_for(base, staleness):
    try:
        return min(base, base * staleness ** -1)
    except ZeroDivisionError:
        return base
""",
        "numbers of NumPy, one of them in single precision": """
import numpy as np
def rate_for(base, staleness):
    return np.float32(base) if not staleness else np.divide(base, staleness)
""",
    },
    "09.gossip": {
        "a batch": """
def gossip(value, partner, group):
    theirs = torch.zeros_like(value)
    calls = (dist.isend, value), (dist.irecv, theirs)
    operations = [dist.P2POp(call, tensor, partner, group) for call, tensor in calls]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    return torch.lerp(value, theirs, 0.5)
""",
        "the lower rank first": """
def gossip(value, partner, group):
    other = value.clone()
    if dist.get_rank(group) < dist.get_group_rank(group, partner):
        dist.send(value, partner, group)
        dist.recv(other, partner, group)
        return other.add(value).mul(0.5)
    dist.recv(other, partner, group)
    dist.send(value, partner, group)
    return torch.stack([value, other]).mean(dim=0)
""",
        "receives first, without waiting, with a tag": """
def gossip(value, partner, group):
    theirs = torch.empty(value.shape, dtype=value.dtype)
    coming = dist.irecv(theirs, src=partner, group=group, tag=7)
    dist.send(value, dst=partner, group=group, tag=7)
    coming.wait()
    return value * 0.5 + theirs * 0.5
""",
    },
}
