"""Starts every program of the benchmark in the same way, and lets variants take turns in its ranks.

A program is a function without arguments. :func:`run` calls it in a process of its own, or on real
ranks, and returns its result, on ranks that of rank 0. MPI is imported only where ranks use it: the
import makes a process a rank.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
import torch.distributed as dist
from torch_mpi4py import launch

from benchmarks.report import SMALL

if TYPE_CHECKING:
    from torch_mpi4py import MPI

ROOT = Path(__file__).resolve().parent.parent
QUICK = "BENCH_QUICK"  # set: a few rounds only, to try a program
LIMIT_SECONDS = 400  # on a quiet machine the longest takes less than 100
LOOP_SECONDS = 0.02
WARM_CALLS = 3  # after another variant's turn the first call is slow, gloo's by milliseconds
LEAST_LOOPS = 5
LEAST_LOOPS_SMALL = 40

Call = Callable[[], object]


def environment() -> dict[str, str]:
    """Return the environment of programs that import the course."""
    variables = launch.environment()
    paths = [str(ROOT), variables.get("PYTHONPATH", "")]
    return variables | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(
    program: Callable[[], Any],
    ranks: int = 0,
    *,
    before: Sequence[str] = (),
    limit_seconds: float = LIMIT_SECONDS,
    folder: str | None = None,
    deaths: bool = False,
) -> Any:
    """Return the result of ``program``, a function of a module, on this many ranks.

    Args:
        program: returns a value that JSON can hold.
        ranks: 0 for an ordinary process.
        before: options for mpiexec, or the command that starts the ordinary process.
        limit_seconds: after this time it is killed.
        folder: where the answer is left, if not every process has the same ``/tmp``.
        deaths: whether ranks die on purpose, which makes mpiexec's status a failure's.

    Raises:
        RuntimeError: with what it wrote, if it failed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        output = Path(name) / "answer.json"
        command = [sys.executable, "-m", "benchmarks.running", program.__module__]
        command += [program.__name__, str(ranks), str(output)]
        command = launch.mpiexec(ranks, *before, *command) if ranks else [*before, *command]
        written = execute(command, limit_seconds, deaths)
        if not output.exists():
            raise RuntimeError(f"{program.__module__} left no answer:\n{written}")
        return json.loads(output.read_text())


def execute(command: Sequence[str], limit_seconds: float, deaths: bool = False) -> str:
    """Run a command in the checkout to its end; return its standard output.

    Raises:
        RuntimeError: with its output, if it failed, unless ``deaths`` make that its usual end.
    """
    ended = subprocess.run(
        command,
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_seconds,
        check=False,
    )
    if ended.returncode and not deaths:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def main() -> None:
    """Call a program, in this process or on this rank, and write its answer."""
    module, name, ranks, output = sys.argv[1:]
    program = getattr(importlib.import_module(module), name)
    if ranks == "0":
        Path(output).write_text(json.dumps(program()))
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    answer = program()
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(answer))
    dist.destroy_process_group()


# ---- on ranks ---------------------------------------------------------------------------


def rounds(count: int) -> int:
    """Return how many samples to take: ``count``, or a few to try a program."""
    return min(count, 3) if QUICK in os.environ else count


def world() -> MPI.Intracomm:
    """Return a communicator of all ranks for the benchmark's own messages."""
    from torch_mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


def all_reduces(comm: MPI.Intracomm, count: int, **groups: dist.ProcessGroup) -> dict[str, Call]:
    """Return all_reduce of so many bytes of float32: ours, by other groups, and by raw MPI."""
    from torch_mpi4py import MPI

    tensor = torch.zeros(count // 4)
    message = [tensor.numpy(), count // 4, MPI.FLOAT]
    variants: dict[str, Call] = {"ours": partial(dist.all_reduce, tensor)}
    for name, group in groups.items():
        variants[name] = partial(dist.all_reduce, tensor, group=group)
    return variants | {"raw": partial(comm.Allreduce, MPI.IN_PLACE, message, MPI.SUM)}


def slowest(comm: MPI.Intracomm, seconds: float) -> float:
    """Return the largest of all ranks' ``seconds``."""
    from torch_mpi4py import MPI

    value = numpy.array([seconds])
    comm.Allreduce(MPI.IN_PLACE, value, MPI.MAX)
    return float(value[0])


def timed(comm: MPI.Intracomm, call: Call, loops: int, warm: int = WARM_CALLS) -> float:
    """Return seconds per call on the slowest rank, after calls that do not count."""
    for _ in range(warm):
        call()
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return slowest(comm, (time.perf_counter() - start) / loops)


def in_turns(names: Sequence[str], turns: int) -> list[str]:
    """Return the names this many times, each time with another one first."""
    first = [turn % len(names) for turn in range(turns)]
    return [name for start in first for name in [*names[start:], *names[:start]]]


def take_turns(
    comm: MPI.Intracomm, variants: dict[str, Call], turns: int, least_loops: int = LEAST_LOOPS
) -> dict[str, list[float]]:
    """Return samples of each variant, taken in turns, so that noise hits them alike.

    A sample is the mean over a short loop, in seconds, on the slowest rank.
    """
    loops = {}
    for name, call in variants.items():
        once = min(timed(comm, call, least_loops) for _ in range(2))
        loops[name] = max(least_loops, min(500, round(LOOP_SECONDS / once)))
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for name in in_turns(list(variants), rounds(turns)):
        samples[name].append(timed(comm, variants[name], loops[name]))
    return samples


def least_loops(size: int) -> int:
    """Return how many calls of this size a sample has at least."""
    return LEAST_LOOPS_SMALL if size <= SMALL else LEAST_LOOPS


if __name__ == "__main__":
    main()
