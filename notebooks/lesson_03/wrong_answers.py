"""The usual wrong answers to lesson 03: from a mistake's name to a function that makes it."""

_DOUBLING = """
import numpy as np

def sum_over_all(comm, array):
    rank, p = comm.rank, comm.size
    m = 2 ** (p.bit_length() - 1)
    total, received = array.copy(), np.empty_like(array)
    if rank >= m:
        {hand_over}
    folded = rank + m < p
    if folded:
        {take}
    distance = 1
    while distance < {limit}:
        partner = rank ^ distance
        {swap}
        total += received
        distance *= 2
    if folded:
        {tell}
    return total
"""
_HAND_OVER = """comm.Send(total, dest=rank - m)
        comm.Recv(total, source=rank - m)
        return total"""
_TAKE = """comm.Recv(received, source=rank + m)
        total += received"""
_SWAP = "comm.Sendrecv(total, dest=partner, recvbuf=received, source=partner)"
_SEND_FIRST = """comm.Send(total, dest=partner)
        comm.Recv(received, source=partner)"""
_RECEIVE_FIRST = """comm.Recv(received, source=partner)
        comm.Send(total, dest=partner)"""


def doubling(**changes: str) -> str:
    parts = {"hand_over": _HAND_OVER, "take": _TAKE, "limit": "m", "swap": _SWAP}
    return _DOUBLING.format(**{**parts, "tell": "comm.Send(total, dest=rank + m)", **changes})


_RING = """
import numpy as np

def {name}(comm, {argument}):
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    {before}
    for step in range({steps}):
        {step}
    return {result}
"""


def ring(name: str, argument: str = "array", steps: str = "p - 1", **parts: str) -> str:
    return _RING.format(name=name, argument=argument, steps=steps, **parts)


_CHUNKS = "chunks = np.array_split(array.copy(), p)"
_ADD = """outgoing, mine = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)
        mine += received"""


def scattering(before=_CHUNKS, step=_ADD, result="chunks[rank]", **other: str) -> str:
    return ring("reduce_scatter", before=before, step=step, result=result, **other)


_ROOM = """chunks = np.empty((p, len(chunk)), dtype=chunk.dtype)
    chunks[rank] = chunk"""
_COPY = """outgoing, incoming = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"""


def gathering(before=_ROOM, step=_COPY, result="chunks.reshape(-1)", **other: str) -> str:
    return ring("all_gather", "chunk", before=before, step=step, result=result, **other)


_BUFFERS = "outgoing, incoming, total = array.copy(), np.empty_like(array), array.copy()"
_PASS = """request = comm.Isend(outgoing, dest=right)
        comm.Recv(incoming, source=left)
        request.wait()
        total += incoming
        outgoing, incoming = incoming, outgoing"""


def mended(before=_BUFFERS, step=_PASS, result="total", **other: str) -> str:
    return ring("mended_ring", before=before, step=step, result=result, **other)


