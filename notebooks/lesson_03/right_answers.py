"""Right answers to lesson 03 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "03.all_gather": {
        "what arrives in a dict, not blocking": """
def all_gather(comm, chunk):
    found = {comm.rank: chunk}
    travelling = chunk
    for step in range(1, comm.size):
        buffer = np.empty_like(chunk)
        requests = [
            comm.Irecv(buffer, source=(comm.rank - 1) % comm.size, tag=step),
            comm.Isend(travelling, dest=(comm.rank + 1) % comm.size, tag=step),
        ]
        MPI.Request.Waitall(requests)
        found[(comm.rank - step) % comm.size] = buffer
        travelling = buffer
    return np.concatenate([found[r] for r in range(comm.size)])
""",
        "to the left, by Sendrecv_replace": """
def all_gather(comm, chunk):
    n = len(chunk)
    result = np.tile(chunk, comm.size)
    moving = chunk.copy()
    for step in range(1, comm.size):
        comm.Sendrecv_replace(
            moving,
            dest=comm.rank - 1 if comm.rank else comm.size - 1,
            source=(comm.rank + 1) % comm.size,
        )
        owner = (comm.rank + step) % comm.size
        result[owner * n : (owner + 1) * n] = moving
    return result
""",
        "even ranks send first": """
def all_gather(comm, chunk):
    p, rank = comm.size, comm.rank
    chunks = [chunk.copy() for _ in range(p)]
    for step in range(p - 1):
        out, into = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        if rank % 2 == 0:
            comm.Send(out, dest=(rank + 1) % p)
            comm.Recv(into, source=(rank - 1) % p)
        else:
            comm.Recv(into, source=(rank - 1) % p)
            comm.Send(out, dest=(rank + 1) % p)
    return np.hstack(chunks)
""",
        "objects": """
def all_gather(comm, chunk):
    p, rank = comm.size, comm.rank
    chunks = [None] * p
    chunks[rank] = chunk
    for step in range(p - 1):
        chunks[(rank - step - 1) % p] = comm.sendrecv(
            chunks[(rank - step) % p], dest=(rank + 1) % p, source=(rank - 1) % p
        )
    return np.concatenate(chunks)
""",
        "by recursion": """
def all_gather(comm, chunk):
    def arrivals(mine, left):
        if left == 0:
            return [mine]
        other = np.zeros(mine.shape, mine.dtype)
        request = comm.Isend(mine, (comm.rank + 1) % comm.size)
        comm.Recv(other, (comm.rank - 1) % comm.size)
        request.Wait()
        return [mine] + arrivals(other, left - 1)

    backwards = arrivals(chunk, comm.size - 1)
    return np.concatenate(np.roll(backwards[::-1], comm.rank + 1, axis=0))
""",
    },
    "03.reduce_scatter": {
        "one chunk under way": """
def reduce_scatter(comm, array):
    p, r = comm.size, comm.rank
    parts = np.array_split(array, p)
    moving = parts[(r - 1) % p].copy()
    for k in range(2, p + 1):
        mine = parts[(r - k) % p]
        arrived = np.empty_like(mine)
        comm.Sendrecv(moving, (r + 1) % p, 0, arrived, (r - 1) % p, 0)
        moving = arrived + mine
    return moving
""",
        "to the left, sums in a dict": """
def reduce_scatter(comm, array):
    p, r = comm.size, comm.rank
    sums = dict(enumerate(np.array_split(array, p)))
    for k in range(1, p):
        room = np.zeros_like(sums[(r + k + 1) % p])
        wait = [
            comm.Irecv(room, source=(r + 1) % p),
            comm.Isend(sums[(r + k) % p].copy(), dest=(r - 1) % p),
        ]
        for request in wait:
            request.Wait()
        sums[(r + k + 1) % p] = sums[(r + k + 1) % p] + room
    return sums[r].copy()
""",
        "even ranks send first": """
def reduce_scatter(comm, array):
    p, rank = comm.size, comm.rank
    work = [part.copy() for part in np.array_split(array, p)]

    def swap(out, room):
        calls = [
            lambda: comm.Send(out, dest=(rank + 1) % p),
            lambda: comm.Recv(room, source=(rank - 1) % p),
        ]
        for call in calls if rank % 2 == 0 else calls[::-1]:
            call()
        return room

    for step in range(p - 1):
        i = (rank - step - 2) % p
        work[i] += swap(work[i - p + 1 if i + 1 >= p else i + 1], np.empty_like(work[i]))
    return work[rank]
