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
        "root-is-fixed: in a tree": """
def broadcast(comm, value, root):
    mask = 1
    while mask < comm.size:
        if comm.rank < mask and comm.rank + mask < comm.size:
            comm.send(value, dest=comm.rank + mask)
        elif mask <= comm.rank < 2 * mask:
            value = comm.recv(source=comm.rank - mask)
        mask *= 2
    return value
""",
        "returns-nothing": """
def broadcast(comm, value, root):
    if comm.rank == root:
        for dest in range(comm.size):
            if dest != root:
                comm.send(value, dest=dest)
        return value
    value = comm.recv(source=root)
""",
        "sends-to-itself: in a loop of all": """
def broadcast(comm, value, root):
    for dest in range(comm.size):
        if comm.rank == root:
            comm.send(value, dest=dest)
        else:
            value = comm.recv(source=root)
    return value
""",
        "does-not-wait: returns the request": """
def broadcast(comm, value, root):
    if comm.rank != root:
        return comm.irecv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.send(value, dest=dest)
    return value
""",
        "falls-off-the-end": """
def broadcast(comm, value, root):
    if comm.rank != root:
        value = comm.recv(source=comm.rank - 1)
    comm.send(value, dest=comm.rank + 1)
    return value
""",
        "size-is-fixed: and the rank": """
def broadcast(comm, value, root):
    if rank == root:
        for dest in range(world_size):
            if dest != root:
                comm.send(value, dest=dest)
    else:
        value = comm.recv(source=root)
    return value
""",
        "sends-twice: all to all": """
def broadcast(comm, value, root):
    for dest in range(comm.size):
        if dest != comm.rank:
            comm.send(value, dest=dest)
    if comm.rank != root:
        value = comm.recv(source=root)
    return value
""",
        "wrong-value: everyone has one": """
def broadcast(comm, value, root):
    if value:
        for dest in range(comm.size):
            if dest != comm.rank:
                comm.send(value, dest=dest)
        return value
    return comm.recv(source=root)
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
        "list-of-one": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.send(parts[dest:dest + 1], dest=dest)
    return parts[root:root + 1]
""",
        "parts-shifted: one too early": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.send(parts[dest - 1], dest=dest)
    return parts[root - 1]
""",
        "sends-everything: down a chain": """
def scatter(comm, parts, root):
    place = (comm.rank - root) % comm.size
    if place > 0:
        parts = comm.recv(source=(comm.rank - 1) % comm.size)
    if place < comm.size - 1:
        comm.send(parts, dest=(comm.rank + 1) % comm.size)
    return parts[comm.rank]
""",
        "root-receives": """
def scatter(comm, parts, root):
    if comm.rank == root:
        for dest in range(comm.size):
            if dest != root:
                comm.send(parts[dest], dest=dest)
    return comm.recv(source=root)
""",
        "returns-nothing": """
def scatter(comm, parts, root):
    if comm.rank == root:
        for dest, part in enumerate(parts):
            if dest != root:
                comm.send(part, dest=dest)
        return parts[root]
    comm.recv(source=root)
""",
        "it-raises": """
def scatter(comm, parts, root):
    for dest in range(comm.size):
        if dest != root:
            comm.send(parts[dest], dest=dest)
    if comm.rank != root:
        return comm.recv(source=root)
    return parts[root]
""",
        "does-not-wait": """