WRONG_ANSWERS = {
    "03.any_world_size": {
        "only-powers-of-two": """
import numpy as np

def sum_over_all(comm, array):
    total, received, distance = array.copy(), np.empty_like(array), 1
    while distance < comm.size:
        partner = comm.rank ^ distance
        comm.Sendrecv(total, dest=partner, recvbuf=received, source=partner)
        total += received
        distance *= 2
    return total
""",
        "naive": """
import numpy as np

def sum_over_all(comm, array):
    total, received = array.copy(), np.empty_like(array)
    if comm.rank:
        comm.Send(total, dest=0)
        comm.Recv(total, source=0)
        return total
    for source in range(1, comm.size):
        comm.Recv(received, source=source)
        total += received
    for dest in range(1, comm.size):
        comm.Send(total, dest=dest)
    return total
""",
        "too-many-steps": """
import numpy as np

def sum_over_all(comm, array):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    total, outgoing, incoming = array.copy(), array.copy(), np.empty_like(array)
    for _ in range(comm.size - 1):
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        total += incoming
        outgoing, incoming = incoming, outgoing
    return total
""",
        "everyone-sends-first": doubling(swap=_SEND_FIRST),
        "everyone-receives-first": doubling(swap=_RECEIVE_FIRST),
        "somebody-missing": doubling(limit="m // 2"),
        "falls-off-the-end": doubling(limit="2 * m"),
        "counted-twice": doubling(swap=_SWAP + "\n        total += received"),
        "left-out-not-told": doubling(
            hand_over="comm.Send(total, dest=rank - m); return total", tell="pass"
        ),
        "left-out-not-counted": doubling(
            hand_over="comm.Recv(total, source=rank - m); return total", take="pass"
        ),
        "changes-its-input": doubling().replace(
            "total, received = array.copy()", "total, received = array"
        ),
        "returns-nothing": doubling().replace("    return total\n", "    pass\n"),
        "works-in-place": doubling()
        .replace("total, received = array.copy()", "total, received = array")
        .replace("return total", "return"),
        "uses-a-collective": """
import numpy as np

def sum_over_all(comm, array):
    total = np.empty_like(array)
    comm.Allreduce(array, total)
    return total
""",
        "skips-missing-partners": """
def sum_over_all(comm, array):
    total, received, distance = array.copy(), np.empty_like(array), 1
    while distance < comm.size:
        partner = comm.rank ^ distance
        if partner < comm.size:
            comm.Sendrecv(total, dest=partner, recvbuf=received, source=partner)
            total += received
        distance *= 2
    return total
""",
        "all-to-the-same": """
def sum_over_all(comm, array):
    rank, p = comm.rank, comm.size
    m = 2 ** (p.bit_length() - 1)
    total, received = array.copy(), np.empty_like(array)
    if rank >= m:
        comm.Send(total, dest=0)
        comm.Recv(total, source=0)
        return total
    if rank == 0:
        for r in range(m, p):
            comm.Recv(received, source=r)
            total += received
    distance = 1
    while distance < m:
        comm.Sendrecv(total, dest=rank ^ distance, recvbuf=received, source=rank ^ distance)
        total += received
        distance *= 2
    if rank == 0:
        for r in range(m, p):
            comm.Send(total, dest=r)
    return total
""",
        "stands-aside-needlessly": """
def sum_over_all(comm, array):
    rank, p = comm.rank, comm.size
    m = 1
    while 2 * m < p:
        m *= 2
    total, received = array.copy(), np.empty_like(array)
    if rank >= m:
        comm.Send(total, dest=rank - m)
        comm.Recv(total, source=rank - m)
        return total
    if rank + m < p:
        comm.Recv(received, source=rank + m)
        total += received
    distance = 1
    while distance < m:
        comm.Sendrecv(total, dest=rank ^ distance, recvbuf=received, source=rank ^ distance)
        total += received
        distance *= 2
    if rank + m < p:
        comm.Send(total, dest=rank + m)
    return total
""",
        "only-powers-of-two: the next one": """
import math

def sum_over_all(comm, array):
    rank, p = comm.rank, comm.size
    m = 2 ** math.ceil(math.log2(p))
    total, received = array.copy(), np.empty_like(array)
    if rank >= m:
        comm.Send(total, dest=rank - m)
        comm.Recv(total, source=rank - m)
        return total
    if rank + m < p:
        comm.Recv(received, source=rank + m)
        total += received
    distance = 1
    while distance < m:
        comm.Sendrecv(total, dest=rank ^ distance, recvbuf=received, source=rank ^ distance)
        total += received
        distance *= 2
    if rank + m < p:
        comm.Send(total, dest=rank + m)
    return total
""",
        "only-powers-of-two: partners modulo p": """
def sum_over_all(comm, array):
    total, received, distance = array.copy(), np.empty_like(array), 1
    while distance < comm.size:
        partner = (comm.rank ^ distance) % comm.size
        comm.Sendrecv(total, dest=partner, recvbuf=received, source=partner)
        total += received
        distance *= 2
    return total
""",
    },
    "03.reduce_scatter": {
        "wrong-chunk": scattering(result="chunks[(rank + 1) % p]").replace(
            "- step - 1) % p], chunks[(rank - step - 2)", "- step) % p], chunks[(rank - step - 1)"
        ),
        "whole-arrays": scattering(
            before="total, outgoing, incoming = array.copy(), array.copy(), np.empty_like(array)",
            step="""comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        total += incoming
        outgoing, incoming = incoming, outgoing""",
            result="np.array_split(total, p)[rank]",
        ),
        "goes-round-twice": scattering(
            steps="2 * (p - 1)",
            step="""outgoing, mine = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)
        mine[:] = mine + received if step < p - 1 else received""",
        ),
        "returns-everything": scattering(
            before="total, outgoing, incoming = array.copy(), array.copy(), np.empty_like(array)",
            step="""comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        total += incoming
        outgoing, incoming = incoming, outgoing""",
            result="total",
        ),
        "naive": """
import numpy as np

def reduce_scatter(comm, array):
    chunks, received = np.array_split(array.copy(), comm.size), np.empty_like(array)
    if comm.rank:
        comm.Send(array, dest=0)
        comm.Recv(chunks[comm.rank], source=0)
        return chunks[comm.rank]
    total = array.copy()
    for source in range(1, comm.size):
        comm.Recv(received, source=source)
        total += received
    for dest, chunk in enumerate(np.array_split(total, comm.size)):
        if dest:
            comm.Send(chunk, dest=dest)
    return np.array_split(total, comm.size)[0]
""",
        "not-the-neighbour": """
import numpy as np

def reduce_scatter(comm, array):
    chunks = np.array_split(array.copy(), comm.size)
    mine, received = chunks[comm.rank], np.empty_like(chunks[comm.rank])
    for distance in range(1, comm.size):
        dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.Sendrecv(chunks[dest], dest=dest, recvbuf=received, source=source)
        mine += received
    return mine
""",
        "passes-its-own": scattering().replace(
            "outgoing, mine = chunks[", "outgoing, mine = np.array_split(array, p)["
        ),
        "everyone-sends-first": scattering().replace(
            "comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)",
            "comm.Send(outgoing, dest=right); comm.Recv(received, source=left)",
        ),
        "nothing-added": scattering(steps="p - 2"),
        "one-step-too-many": scattering(steps="p"),
        "counted-twice": scattering(step=_ADD + "\n        mine += received"),
        "changes-its-input": scattering(before="chunks = np.array_split(array, p)"),
        "only-equal-chunks": scattering(
            before="""c = len(array) // p
    chunks = [array[i * c : (i + 1) * c].copy() for i in range(p)]"""
        ),
        "size-is-fixed": scattering(steps="3"),
        "falls-off-the-end": scattering().replace("(rank + 1) % p\n", "rank + 1\n", 1),
        "does-not-wait": scattering().replace(
            "comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)",
            "comm.Isend(outgoing, dest=right); comm.Recv(received, source=left)",
        ),
        "uses-a-collective": """
import numpy as np

def reduce_scatter(comm, array):
    total = np.empty_like(array)
    comm.Allreduce(array, total)
    return np.array_split(total, comm.size)[comm.rank]
""",
        "wrong-chunk: another one is returned": """
def reduce_scatter(comm, array):
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.array_split(array.copy(), p)
    for step in range(p - 1):
        outgoing, mine = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)
        mine += received
    return chunks[rank]
""",
        "wrong-chunk: begins elsewhere": """
def reduce_scatter(comm, array):
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.array_split(array.copy(), p)
    for step in range(p - 1):
        outgoing, mine = chunks[(rank - step + 1) % p], chunks[(rank - step) % p]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)
        mine += received
    return chunks[rank]
""",
        "passes-its-own: adds to another array": """
def reduce_scatter(comm, array):
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.array_split(array.copy(), p)
    for step in range(p - 1):
        outgoing, mine = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)
        mine = mine + received
    return chunks[rank]
""",
        "overwrites": """
def reduce_scatter(comm, array):
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.array_split(array.copy(), p)
    for step in range(p - 1):
        outgoing, mine = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
        comm.Sendrecv(outgoing, dest=right, recvbuf=mine, source=left)
    return chunks[rank]
""",
        "mean-not-sum": """
def reduce_scatter(comm, array):
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.array_split(array.copy(), p)
    for step in range(p - 1):
        outgoing, mine = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)
        mine += received
    return chunks[rank] / p
""",
    },
    "03.all_gather": {
        "wrong-order": gathering(
            before=_ROOM.replace("[rank]", "[0]"),
            step="""outgoing, incoming = chunks[step], chunks[step + 1]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)""",
        ),
        "keeps-sending-its-own": gathering(
            step=_COPY.replace(
                "outgoing, incoming = chunks[(rank - step) % p]", "outgoing, incoming = chunk"
            )
        ),
        "own-chunk-missing": gathering(
            before=_ROOM.replace("chunks[rank] = chunk", "chunks[:] = 0")
        ),
        "chunk-missing": gathering(steps="p - 2", before=_ROOM.replace("np.empty", "np.zeros")),
        "whole-arrays": gathering(
            before=_ROOM.replace("np.empty", "np.zeros") + "\n    room = np.empty_like(chunks)",
            step="""comm.Sendrecv(chunks, dest=right, recvbuf=room, source=left)
        chunks = np.maximum(chunks, room)""",
        ),
        "naive": """
import numpy as np

def all_gather(comm, chunk):
    chunks = np.empty((comm.size, len(chunk)), dtype=chunk.dtype)
    chunks[comm.rank] = chunk
    if comm.rank:
        comm.Send(chunk, dest=0)
        comm.Recv(chunks, source=0)
        return chunks.reshape(-1)
    for source in range(1, comm.size):
        comm.Recv(chunks[source], source=source)
    for dest in range(1, comm.size):
        comm.Send(chunks, dest=dest)
    return chunks.reshape(-1)
""",
        "not-the-neighbour": """
import numpy as np

def all_gather(comm, chunk):
    chunks = np.empty((comm.size, len(chunk)), dtype=chunk.dtype)
    chunks[comm.rank] = chunk
    for distance in range(1, comm.size):
        dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.Sendrecv(chunk, dest=dest, recvbuf=chunks[source], source=source)
    return chunks.reshape(-1)
""",
        "everyone-sends-first": gathering(
            step=_COPY.replace(
                "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)",
                "comm.Send(outgoing, dest=right); comm.Recv(incoming, source=left)",
            )
        ),
        "forgets-the-dtype": gathering(before=_ROOM.replace(", dtype=chunk.dtype", "")),
        "wrong-shape": gathering(result="chunks"),
        "not-an-array": gathering(result="list(chunks)"),
        "size-is-fixed": gathering(steps="3"),
        "uses-a-collective": """
import numpy as np

def all_gather(comm, chunk):
    return np.concatenate(comm.allgather(chunk))
""",
        "it-hangs": """
def all_gather(comm, chunk):
    p, rank = comm.size, comm.rank
    right = (rank + 1) % p
    chunks = np.empty((p, len(chunk)), dtype=chunk.dtype)
    chunks[rank] = chunk
    for step in range(p - 1):
        comm.Sendrecv(
            chunks[(rank - step) % p],
            dest=right,
            recvbuf=chunks[(rank - step - 1) % p],
            source=right,
        )
    return chunks.reshape(-1)
""",
        "sends-what-has-not-arrived": """
def all_gather(comm, chunk):
    p, rank = comm.size, comm.rank
    chunks = np.empty((p, len(chunk)), dtype=chunk.dtype)
    chunks[rank] = chunk
    requests = []
    for step in range(p - 1):
        requests.append(comm.Isend(chunks[(rank - step) % p], dest=(rank + 1) % p))
        requests.append(comm.Irecv(chunks[(rank - step - 1) % p], source=(rank - 1) % p))
    MPI.Request.Waitall(requests)
    return chunks.reshape(-1)
""",
        "own-chunk-missing: one place off": """
def all_gather(comm, chunk):
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.empty((p, len(chunk)), dtype=chunk.dtype)
    chunks[rank] = chunk
    for step in range(p - 1):
        outgoing, incoming = chunks[(rank + 1 - step) % p], chunks[(rank - step) % p]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
    return chunks.reshape(-1)
""",
    },
    "03.mended_ring": {
        "zeros-travel": mended(
            before=_BUFFERS.replace("array.copy(), np", "np.zeros_like(array), np", 1)
        ),
        "nothing-added": mended(step=_PASS.replace("total += incoming", "total += array")),
        "counted-twice": mended(step=_PASS.replace("+= incoming", "+= incoming + incoming")),
        "sends-the-sum: a copy of it": mended(
            step=_PASS.replace("Isend(outgoing", "Isend(total.copy()")
        ),
        "somebody-missing": mended(steps="p - 2"),
        "changes-what-is-on-its-way": mended(
            step="""request = comm.Isend(outgoing, dest=right)
        comm.Recv(outgoing, source=left)
        request.wait()
        total += outgoing"""
        ),
        "does-not-wait": mended(
            step=_PASS.replace("        request.wait()\n", "").replace(
                "outgoing, incoming = incoming, outgoing",
                "outgoing, incoming = incoming, np.empty_like(array)",
            )
        ),
        "everyone-sends-first": mended(
            step=_PASS.replace("request = comm.Isend", "comm.Send").replace(
                "        request.wait()\n", ""
            )
        ),
        "changes-its-input": mended(
            before=_BUFFERS.replace("array), array.copy()", "array), array")
        ),
        "works-in-place": mended(
            before=_BUFFERS.replace("array), array.copy()", "array), array"), result="None"
        ),
        "goes-round-twice": mended(
            steps="2 * (p - 1)",
            step=_PASS.replace("total += incoming", "total += incoming * (step < p - 1)"),
        ),
        "not-the-neighbour": """
import numpy as np

def mended_ring(comm, array):
    total, received = array.copy(), np.empty_like(array)
    for distance in range(1, comm.size):
        dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.Sendrecv(array, dest=dest, recvbuf=received, source=source)
        total += received
    return total
""",
        "size-is-fixed": mended(steps="3"),
        "adds-the-wrong-array": """
def mended_ring(comm, array):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    one, other = array.copy(), np.zeros_like(array)
    total = array.copy()
    for step in range(comm.size - 1):
        if step % 2 == 0:
            request = comm.Isend(one, dest=right)
            comm.Recv(other, source=left)
            total += one
        else:
            request = comm.Isend(other, dest=right)
            comm.Recv(one, source=left)
            total += other
        request.wait()
    return total
""",
        "adds-the-wrong-array: its own in every other step": """
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
            total += array
        request.wait()
    return total
""",
        "keeps-sending-its-own": """
def mended_ring(comm, array):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    total, incoming = array.copy(), np.empty_like(array)
    for step in range(comm.size - 1):
        comm.Sendrecv(array, dest=right, recvbuf=incoming, source=left)
        total += incoming
    return total
""",
        "keeps-sending-its-own: no swap": """
def mended_ring(comm, array):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    one, other = array.copy(), np.zeros_like(array)
    total = array.copy()
    for step in range(comm.size - 1):
        request = comm.Isend(one, dest=right)
        comm.Recv(other, source=left)
        total += other
        request.wait()
    return total
""",
        "sends-the-sum": """
def mended_ring(comm, array):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    total, incoming = array.copy(), np.empty_like(array)
    for step in range(comm.size - 1):
        request = comm.Isend(total, dest=right)
        comm.Recv(incoming, source=left)
        request.wait()
        total += incoming
    return total
""",
        "own-missing": """
def mended_ring(comm, array):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    one, other = array.copy(), np.zeros_like(array)
    total = np.zeros_like(array)
    for step in range(comm.size - 1):
        comm.Sendrecv(one, dest=right, recvbuf=other, source=left)
        total += other
        one, other = other, one
    return total
""",
        "one-step-too-many": """
def mended_ring(comm, array):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    one, other = array.copy(), np.zeros_like(array)
    total = array.copy()
    for step in range(comm.size):
        comm.Sendrecv(one, dest=right, recvbuf=other, source=left)
        total += other
        one, other = other, one
    return total
""",
    },
    "03.crossover": {
        "forgets-gamma": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    saved = (lg - 2 * (p - 1) / p) * beta
    return (2 * (p - 1) - lg) * alpha / saved if saved else math.inf
""",
        "natural-logarithm": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log(p)
    return (2 * (p - 1) - lg) * alpha / ((lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma)
""",
        "alpha-over-beta": """
def crossover_bytes(p, alpha, beta, gamma):
    return alpha / beta
""",
        "half-the-ring": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    return ((p - 1) - lg) * alpha / ((lg - (p - 1) / p) * (beta + gamma))
""",
        "rabenseifner-instead": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    return lg * alpha / ((lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma)
""",
        "wrong-sign": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    return (lg - 2 * (p - 1)) * alpha / ((lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma)
""",
        "numbers-not-bytes": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    saved = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return (2 * (p - 1) - lg) * alpha / saved / 4
""",
        "never-overtakes": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    return (2 * (p - 1) - lg) * alpha / ((lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma)
""",
        "natural-logarithm: never for some": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log(p)
    c = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return (2 * (p - 1) - lg) * alpha / c if c > 0 else math.inf
""",
        "wrongly-never": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log10(p)
    c = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return (2 * (p - 1) - lg) * alpha / c if c > 0 else math.inf
""",
        "one-over-beta": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    c = (lg - 2 * (p - 1) / p) / beta + (lg - (p - 1) / p) / gamma
    return (2 * (p - 1) - lg) * alpha / c if c > 0 else math.inf
""",
        "one-over-beta: gamma as it is": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    c = (lg - 2 * (p - 1) / p) / beta + (lg - (p - 1) / p) * gamma
    return (2 * (p - 1) - lg) * alpha / c if c > 0 else math.inf
""",
        "rings-steps-only": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    c = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return 2 * (p - 1) * alpha / c if c > 0 else math.inf
""",
        "steps-added": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    c = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return (2 * (p - 1) + lg) * alpha / c if c > 0 else math.inf
""",
        "additions-like-bytes": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    c = (lg - 2 * (p - 1) / p) * (beta + gamma)
    return (2 * (p - 1) - lg) * alpha / c if c > 0 else math.inf
""",
        "overtakes-by-additions": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    if p <= 2:
        return math.inf
    lg = math.log2(p)
    return (2 * (p - 1) - lg) * alpha / ((lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma)
""",
        "wrong-steps": """
import math

def crossover_bytes(p, alpha, beta, gamma):
    lg = math.log2(p)
    c = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return (2 * p - 1 - lg) * alpha / c if c > 0 else math.inf
""",
        "wrong-additions": """
import numpy as np

def crossover_bytes(p, alpha, beta, gamma):
    lg = p.bit_length() - 1
    a = lg - 2 * (p - 1)
    b = (lg - 2 * (p - 1) / p) * beta + lg * gamma
    return np.inf if b <= 0 else np.float64(-a * alpha) / b
""",
        "wrong-bytes": """
import numpy as np

def crossover_bytes(p, alpha, beta, gamma):
    lg = p.bit_length() - 1
    a = lg - 2 * (p - 1)
    b = (lg - 1 / p) * beta + (lg - (p - 1) / p) * gamma
    return np.inf if b <= 0 else np.float64(-a * alpha) / b
""",
    },
}
