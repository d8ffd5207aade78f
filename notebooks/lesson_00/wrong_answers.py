"""The usual wrong answers to lesson 00: from a mistake's name to a function that makes it."""

WRONG_ANSWERS = {
    "00.neighbours": {
        "falls-off-the-end": """
def neighbours(rank, world_size):
    return rank - 1, rank + 1
""",
        "left-and-right-swapped": """
def neighbours(rank, world_size):
    return (rank + 1) % world_size, (rank - 1) % world_size
""",
        "size-is-fixed": """
def neighbours(rank, world_size):
    return (rank - 1) % 4, (rank + 1) % 4
""",
        "not-two-numbers": """
def neighbours(rank, world_size):
    print((rank - 1) % world_size, (rank + 1) % world_size)
""",
        "wrong-value": """
def neighbours(rank, world_size):
    return max(rank - 1, 0), min(rank + 1, world_size - 1)
""",
        "falls-off-the-end: by one": """
def neighbours(rank, world_size):
    left, right = rank - 1, rank + 1
    if left < 0:
        left = world_size
    if right > world_size:
        right = 0
    return left, right
""",
        "wrong-value: one rank too few": """
def neighbours(rank, world_size):
    return (rank - 1) % (world_size - 1), (rank + 1) % (world_size - 1)
""",
        "not-two-numbers: words": """
def neighbours(rank, world_size):
    return f"{(rank - 1) % world_size}, {(rank + 1) % world_size}"
""",
        "it-raises": """
def neighbours(rank, world_size):
    return (rank - 1) % worldsize, (rank + 1) % world_size
""",
        "alone-at-the-table": """
def neighbours(rank, world_size):
    if rank == 0:
        return world_size - 1, 1
    if rank == world_size - 1:
        return rank - 1, 0
    return rank - 1, rank + 1
""",
    },
    "00.my_share": {
        "drops-the-rest": """
def my_share(samples, rank, world_size):
    size = samples // world_size
    return list(range(rank * size, (rank + 1) * size))
""",
        "uneven": """
def my_share(samples, rank, world_size):
    size = samples // world_size
    stop = samples if rank == world_size - 1 else (rank + 1) * size
    return list(range(rank * size, stop))
""",
        "no-such-sample": """
def my_share(samples, rank, world_size):
    size = -(-samples // world_size)
    return list(range(rank * size, (rank + 1) * size))
""",
        "given-twice": """
def my_share(samples, rank, world_size):
    size = samples // world_size
    return list(range(rank * size, min((rank + 1) * size + 1, samples)))
""",
        "everyone-gets-all": """
def my_share(samples, rank, world_size):
    return list(range(samples))
""",
        "left-out": """
def my_share(samples, rank, world_size):
    return list(range(rank + 1, samples, world_size))
""",
        "not-a-list": """
def my_share(samples, rank, world_size):
    return samples // world_size
""",
        "uneven: by chunk": """
def my_share(samples, rank, world_size):
    import torch
    return torch.arange(samples).chunk(world_size)[rank].tolist()
""",
        "another-share-each-time": """
def my_share(samples, rank, world_size):
    import random
    return random.sample(range(samples), samples)[rank::world_size]
""",
        "given-twice: steps of the share": """
def my_share(samples, rank, world_size):
    return list(range(rank, samples, samples // world_size))
""",
        "size-is-fixed": """
def my_share(samples, rank, world_size):
    return list(range(rank, samples, 4))
""",
        "not-a-list: of lists": """
def my_share(samples, rank, world_size):
    return [list(range(r, samples, world_size)) for r in range(world_size)]
""",
        "not-a-list: of whole numbers": """
def my_share(samples, rank, world_size):
    import numpy as np
    return np.linspace(0, samples - 1, samples)[rank::world_size].tolist()
""",
        "not-a-list: of truth values": """
def my_share(samples, rank, world_size):
    return [sample % world_size == rank for sample in range(samples)]
""",
        "it-raises": """
def my_share(samples, rank, world_size):
    return batch[rank::world_size]
""",
        "given-twice: to one rank": """
def my_share(samples, rank, world_size):
    return 2 * list(range(rank, samples, world_size))
""",
    },
    "00.global_accuracy": {
        "mean-of-accuracies": """
def global_accuracy(comm, right, total):
    return comm.allreduce(right / total) / comm.size
""",
        "own-share-only": """
def global_accuracy(comm, right, total):
    return right / total
""",
        "sum-of-accuracies": """
def global_accuracy(comm, right, total):
    return comm.allreduce(right / total)
""",
        "own-total": """
def global_accuracy(comm, right, total):
    return comm.allreduce(right) / total
""",
        "a-count": """
def global_accuracy(comm, right, total):
    return comm.allreduce(right)
""",
        "only-the-root-knows": """
def global_accuracy(comm, right, total):
    all_right, all_total = comm.reduce(right, root=0), comm.reduce(total, root=0)
    if comm.rank == 0:
        return all_right / all_total
""",
        "not-everyone-takes-part": """
def global_accuracy(comm, right, total):
    if comm.rank == 0:
        return comm.allreduce(right) / comm.allreduce(total)
""",
        "only-the-root-knows: and divides": """
def global_accuracy(comm, right, total):
    return comm.reduce(right) / comm.reduce(total)
""",
        "rounds-down": """
def global_accuracy(comm, right, total):
    return comm.allreduce(right) // comm.allreduce(total)
""",
        "a-percentage": """
def global_accuracy(comm, right, total):
    return 100 * comm.allreduce(right) / comm.allreduce(total)
""",
        "upside-down": """
def global_accuracy(comm, right, total):
    return comm.allreduce(total) / comm.allreduce(right)
""",
        "size-is-fixed: by the rank in the world": """
def global_accuracy(comm, right, total):
    all_right, all_total = comm.reduce(right, root=0), comm.reduce(total, root=0)
    accuracy = all_right / all_total if dist.get_rank() == 0 else None
    return comm.bcast(accuracy, root=0)
""",
        "size-is-fixed: by the world's group": """
def global_accuracy(comm, right, total):
    pair = torch.tensor([right, total])
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()
""",
        "own-total-times-ranks": """
def global_accuracy(comm, right, total):
    return comm.allreduce(right) / (total * comm.size)
""",
        "divides-by-the-ranks": """
def global_accuracy(comm, right, total):
    return comm.allreduce(right) / comm.size
""",
        "returns-nothing": """
def global_accuracy(comm, right, total):
    print(comm.allreduce(right) / comm.allreduce(total))
""",
        "it-raises: on one rank": """
def global_accuracy(comm, right, total):
    if comm.rank == 2:
        rigth = right
        return comm.allreduce(rihgt) / comm.allreduce(total)
    return comm.allreduce(right) / comm.allreduce(total)
""",
        "not-everyone-takes-part: in the second call": """
def global_accuracy(comm, right, total):
    all_right = comm.allreduce(right)
    if comm.rank == 0:
        total = comm.allreduce(total)
    return all_right / total
""",
        "wrong-value": """
def global_accuracy(comm, right, total):
    return round(comm.allreduce(right) / comm.allreduce(total), 2)
""",
        "it-hangs": """
def global_accuracy(comm, right, total):
    if comm.rank > 0:
        comm.send((right, total), dest=0)
        return comm.recv(source=0)
    for source in range(1, comm.size):
        more_right, more_total = comm.recv(source=source)
        right, total = right + more_right, total + more_total
    return right / total
""",
    },
}
