"""Right answers to lesson 02 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "02.broadcast": {
        "by a binomial tree": """
def broadcast(comm, value, root):
    me = (comm.rank - root) % comm.size
    mask = 1
    while mask < comm.size:
        if me < mask and me + mask < comm.size:
            comm.send(value, dest=(me + mask + root) % comm.size)
        elif mask <= me < 2 * mask:
            value = comm.recv(source=(me - mask + root) % comm.size)
        mask *= 2
    return value
""",
        "by a chain": """
def broadcast(comm, value, root):
    ring = [(root + step) % comm.size for step in range(comm.size)]
    place = ring.index(comm.rank)
    if place > 0:
        value = comm.recv(source=ring[place - 1])
    if place + 1 < comm.size:
        comm.send(value, dest=ring[place + 1])
    return value
""",
        "by halving": """
def broadcast(comm, value, root):
    def spread(ranks, value):
        if len(ranks) == 1:
            return value
        half = len(ranks) // 2
        near, far = ranks[:half], ranks[half:]
        if comm.rank == near[0]:
            comm.send(value, dest=far[0])
        if comm.rank == far[0]:
            value = comm.recv(source=near[0])
        return spread(near if comm.rank in near else far, value)
    return spread([(root + i) % comm.size for i in range(comm.size)], value)
""",
        "by isend and from anyone": """
def broadcast(comm, value, root):
    if comm.rank == root:
        MPI.Request.waitall([comm.isend(value, dest) for dest in range(comm.size) if dest != root])
        return value
    return comm.recv(source=MPI.ANY_SOURCE)
""",
    },
    "02.scatter": {
        "by isend, backwards": """
def scatter(comm, parts, root):
    if comm.rank == root:
        requests = [comm.isend(p, dest=r) for r, p in reversed(list(enumerate(parts))) if r != root]
        MPI.Request.Waitall(requests)
        return parts[comm.rank]
    return comm.irecv(source=root).wait()
""",
        "by pop": """
def scatter(comm, parts, root):
    mine = None
    if comm.rank == root:
        rest = list(parts)
        for dest in reversed(range(comm.size)):
            part = rest.pop()
            if dest == comm.rank:
                mine = part
            else:
                comm.ssend(part, dest, tag=dest)
    else:
        mine = comm.recv(source=MPI.ANY_SOURCE, tag=comm.rank)
    return mine
""",
        "from a dictionary": """
def scatter(comm, parts, root):
    if comm.rank == root:
        outgoing = dict(enumerate(parts))
        mine = outgoing.pop(root)
        while outgoing:
            comm.send(outgoing[min(outgoing)], dest=min(outgoing))
            del outgoing[min(outgoing)]
        return mine
    else:
        return comm.recv()
""",
    },
    "02.global_mean": {
        "by AVG": """
def global_mean(values, group):
    both = values.new_tensor([values.sum(), values.numel()])
    dist.all_reduce(both, dist.ReduceOp.AVG, group)
    return float(both[0] / both[1])
""",
        "by all_gather of pairs": """
def global_mean(values, group):
    mine = torch.tensor([values.sum().item(), float(values.shape[0])], dtype=torch.double)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyones, mine, group=group)
    total, count = torch.stack(everyones).sum(dim=0)
    return (total / count).item()
""",
        "not blocking": """
def global_mean(values, group):
    pair = torch.tensor([float(values.sum()), len(values)], dtype=torch.float64)
    work = dist.all_reduce(pair, group=group, async_op=True)
    work.wait()
    return (pair[0] / pair[1]).item()
""",
        "as a complex number": """
def global_mean(values, group):
    number = torch.complex(values.sum(), torch.tensor(len(values), dtype=torch.float64)).reshape(1)
    dist.all_reduce(torch.view_as_real(number), group=group)
    return float(number.real / number.imag)
""",
        "by NumPy": """
def global_mean(values, group):
    array = np.array([values.sum().item(), len(values)])
    dist.all_reduce(torch.from_numpy(array), group=group)
    return array[0] / array[1]
""",
    },
    "02.transpose": {
        "by cat of pieces": """
def transpose(rows, group):
    b = rows.shape[0]
    outgoing = torch.cat([piece.T for piece in rows.split(b, dim=1)])
    incoming = torch.zeros_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return torch.cat(incoming.split(b), dim=1)
""",
        "by hstack": """
def transpose(rows, group):
    outgoing = rows.T.contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return torch.hstack(incoming.chunk(dist.get_world_size(group)))
""",
        "the backend makes the copy": """
def transpose(rows, group):
    outgoing = rows.T
    incoming = torch.empty(outgoing.shape, dtype=rows.dtype)
    dist.all_to_all_single(incoming, outgoing, group=group)
    b = len(rows)
    return torch.cat([incoming[s : s + b] for s in range(0, len(incoming), b)], dim=1)
""",
        "transposed on arrival": """
def transpose(rows, group):
    b, n = rows.shape
    outgoing = rows.view(b, n // b, b).transpose(0, 1).contiguous()
    incoming = outgoing.new_empty(outgoing.shape)
    dist.all_to_all_single(incoming, outgoing, group=group)
    return incoming.view(n, b).T
""",
        "flat, not blocking": """
def transpose(rows, group):
    b, n = rows.shape
    p = n // b
    flat = rows.t().flatten()
    got = torch.empty_like(flat)
    work = dist.all_to_all_single(got, flat, [b * b] * p, [b * b] * p, group=group, async_op=True)
    work.wait()
    return torch.cat([got[r * b * b : (r + 1) * b * b].view(b, b) for r in range(p)], dim=1)
""",
        "column by column": """
def transpose(rows, group):
    n = rows.shape[1]
    out = torch.stack([rows[:, j] for j in range(n)])
    into = torch.empty_like(out)
    dist.all_to_all_single(into, out, group=group)
    result = torch.empty_like(rows)
    b = len(rows)
    for source in range(n // b):
        result[:, source * b : (source + 1) * b] = into[source * b : (source + 1) * b]
    return result
""",
    },
    "02.report": {
        "by Reduce of an array": """
def report(comm, loss):
    total = np.zeros(1) if comm.Get_rank() == 0 else None
    comm.Reduce(np.array([loss], dtype=float), total, op=MPI.SUM, root=0)
    return None if total is None else float(total[0]) / comm.Get_size()
""",
        "divided first": """
def report(comm, loss):
    return comm.reduce(loss / comm.size)
""",
        "in place": """
def report(comm, loss):
    buffer = np.full(1, loss, dtype=np.float64)
    if comm.rank == 0:
        comm.Reduce(MPI.IN_PLACE, buffer)
        return buffer.item() / comm.size
    comm.Reduce(buffer, None)
""",
        "by Ireduce": """
def report(comm, loss):
    mine, total = np.array([float(loss)]), np.empty(1)
    comm.Ireduce(mine, total, root=0).Wait()
    return total[0] / comm.size if comm.rank == 0 else None
""",
        "unless None": """
def report(comm, loss):
    total = comm.reduce(loss, root=0)
    if total is None:
        return None
    return total / comm.size
""",
    },
}
