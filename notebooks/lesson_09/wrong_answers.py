"""The usual wrong answers to lesson 09: from a mistake's name to a function that makes it."""

WRONG_ANSWERS = {
    "09.work": {
        "no-hello": """
def work(compute, parameters, rounds, group):
    losses = []
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(message, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(message[-1].item())
    return losses
""",
        "does-not-wait-for-ready": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.send(message, 0, group=group, tag=3)
        dist.recv(ready, 0, group=group, tag=2)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(message[-1].item())
    return losses
""",
        "keeps-the-server-waiting": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    for _ in range(rounds):
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(ready, 0, group=group, tag=2)
        message = compute(parameters)
        dist.send(message, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(message[-1].item())
    return losses
""",
        "forgets-the-loss": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(ready, 0, group=group, tag=2)
        dist.send(message[:-1].clone(), 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(message[-1].item())
    return losses
""",
        "computes-at-old-parameters": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    new = torch.empty_like(parameters)
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(ready, 0, group=group, tag=2)
        dist.send(message, 0, group=group, tag=3)
        dist.recv(new, 0, group=group, tag=4)
        losses.append(message[-1].item())
    return losses
""",
        "wrong-number-of-gradients": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    message = compute(parameters)
    for _ in range(rounds):
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(ready, 0, group=group, tag=2)
        dist.send(message, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(message[-1].item())
    return losses
""",
        "never-fetches": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(ready, 0, group=group, tag=2)
        dist.send(message, 0, group=group, tag=3)
        losses.append(message[-1].item())
    return losses
""",
        "wrong-losses": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(ready, 0, group=group, tag=2)
        dist.send(message, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(message[-1])
    return losses
""",
        "forgets-the-group": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(torch.ones(1), 0, tag=1)
        dist.recv(ready, 0, tag=2)
        dist.send(message, 0, tag=3)
        dist.recv(parameters, 0, tag=4)
        losses.append(message[-1].item())
    return losses
""",
        "wrong-tag": """
def work(compute, parameters, rounds, group):
    losses, ready = [], torch.zeros(1)
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(torch.ones(1), 0, group=group)
        dist.recv(ready, 0, group=group)
        dist.send(message, 0, group=group)
        dist.recv(parameters, 0, group=group)
        losses.append(message[-1].item())
    return losses
""",
        "another-tensor": """
def work(compute, parameters, rounds, group):
    losses = []
    for i in range(rounds):
        found = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(torch.zeros(1), 0, group=group, tag=2)
        dist.send(found, 0, group=group, tag=3)
        new = torch.empty_like(parameters)
        dist.recv(new, 0, group=group, tag=4)
        parameters = new
        losses.append(found[-1].item())
    return losses
""",
        "wrong-tag: none for the parameters": """
def work(compute, parameters, rounds, group):
    losses = []
    for i in range(rounds):
        found = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(torch.zeros(1), 0, group=group, tag=2)
        dist.send(found, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group)
        losses.append(found[-1].item())
    return losses
""",
        "wrong-tag: of another message": """
def work(compute, parameters, rounds, group):
    losses = []
    for i in range(rounds):
        found = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(torch.zeros(1), 0, group=group, tag=1)
        dist.send(found, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(found[-1].item())
    return losses
""",
        "wrong-number-of-rounds": """
def work(compute, parameters, rounds, group):
    losses = []
    for i in range(rounds + 1):
        found = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(torch.zeros(1), 0, group=group, tag=2)
        dist.send(found, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(found[-1].item())
    return losses
""",
        "wrong-number-of-rounds: too few": """
def work(compute, parameters, rounds, group):
    losses = []
    for i in range(1, rounds):
        found = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(torch.zeros(1), 0, group=group, tag=2)
        dist.send(found, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(found[-1].item())
    return losses
""",
        "wrong-losses: tensors": """
def work(compute, parameters, rounds, group):
    losses = []
    for i in range(rounds):
        found = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(torch.zeros(1), 0, group=group, tag=2)
        dist.send(found, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(found[-1])
    return losses
""",
    },
    "09.serve": {
        "fixed-order": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for i in range(rounds):
        worker = 1 + i % (dist.get_world_size(group) - 1)
        dist.recv(hello, worker, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group, tag=2)
        dist.recv(message, worker, group=group, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
""",
        "gradient-from-anyone": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds):
        worker = dist.recv(hello, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group, tag=2)
        worker = dist.recv(message, group=group, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
""",
        "no-answer": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds):
        worker = dist.recv(hello, group=group, tag=1)
        dist.recv(message, worker, group=group, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
""",
        "serves-too-many": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds * (dist.get_world_size(group) - 1)):
        worker = dist.recv(hello, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group, tag=2)
        dist.recv(message, worker, group=group, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
""",
        "loss-in-the-gradient": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds):
        worker = dist.recv(hello, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group, tag=2)
        dist.recv(message, worker, group=group, tag=3)
        update(parameters, message)
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
""",
        "sends-before-updating": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds):
        worker = dist.recv(hello, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group, tag=2)
        dist.recv(message, worker, group=group, tag=3)
        dist.send(parameters, worker, group=group, tag=4)
        update(parameters, message[:-1])
        served.append(worker)
    return served
""",
        "never-updates": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds):
        worker = dist.recv(hello, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group, tag=2)
        dist.recv(message, worker, group=group, tag=3)
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
""",
        "wrong-order": """
def serve(parameters, update, rounds, group):
    served = set()
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds):
        worker = dist.recv(hello, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group, tag=2)
        dist.recv(message, worker, group=group, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, group=group, tag=4)
        served.add(worker)
    return sorted(served)
""",
        "forgets-the-group": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds):
        worker = dist.recv(hello, tag=1)
        dist.send(torch.ones(1), worker, tag=2)
        dist.recv(message, worker, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, tag=4)
        served.append(worker)
    return served
""",
        "collects-hellos": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    W = dist.get_world_size(group) - 1
    while len(served) < rounds:
        workers = [dist.recv(hello, group=group, tag=1) for _ in range(W)]
        for worker in workers:
            dist.send(torch.ones(1), worker, group=group, tag=2)
            dist.recv(message, worker, group=group, tag=3)
            update(parameters, message[:-1])
            dist.send(parameters, worker, group=group, tag=4)
            served.append(worker)
    return served
""",
        "answers-another": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for i in range(rounds):
        dist.recv(hello, group=group, tag=1)
        worker = int(hello.item())
        dist.send(torch.ones(1), worker, group=group, tag=2)
        dist.recv(message, worker, group=group, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
""",
        "wrong-tag": """
def serve(parameters, update, rounds, group):
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for i in range(rounds):
        worker = dist.recv(hello, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group)
        dist.recv(message, worker, group=group, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
""",
    },
    "09.staleness": {
        "counts-its-own-update": """
def staleness(order):
    fetched, result = {}, []
    for version, worker in enumerate(order):
        result.append(version - fetched.get(worker, 0))
        fetched[worker] = version
    return result
""",
        "counts-itself": """
def staleness(order):
    fetched, result = {}, []
    for version, worker in enumerate(order, start=1):
        result.append(version - fetched.get(worker, 0))
        fetched[worker] = version
    return result
""",
        "first-is-fresh": """
def staleness(order):
    fetched, result = {}, []
    for version, worker in enumerate(order):
        result.append(version - fetched.get(worker, version))
        fetched[worker] = version + 1
    return result
""",
        "never-fetches": """
def staleness(order):
    return list(range(len(order)))
""",
        "counts-own-updates": """
def staleness(order):
    return [order[:version].count(worker) for version, worker in enumerate(order)]
""",
        "one-number": """
def staleness(order):
    return len(set(order)) - 1
""",
        "wrong-value": """
def staleness(order):
    return [len(set(order)) - 1 for _ in order]
""",
        "changes-its-input": """
def staleness(order):
    fetched, result, version = {}, [], 0
    while order:
        worker = order.pop(0)
        result.append(version - fetched.get(worker, 0))
        version += 1
        fetched[worker] = version
    return result
""",
        "counts-workers": """
def staleness(order):
    last, result = {}, []
    for v, w in enumerate(order):
        result.append(len(set(order[last.get(w, -1) + 1:v])))
        last[w] = v
    return result
""",
    },
    "09.rate_for": {
        "division-by-zero": """
def rate_for(base, staleness):
    return base / staleness
""",
        "plus-one": """
def rate_for(base, staleness):
    return base / (staleness + 1)
""",
        "multiplies": """
def rate_for(base, staleness):
    return base * max(1, staleness)
""",
        "stability-bound: of a fresh one": """
def rate_for(base, staleness):
    from math import pi, sin

    return base * sin(pi / (4 * staleness + 2))
""",
        "stability-bound: twice that": """
def rate_for(base, staleness):
    from math import pi, sin

    return base * 2 * sin(pi / (4 * staleness + 2))
""",
        "stability-bound: at most": """
def rate_for(base, staleness):
    from math import pi, sin

    return min(base, 2 * sin(pi / (4 * staleness + 2)))
""",
        "square-root": """
def rate_for(base, staleness):
    return base / max(1, staleness) ** 0.5
""",
        "whole-numbers": """
def rate_for(base, staleness):
    return base // max(1, staleness)
""",
        "fresh-is-special": """
def rate_for(base, staleness):
    return base / staleness if staleness else 0.0
""",
        "returns-nothing": """
def rate_for(base, staleness):
    if staleness > 0:
        return base / staleness
""",
        "constant": """
def rate_for(base, staleness):
    return base
""",
    },
    "09.gossip": {
        "both-send-first": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    dist.send(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    return (value + theirs) / 2
""",
        "both-receive-first": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    dist.recv(theirs, partner, group=group)
    dist.send(value, partner, group=group)
    return (value + theirs) / 2
""",
        "uses-a-collective": """
def gossip(value, partner, group):
    total = value.clone()
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)
""",
        "sum-not-mean": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    sending.wait()
    return value + theirs
""",
        "swaps": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    sending.wait()
    return theirs
""",
        "mean-not-kept": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    if dist.get_rank(group) < partner:
        dist.send(value, partner, group=group)
        dist.recv(theirs, partner, group=group)
        return (value + theirs) / 2
    dist.recv(theirs, partner, group=group)
    mean = (value + theirs) / 2
    dist.send(mean, partner, group=group)
    return mean
""",
        "changes-its-own": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    sending.wait()
    return value.add_(theirs).div_(2)
""",
        "does-not-wait": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    dist.isend(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    return (value + theirs) / 2
""",
        "forgets-the-group": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner)
    dist.recv(theirs, partner)
    sending.wait()
    return (value + theirs) / 2
""",
        "half-of-one": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    sending.wait()
    return value + theirs / 2
""",
        "wrong-value": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    return (value - theirs) / 2
""",
        "both-send-first: waits at once": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    dist.isend(value, partner, group=group).wait()
    dist.recv(theirs, partner, group=group)
    return (value + theirs) / 2
""",
        "both-receive-first: waits at once": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    dist.irecv(theirs, partner, group=group).wait()
    dist.send(value, partner, group=group)
    return (value + theirs) / 2
""",
        "returns-no-tensor": """
def gossip(value, partner, group):
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    sending.wait()
    return torch.cat([value, theirs]).mean()
""",
    },
}
