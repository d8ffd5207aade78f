"""What NCCL does alone, and what this backend does where NCCL refuses.

An ordinary program: ``python -m benchmarks.gpu FILE`` writes ``{"device": null}`` where there is
no GPU. Where there is one, it starts two kinds of ranks, ``--ranks``: one rank with NCCL beside
ours, and several ranks that share the GPU, which NCCL refuses. ``copy`` is the way of a message
to pinned host memory and back, which is what staging costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch_mpi4py import launch

SIZES = (4, 2**12, 2**16, 2**20, 2**24, 2**26)
SHARING = (1, 2, 4)
LOOPS = {2**24: 20, 2**26: 10}
MANY_LOOPS = 100
ROUNDS = 7
RUN_SECONDS = 120


def seconds_each(call: Callable[[], None], loops: int) -> float:
    """Return the seconds a call takes, the GPU's work included."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(loops):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / loops


def on_a_rank(output: Path) -> None:
    """Measure all sizes on the ranks of this mpiexec, which share the first GPU."""
    torch.cuda.set_device(0)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    alone = dist.get_world_size() == 1
    nccl = dist.new_group(backend="nccl") if alone and dist.is_nccl_available() else None
    rows = []
    for size in SIZES:
        tensor = torch.zeros(size // 4, device="cuda")
        host = torch.empty(size // 4, pin_memory=True)

        def ours(tensor: torch.Tensor = tensor) -> None:
            dist.all_reduce(tensor)

        def copy(tensor: torch.Tensor = tensor, host: torch.Tensor = host) -> None:
            host.copy_(tensor, non_blocking=True)
            tensor.copy_(host, non_blocking=True)

        variants: dict[str, Callable[[], None]] = {
            "ours": ours,
            "copy": copy,
        }
        if nccl is not None:

            def by_nccl(tensor: torch.Tensor = tensor) -> None:
                dist.all_reduce(tensor, group=nccl)

            variants["nccl"] = by_nccl
        samples: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(ROUNDS):
            for name, call in variants.items():
                dist.barrier()
                samples[name].append(seconds_each(call, LOOPS.get(size, MANY_LOOPS)))
        rows.append({"bytes": size, "samples": samples})
    if dist.get_rank() == 0:
        output.write_text(json.dumps({"ranks": dist.get_world_size(), "all_reduce": rows}))
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, or say that there is no GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    if arguments.ranks:
        on_a_rank(arguments.output)
        return
    if not torch.cuda.is_available():
        arguments.output.write_text(json.dumps({"device": None}))
        return
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in SHARING:
            output = Path(folder) / f"{ranks}.json"
            command = [sys.executable, "-m", "benchmarks.gpu", "--ranks", str(output)]
            subprocess.run(
                launch.mpiexec(ranks, *command),
                env=launch.environment(),
                stdin=subprocess.DEVNULL,
                timeout=RUN_SECONDS,
                check=True,
            )
            runs.append(json.loads(output.read_text()))
    result = {"device": torch.cuda.get_device_name(0), "runs": runs}
    arguments.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
