"""Right answers to lesson 00 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "00.neighbours": {
        "by index into a list": """
def neighbours(rank, world_size):
    ring = list(range(world_size))
    return [ring[rank - 1], ring[rank + 1 - world_size]]
""",
        "as a NumPy array": """
def neighbours(rank, world_size):
    import numpy as np
    return np.array([rank - 1, rank + 1]) % world_size
""",
        "by cases": """
def neighbours(rank, world_size):
    left = world_size - 1 if rank == 0 else rank - 1
    right = 0 if rank == world_size - 1 else rank + 1
    return left, right
""",
    },
    "00.my_share": {
        "by array_split": """
def my_share(samples, rank, world_size):
    import numpy as np
    return list(np.array_split(np.arange(samples), world_size)[rank])
""",
        "in blocks from the back": """
def my_share(samples, rank, world_size):
    size, rest = divmod(samples, world_size)
    start = rank * size + min(rank, rest)
    return [start + i for i in range(size + (rank < rest))][::-1]
""",
        "as a list of tensors": """
def my_share(samples, rank, world_size):
    import torch
    return list(torch.arange(samples)[rank::world_size])
""",
        "by a seeded shuffle": """
def my_share(samples, rank, world_size):
    import random
    return random.Random(7).sample(range(samples), samples)[rank::world_size]
""",
        "as an array": """
def my_share(samples, rank, world_size):
    import numpy as np
    return np.arange(rank, samples, world_size)
""",
    },
    "00.global_accuracy": {
        "by allgather of pairs": """
def global_accuracy(comm, right, total):
    rights, totals = zip(*comm.allgather((right, total)))
    return sum(rights) / sum(totals)
""",
        "as a tensor": """
def global_accuracy(comm, right, total):
    everyones = comm.allreduce(torch.tensor([right, total]))
    return everyones[0] / everyones[1]
""",
        "by Allreduce of an array": """
def global_accuracy(comm, right, total):
    mine, everyones = np.array([right, total]), np.empty(2, dtype=int)
    comm.Allreduce(mine, everyones)
    return everyones[0] / everyones[1]
""",
        "by reduce and bcast": """
def global_accuracy(comm, right, total):
    all_right, all_total = comm.reduce(right), comm.reduce(total)
    return comm.bcast(all_right / all_total if comm.rank == 0 else None)
""",
        "by messages": """
def global_accuracy(comm, right, total):
    if comm.rank > 0:
        comm.send((right, total), dest=0)
        return comm.recv(source=0)
    for source in range(1, comm.size):
        r, t = comm.recv(source=source)
        right, total = right + r, total + t
    for dest in range(1, comm.size):
        comm.send(right / total, dest=dest)
    return right / total
""",
    },
}