""",
    },
    "03.mended_ring": {
        "by Sendrecv_replace": """
def mended_ring(comm, array):
    moving = array.copy()
    total = moving + 0
    for _ in range(1, comm.size):
        comm.Sendrecv_replace(
            moving,
            dest=(comm.rank + 1) % comm.size,
            source=comm.rank - 1 if comm.rank else comm.size - 1,
        )
        total = total + moving
    return total
""",
        "the published one, mended": """
def mended_ring(comm, array):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    one, other = array.copy(), np.zeros_like(array)
    total = array.copy()
    for step in range(comm.size - 1):
        if step % 2 == 0:
            request = comm.Isend(one, dest=right)
            comm.Recv(other, source=left)
            total += other
        else:
            request = comm.Isend(other, dest=right)
            comm.Recv(one, source=left)
            total += one
        request.wait()
    return total
""",
        "adds at the end": """
def mended_ring(comm, array):
    seen = [array]
    while len(seen) < comm.size:
        incoming = np.empty_like(array)
        receive = comm.Irecv(incoming, source=comm.rank - 1 if comm.rank > 0 else comm.size - 1)
        comm.Send(seen[-1], dest=(comm.rank + 1) % comm.size)
        receive.Wait()
        seen.append(incoming)
    return np.sum(seen, axis=0, dtype=array.dtype)
""",
    },
    "03.any_world_size": {
        "neighbours fold": """
def sum_over_all(comm, array):
    p, rank = comm.size, comm.rank
    m = 1
    while m * 2 <= p:
        m *= 2
    extra = p - m
    mine = array.copy()
    room = np.empty_like(mine)
    if rank < 2 * extra and rank % 2 == 0:
        comm.Send(mine, dest=rank + 1)
        comm.Recv(mine, source=rank + 1)
        return mine
    if rank < 2 * extra:
        comm.Recv(room, source=rank - 1)
        mine += room
        new = rank // 2
    else:
        new = rank - extra

    def real(virtual):
        return 2 * virtual + 1 if virtual < extra else virtual + extra

    mask = 1
    while mask < m:
        comm.Sendrecv(mine, dest=real(new ^ mask), recvbuf=room, source=real(new ^ mask))
        mine += room
        mask <<= 1
    if rank < 2 * extra:
        comm.Send(mine, dest=rank - 1)
    return mine
""",
        "by recursion, not blocking": """
import math

def sum_over_all(comm, array):
    p = comm.size
    m = 2 ** int(math.log2(p))

    def swap(value, partner):
        incoming = np.zeros_like(value)
        pending = [comm.Isend(value, dest=partner), comm.Irecv(incoming, source=partner)]
        MPI.Request.Waitall(pending)
        return value + incoming

    def doubling(value, distance):
        return (
            value if distance == 0 else doubling(swap(value, comm.rank ^ distance), distance // 2)
        )

    if comm.rank >= m:
        comm.Send(array, dest=comm.rank % m)
        answer = np.empty_like(array)
        comm.Recv(answer, source=comm.rank % m)
        return answer
    value = array + 0
    guests = range(comm.rank + m, p, m)
    for guest in guests:
        room = np.empty_like(array)
        comm.Recv(room, source=guest)
        value += room
    value = doubling(value, m // 2)
    for guest in guests:
        comm.Send(value, dest=guest)
    return value
""",
    },
    "03.crossover": {
        "numbers of NumPy": """
import numpy as np

def crossover_bytes(p, alpha, beta, gamma):
    lg = p.bit_length() - 1
    a = lg - 2 * (p - 1)
    b = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return np.inf if b <= 0 else np.float64(-a * alpha) / b
""",
        "whole bytes": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    c = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return math.ceil((2 * (p - 1) - lg) * alpha / c) if c > 0 else math.inf
""",
        "times of one byte": """
def crossover_bytes(p, alpha, beta, gamma):
    lg = len(bin(p)) - 3
    ring_alone = (2 * (p - 1) * alpha, 2 * (p - 1) * beta / p + (p - 1) * gamma / p)
    doubling = (lg * alpha, lg * (beta + gamma))
    rise = doubling[1] - ring_alone[1]
    return (ring_alone[0] - doubling[0]) / rise if rise > 0 else float("inf")
""",
    },
}