def scatter(comm, parts, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for dest, part in enumerate(parts):
        if dest != root:
            comm.isend(part, dest=dest)
    return parts[root]
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
        "not-the-sum: not even divided": """
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
        "not-the-sum": """
def report(comm, loss):
    total = comm.reduce(loss, op=MPI.MAX, root=0)
    return total / comm.size if comm.rank == 0 else None
""",
        "not-the-sum: its own": """
def report(comm, loss):
    return loss / comm.size if comm.rank == 0 else None
""",
        "rounds-down": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    return total // comm.size if comm.rank == 0 else None
""",
        "wrong-root": """
def report(comm, loss):
    total = comm.reduce(loss, root=comm.size - 1)
    return total / comm.size if comm.rank == 0 else None
""",
        "wrong-root: everywhere": """
def report(comm, loss):
    total = comm.reduce(loss, root=1)
    return total / comm.size if comm.rank == 1 else None
""",
        "returns-nothing": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    if comm.rank == 0:
        print(total / comm.size)
""",
        "forgets-the-comm": """
def report(comm, loss):
    total = torch.tensor([loss], dtype=torch.float64)
    dist.reduce(total, dst=0)
    return total.item() / comm.size if comm.rank == 0 else None
""",
        "size-is-fixed: by the rank in the world": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    return total / comm.size if rank == 0 else None
""",
        "more-than-a-reduce: gather": """
def report(comm, loss):
    losses = comm.gather(loss)
    if losses is not None:
        return sum(losses) / len(losses)
""",
        "everyone-gets-it: zero": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    return total / comm.size if comm.rank == 0 else 0
""",
        "too-many-collectives: a barrier": """
def report(comm, loss):
    comm.barrier()
    total = comm.reduce(loss, root=0)
    return total / comm.size if comm.rank == 0 else None
""",
        "wrong-value: one rank too few": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    return total / (comm.size - 1) if comm.rank == 0 else None
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
        "it-raises": """
def global_mean(values, group):
    pair = torch.tensor([values.sum(), len(values)], dtype=torch.float64)
    dist.all_reduce(pair, group)
    return (pair[0] / pair[1]).item()
""",
        "mean-of-means: by AVG": """
def global_mean(values, group):
    mean = values.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
    return mean.item()
""",
        "fails-on-no-values": """
def global_mean(values, group):
    pair = torch.tensor([values.mean() * len(values), len(values)], dtype=torch.float64)
    dist.all_reduce(pair, group=group)
    return (pair[0] / pair[1]).item()
""",
        "fails-on-no-values: and stays away": """
def global_mean(values, group):
    if len(values) == 0:
        return 0.0
    pair = torch.tensor([values.sum(), len(values)], dtype=torch.float64)
    dist.all_reduce(pair, group=group)
    return (pair[0] / pair[1]).item()
""",
        "does-not-wait": """
def global_mean(values, group):
    pair = torch.tensor([float(values.sum()), len(values)], dtype=torch.float64)
    dist.all_reduce(pair, group=group, async_op=True)
    return (pair[0] / pair[1]).item()
""",
        "only-the-root-knows": """
def global_mean(values, group):
    pair = torch.tensor([float(values.sum()), len(values)], dtype=torch.float64)
    dist.reduce(pair, group_dst=0, group=group)
    return (pair[0] / pair[1]).item()
""",
        "own-count": """
def global_mean(values, group):
    total = values.sum()
    dist.all_reduce(total, group=group)
    return total.item() / len(values)
""",
        "own-count-times-ranks": """
def global_mean(values, group):
    total = values.sum()
    dist.all_reduce(total, group=group)
    return total.item() / (len(values) * dist.get_world_size(group))
""",
        "over-the-budget": """
def global_mean(values, group):
    triple = torch.tensor([values.sum(), len(values), 0], dtype=torch.float64)
    dist.all_reduce(triple, group=group)
    return (triple[0] / triple[1]).item()
""",
        "own-mean": """
def global_mean(values, group):
    total = torch.tensor([values.sum()])
    count = torch.tensor([len(values)])
    dist.all_reduce(torch.cat([total, count]), group=group)
    return (total / count).item()
""",
        "forgets-the-group: by comm": """
def global_mean(values, group):
    return comm.allreduce(values.sum().item()) / comm.allreduce(len(values))
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
        "it-raises": """
def transpose(rows, group):
    b, n = rows.shape
    outgoing = rows.T.contiguous()
    incoming = torch.empty(n, b)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return torch.hstack(incoming.chunk(dist.get_world_size(group)))
""",
        "does-not-wait": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    outgoing = rows.T.contiguous()
    incoming = torch.zeros_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group, async_op=True)
    return torch.hstack(incoming.chunk(p))
""",
        "sends-something-else": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    outgoing = rows.T.contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(outgoing, incoming, group=group)
    return torch.hstack(incoming.chunk(p))
""",
        "pieces-not-transposed: twice": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    outgoing = torch.cat([piece.T for piece in rows.split(b, dim=1)])
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return torch.cat([piece.T for piece in incoming.split(b)], dim=1)
""",
        "pieces-misplaced: backwards": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    outgoing = rows.T.contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return torch.hstack(incoming.chunk(p)[::-1])
""",
        "not-a-tensor": """
def transpose(rows, group):
    b, p = len(rows), dist.get_world_size(group)
    outgoing = rows.T.contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    torch.hstack(incoming.chunk(p))
""",
        "it-raises: rows along the wrong dimension": """
def transpose(rows, group):
    received = torch.empty_like(rows)
    dist.all_to_all_single(received, rows.contiguous(), group=group)
    return received.T
""",
    },
}
