"""Two ranks on two hosts predict a training step by lesson 06's formulas, and measure it.

The link's latency and bandwidth are measured by messages of 4 B and 1 MiB that go there and back,
as in lesson 01. The last line is the result, as JSON, in seconds.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from course_lib.teaching import cost

COMPUTING_S = 0.05
GRADIENT_BYTES = 4 * 2**20
ROUNDS = 7
ALGORITHMS = ("recursive doubling", "ring")


def median(function: Callable[[], object]) -> float:
    """The median time of a function that all ranks call together."""
    seconds = []
    for _ in range(ROUNDS):
        dist.barrier()
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def there_and_back(size_bytes: int) -> float:
    """The time of one message, half of what it takes there and back."""
    message = torch.zeros(size_bytes // 4)
    other = 1 - dist.get_rank()

    def ping_pong() -> None:
        for sender in (0, 1):
            if dist.get_rank() == sender:
                dist.send(message, other)
            else:
                dist.recv(message, other)

    return median(ping_pong) / 2


def main() -> None:
    dist.init_process_group("mpi4py", init_method="mpi://")
    small, large = there_and_back(4), there_and_back(2**20)
    link = cost.Link(small, 2**20 / (large - small))
    sync = min(cost.cost(name, 2, GRADIENT_BYTES).seconds(link) for name in ALGORITHMS)
    gradient = torch.zeros(GRADIENT_BYTES // 4)

    def step() -> None:
        time.sleep(COMPUTING_S)
        dist.all_reduce(gradient)

    measured_sync, measured_step = median(lambda: dist.all_reduce(gradient)), median(step)
    result = {
        "latency": link.latency,
        "bandwidth": link.bandwidth,
        "sync": [sync, measured_sync],
        # Of one rank that computes both shards one after the other.
        "speed_up": [2 / (1 + sync / COMPUTING_S), 2 * COMPUTING_S / measured_step],
    }
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
