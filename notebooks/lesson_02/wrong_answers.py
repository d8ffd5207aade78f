"""The usual wrong answers to lesson 02: from a mistake's name to a function that makes it."""

WRONG_ANSWERS = {
    "02.broadcast": {
        "uses-a-collective": """
def broadcast(comm, value, root):
    return comm.bcast(value, root=root)
""",
        "root-is-fixed": """
def broadcast(comm, value, root):
    if comm.rank != 0:
        return comm.recv(source=0)
    for dest in range(1, comm.size):
        comm.send(value, dest=dest)
    return value
""",
        "size-is-fixed": """
def broadcast(comm, value, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(4):
        if dest != root:
            comm.send(value, dest=dest)
    return value
""",
        "root-returns-nothing": """
def broadcast(comm, value, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.send(value, dest=dest)
""",
        "sends-to-itself": """
def broadcast(comm, value, root):
    if comm.rank == root:
        for dest in range(comm.size):
            comm.send(value, dest=dest)
    return comm.recv(source=root)
""",
        "somebody-gets-nothing": """
def broadcast(comm, value, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size - 1):
        if dest != root:
            comm.send(value, dest=dest)
    return value
""",
        "nobody-sends": """
def broadcast(comm, value, root):
    value = comm.recv(source=root)
    if comm.rank == root:
        for dest in range(comm.size):
            if dest != root:
                comm.send(value, dest=dest)
    return value
""",
        "sends-twice": """
def broadcast(comm, value, root):
    for source in range(comm.size):
        if comm.rank == source:
            for dest in range(comm.size):
                if dest != source:
                    comm.send(value, dest=dest)
        else:
            received = comm.recv(source=source)
            if source == root:
                kept = received
    return value if comm.rank == root else kept
""",
        "wrong-value": """
def broadcast(comm, value, root):
    if comm.rank != root:
        comm.recv(source=root)
        return value
    for dest in range(comm.size):
        if dest != root:
            comm.send(value, dest=dest)
    return value
""",
        "does-not-wait": """
def broadcast(comm, value, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.isend(value, dest=dest)
    return value
""",
        "sends-to-the-root": """
def broadcast(comm, value, root):
    if comm.rank != root:
        value = comm.recv(source=(comm.rank - 1) % comm.size)
    comm.send(value, dest=(comm.rank + 1) % comm.size)
    return value
""",
    },
    "02.scatter": {
        "uses-a-collective": """
def scatter(comm, parts, root):
    return comm.scatter(parts, root=root)
""",
        "sends-everything": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)[comm.rank]
    for dest in range(comm.size):
        if dest != root:
            comm.send(parts, dest=dest)
    return parts[root]
""",
        "root-keeps-everything": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.send(parts[dest], dest=dest)
    return parts
""",
        "everyone-keeps-everything": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.send(parts, dest=dest)
    return parts[root]
""",
        "root-returns-nothing": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.send(parts[dest], dest=dest)
""",
        "parts-shifted": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)
    others = [rank for rank in range(comm.size) if rank != root]
    for part, dest in zip(parts, others):
        comm.send(part, dest=dest)
    return parts[-1]
""",
        "root-is-fixed": """
def scatter(comm, parts, root):
    if comm.rank != 0:
        return comm.recv(source=0)
    for dest in range(1, comm.size):
        comm.send(parts[dest], dest=dest)
    return parts[0]
