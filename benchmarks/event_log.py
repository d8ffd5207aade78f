"""The same calls with the event log on and off, in turns.

Runs under ``mpiexec -n 2``; rank 0 writes seconds to the file named on the command line. ``both``
is what one event costs a process: it is opened and closed in a loop that does nothing else, with
the call site looked up as from a program's own line. ``section`` is a user's own section. ``on``
and ``off`` are an all_reduce of one number, which has other noise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from torch_mpi4py import MPI, events

from benchmarks.measure import take_turns

LOOP = 5000
ROUNDS = 21
OPERATION_ROUNDS = 15


def an_event(group: int) -> None:
    """Open and close an event as an operation does."""
    site = events.call_site(2)
    token = events.log.begin(KIND, group, 1, site, DTYPE, SHAPE, peer=1, tag=0, size=4)
    events.log.end(token)


KIND, DTYPE, SHAPE = (events.log.string(name) for name in ("send", "float32", "(1,)"))


def a_section() -> None:
    """Open and close a section."""
    with events.section("forward"):
        pass


def an_empty_block() -> None:
    """Do what is not the log's doing in ``a_section``."""
    with nullcontext():
        pass


def seconds_each(call: Callable[..., None], *arguments: int) -> float:
    """Return the seconds that one of LOOP calls takes."""
    start = perf_counter()
    for _ in range(LOOP):
        call(*arguments)
    return (perf_counter() - start) / LOOP


def main() -> None:
    """Measure on both ranks; rank 0's numbers are kept."""
    torch.set_num_threads(1)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    comm = MPI.COMM_WORLD.Dup()
    group = events.log.string("default")
    alone: dict[str, list[float]] = {"event": [], "section": []}
    for _ in range(ROUNDS):
        alone["event"].append(seconds_each(an_event, group))
        alone["section"].append(seconds_each(a_section) - seconds_each(an_empty_block))
    tensor = torch.zeros(1)

    def all_reduce(enabled: bool) -> None:
        events.log.enabled = enabled
        dist.all_reduce(tensor)

    variants = {"on": lambda: all_reduce(True), "off": lambda: all_reduce(False)}
    operation = take_turns(comm, variants, OPERATION_ROUNDS, 200)
    events.log.enabled = True
    if dist.get_rank() == 0:
        result = {"ranks": dist.get_world_size(), "alone": alone, "all_reduce": operation}
        Path(sys.argv[1]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
