"""Two ranks on two hosts time all-reduces on slow links; rank 0 sets the links and says the times.

``python -m tests.hosts.slow_links rates MBIT_PER_S ...`` for a large tensor on links of such rates,
``... late BYTES ...`` for small ones on the links as they are, each without the comparison of calls
and then with it, and for messages there and back. The last line of rank 0 is a list in JSON, an
entry for each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.hosts.testbed import BedClient

GRADIENT_BYTES = 4 * 2**20
WARM_UP = 2
BUSY_SECONDS = 15  # in which busy cores may have given a few quick rounds


def timed(size: int, rounds: int, calls: int, messages: int = 0) -> dict:
    """Time all-reduces one after another, and count what of each crosses the network.

    A barrier lets two ranks go a latency apart, which several calls after it even out.

    Args:
        size: bytes of the tensor.
        rounds: how many times are taken; with messages more, until the quickest three agree.
        calls: all-reduces in a round.
        messages: how many go there and back before each round.
    """
    tensor = torch.zeros(size // 4)

    def each(times: int, do: Callable[[], object]) -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(times):
            do()
        return (time.perf_counter() - start) / times

    def there_and_back() -> None:
        turns = (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send)
        for turn in turns:
            turn(tensor, 1 - dist.get_rank())

    for _ in range(WARM_UP):  # meanwhile TCP finds out how fast the link is
        each(calls, lambda: dist.all_reduce(tensor))
    before = traffic()
    seconds, latency = [], []
    end = time.monotonic() + BUSY_SECONDS
    while len(seconds) < rounds or (messages > 0 and goes_on(end, seconds, latency)):
        if messages > 0:
            latency.append(each(messages, there_and_back) / 2)
        seconds.append(each(calls, lambda: dist.all_reduce(tensor)))
    dist.barrier()
    all_calls = len(seconds) * calls
    crossed = [(now - then) / all_calls for now, then in zip(traffic(), before, strict=True)]
    return {"bytes": size, "seconds": seconds, "latency": latency, "crossed": crossed}


def goes_on(end: float, *series: list[float]) -> bool:
    """Whether rank 0 has time left, and the three lowest of a series are not within 5%."""
    lowest = [sorted(values)[:3] for values in series]
    agree = all(values[-1] < 1.05 * values[0] for values in lowest)
    answer = torch.tensor([time.monotonic() < end and not agree])
    dist.broadcast(answer, 0)
    return bool(answer)


def traffic() -> tuple[int, int]:
    """The bytes that h2 has sent and received, as rank 0 knows them."""
    return BedClient().traffic("h2") if dist.get_rank() == 0 else (0, 0)


def main(what: str, *numbers: str) -> None:
    """Measure, and let rank 0 say it."""
    torch.set_num_threads(1)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    found = []
    for number in map(int, numbers):
        if what == "rates":
            if dist.get_rank() == 0:
                for host in ("h1", "h2"):
                    BedClient().limit(host, number)
            found.append(timed(GRADIENT_BYTES, 25 if number > 100 else 7, 1))
        else:
            for compared in (False, True):
                dist.barrier()
                dist.group.WORLD.check_collectives = compared
                found.append(timed(number, 9, 10, messages=5))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