""",
        "size-is-fixed": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(4):
        if dest != root:
            comm.send(parts[dest], dest=dest)
    return parts[root]
""",
        "sends-to-itself": """
def scatter(comm, parts, root):
    if comm.rank == root:
        for dest, part in enumerate(parts):
            comm.send(part, dest=dest)
    return comm.recv(source=root)
""",
    },
    "02.report": {
        "collective-behind-an-if": """
def report(comm, loss):
    if comm.rank == 0:
        return comm.allreduce(loss) / comm.size
    return None
""",
        "everyone-gets-it": """
def report(comm, loss):
    return comm.allreduce(loss) / comm.size
""",
        "more-than-a-reduce": """
def report(comm, loss):
    total = comm.allreduce(loss)
    return total / comm.size if comm.rank == 0 else None
""",
        "sum-not-mean": """
def report(comm, loss):
    return comm.reduce(loss, root=0)
""",
        "divides-nothing": """
def report(comm, loss):
    return comm.reduce(loss, root=0) / comm.size
""",
        "messages-not-a-collective": """
def report(comm, loss):
    if comm.rank != 0:
        comm.send(loss, dest=0)
        return None
    return (loss + sum(comm.recv(source=source) for source in range(1, comm.size))) / comm.size
""",
        "too-many-collectives": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    count = comm.reduce(1, root=0)
    return total / count if comm.rank == 0 else None
""",
        "wrong-value": """
def report(comm, loss):
    comm.reduce(loss, root=0)
    return loss if comm.rank == 0 else None
""",
        "size-is-fixed": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    return total / 4 if comm.rank == 0 else None
""",
        "size-is-fixed: of the world": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    return total / dist.get_world_size() if comm.rank == 0 else None
""",
        "zero-is-no-sum": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    return total / comm.size if total else None
""",
    },
    "02.global_mean": {
        "mean-of-means": """
def global_mean(values, group):
    mean = values.mean()
    dist.all_reduce(mean, group=group)
    return mean.item() / dist.get_world_size(group)
""",
        "too-many-collectives": """
def global_mean(values, group):
    total, count = values.sum(), torch.tensor(float(len(values)), dtype=torch.float64)
    dist.all_reduce(total, group=group)
    dist.all_reduce(count, group=group)
    return total.item() / count.item()
""",
        "gathers-everything": """
def global_mean(values, group):
    everyones = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, values.tolist(), group=group)
    together = sum(everyones, [])
    return sum(together) / len(together)
""",
        "forgets-the-group": """
def global_mean(values, group):
    pair = torch.stack([values.sum(), torch.tensor(len(values), dtype=torch.float64)])
    dist.all_reduce(pair)
    total, count = pair.tolist()
    return total / count
""",
        "not-a-float": """
def global_mean(values, group):
    pair = torch.stack([values.sum(), torch.tensor(len(values), dtype=torch.float64)])
    dist.all_reduce(pair, group=group)
    return pair[0] / pair[1]
""",
        "sum-not-mean": """
def global_mean(values, group):
    total = values.sum()
    dist.all_reduce(total, group=group)
    return total.item()
""",
        "changes-its-input": """
def global_mean(values, group):
    total, count = values.sum(), len(values)
    values.zero_()
    pair = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(pair, group=group)
    return (pair[0] / pair[1]).item()
""",
        "ranks-disagree": """
def global_mean(values, group):
    dist.all_reduce(values, group=group)
    return values.mean().item()
""",
        "size-is-fixed": """
def global_mean(values, group):
    pair = torch.stack([values.sum(), torch.tensor(len(values), dtype=torch.float64)])
    dist.all_reduce(pair, group=group)
    return pair[0].item() / (1 + 2 + 3 + 4)
""",
        "no-communication": """
def global_mean(values, group):
    return values.mean().item()
""",
        "loses-digits": """
def global_mean(values, group):
    pair = torch.tensor([values.sum().item(), len(values)])
    dist.all_reduce(pair, group=group)
    return (pair[0] / pair[1]).item()
""",
    },
    "02.transpose": {
        "pieces-not-transposed": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    blocks = rows.reshape(b, p, b).permute(1, 0, 2).contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received.permute(1, 0, 2).reshape(b, p * b)
""",
        "pieces-misplaced": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    blocks = rows.reshape(b, p, b).permute(1, 2, 0).contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received.reshape(b, p * b)
""",
        "wrong-pieces": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    blocks = rows.reshape(p, b, b)
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received.permute(1, 0, 2).reshape(b, p * b)
""",
        "gathers-everything": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    everything = [torch.empty_like(rows) for _ in range(p)]
    dist.all_gather(everything, rows, group=group)
    rank = dist.get_rank(group)
    return torch.cat(everything).T[rank * b : (rank + 1) * b].contiguous()
""",
        "wrong-shape": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    blocks = rows.T.contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received
""",
        "forgets-the-group": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    blocks = rows.reshape(b, p, b).permute(1, 2, 0).contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks)
    return received.permute(1, 0, 2).reshape(b, p * b)
""",
        "size-is-fixed": """
def transpose(rows, group):
    b = len(rows)
    blocks = rows.reshape(b, 4, b).permute(1, 2, 0).contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received.permute(1, 0, 2).reshape(b, 4 * b)
""",
        "no-communication": """
def transpose(rows, group):
    return rows
""",
    },
}
