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
    },
}
