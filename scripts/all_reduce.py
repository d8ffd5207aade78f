"""Add up a tensor over all ranks, from a few bytes to many, and time it.

Rank r contributes r + 1 everywhere, so the sum is known, R (R + 1) / 2, and every rank checks it.

    mpiexec -n 4 python scripts/all_reduce.py
    torchrun --nproc-per-node 2 scripts/all_reduce.py --largest 1048576

The last line of the output is the result, as JSON: microseconds per call by bytes, the mean
over the calls on the slowest rank.
"""

import argparse
import time

import torch
import torch.distributed as dist
from reporting import progress, result_line

from course_lib.parallel.launching import Place, on_terminal, process_group

SMALLEST = 4  # bytes: one float32


def check(place: Place, size: int) -> None:
    """Raise SystemExit on this rank if the sum of ``size`` bytes of float32 is wrong."""
    tensor = torch.full((size // 4,), place.rank + 1.0, device=place.device)
    dist.all_reduce(tensor)
    expected = place.world_size * (place.world_size + 1) / 2
    if not bool((tensor == expected).all()):
        raise SystemExit(f"rank {place.rank}: the sum is {tensor}, not {expected} everywhere")


def seconds_per_call(place: Place, size: int, repeat: int) -> float:
    """Return the mean time of an all_reduce of ``size`` bytes, in seconds, of the slowest rank."""
    tensor = torch.zeros(size // 4, device=place.device)
    dist.all_reduce(tensor)  # the first call also sets up buffers
    dist.barrier()
    start = time.perf_counter()
    for _ in range(repeat):
        dist.all_reduce(tensor)
    if place.device.type == "cuda":
        torch.cuda.synchronize()
    slowest = torch.tensor([(time.perf_counter() - start) / repeat], device=place.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--largest", type=int, default=2**22, help="bytes (4 MiB)")
    parser.add_argument("--repeat", type=int, default=20, help="calls at each size (20)")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="bar (on a terminal)"
    )
    arguments = parser.parse_args()
    if arguments.largest < SMALLEST or arguments.repeat < 1:
        parser.error(f"--largest must be at least {SMALLEST} bytes, and --repeat at least 1")
    shown = on_terminal() if arguments.progress is None else arguments.progress

    sizes = [SMALLEST]
    while sizes[-1] * 16 <= arguments.largest:
        sizes.append(sizes[-1] * 16)
    with process_group() as place:
        microseconds = {}
        for size in progress(sizes, shown=shown and place.rank == 0, unit="size"):
            check(place, size)
            microseconds[size] = round(1e6 * seconds_per_call(place, size, arguments.repeat), 1)
        if place.rank == 0:
            line = result_line(
                script="all_reduce",
                ranks=place.world_size,
                backend=place.backend,
                sum=place.world_size * (place.world_size + 1) / 2,
                microseconds=microseconds,
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
