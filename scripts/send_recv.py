"""Send a tensor from rank to rank in a ring: the smallest program with more than one process.

Rank 0 sends [1., 1., ...] to rank 1. Every other rank receives, adds one, and sends on to the
next; the last one sends back to rank 0. So after one round every number is the number of ranks.

    mpiexec -n 4 python scripts/send_recv.py
    torchrun --nproc-per-node 2 scripts/send_recv.py --elements 1000000 --rounds 20

The last line of the output is the result, as JSON.
"""

import argparse
import time

import torch
import torch.distributed as dist
from reporting import progress, result_line

from course_lib.parallel.launching import on_terminal, process_group


def one_round(rank: int, size: int, elements: int, device: torch.device) -> torch.Tensor:
    """Return what this rank holds after the tensor has come round, float32 (elements,)."""
    after, before = (rank + 1) % size, (rank - 1) % size
    if rank == 0:
        tensor = torch.ones(elements, device=device)
        dist.send(tensor, dst=after)
        dist.recv(tensor, src=before)
        return tensor
    # The receiver has to know shape and dtype: a message brings numbers only.
    tensor = torch.empty(elements, device=device)
    dist.recv(tensor, src=before)
    tensor += 1
    dist.send(tensor, dst=after)
    return tensor


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=2, help="numbers in the tensor (2)")
    parser.add_argument("--rounds", type=int, default=10, help="times round the ring (10)")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="bar (on a terminal)"
    )
    arguments = parser.parse_args()
    if arguments.elements < 1 or arguments.rounds < 1:
        parser.error("--elements and --rounds must be at least 1")
    shown = on_terminal() if arguments.progress is None else arguments.progress

    with process_group() as place:
        if place.world_size < 2:
            parser.error("a ring needs at least 2 ranks: mpiexec -n 2 python scripts/send_recv.py")
        start = time.perf_counter()
        for _ in progress(range(arguments.rounds), shown=shown and place.rank == 0, unit="round"):
            tensor = one_round(place.rank, place.world_size, arguments.elements, place.device)
        seconds = (time.perf_counter() - start) / arguments.rounds

        # Small whole numbers are exact in float32, so the comparison is too.
        expected = float(place.world_size if place.rank == 0 else place.rank + 1)
        if not bool((tensor == expected).all()):
            raise SystemExit(f"rank {place.rank} holds {tensor}, not {expected} everywhere")
        if place.rank == 0:
            line = result_line(
                script="send_recv",
                ranks=place.world_size,
                backend=place.backend,
                elements=arguments.elements,
                value=float(tensor[0]),
                microseconds_per_message=1e6 * seconds / place.world_size,
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
