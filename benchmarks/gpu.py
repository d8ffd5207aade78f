"""Times NCCL alone, and this backend where NCCL refuses.

Two kinds of ranks: one rank with NCCL beside ours, and several ranks that share the GPU, which NCCL
refuses. ``copy`` copies a message to pinned host memory and back, which is the cost of staging.
Without a GPU nothing is measured.
"""

from __future__ import annotations

import time
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.report import Section, Table, each, microseconds, over, size
from benchmarks.running import Call, in_turns, rounds, run

SIZES = (4, 2**12, 2**16, 2**20, 2**24, 2**26)
SHARING = (1, 2, 4)
LOOPS = {2**24: 20, 2**26: 10}
MANY_LOOPS = 100
TURNS = 7
RUN_SECONDS = 120


def measure() -> dict:
    """Start the ranks, or say that there is no GPU."""
    if not torch.cuda.is_available():
        return {"device": None}
    runs = [run(sharing, ranks, limit_seconds=RUN_SECONDS) for ranks in SHARING]
    return {"device": torch.cuda.get_device_name(0), "runs": runs}


def sharing() -> dict:
    """Measure all sizes on ranks that share the first GPU."""
    alone = dist.get_world_size() == 1
    nccl = dist.new_group(backend="nccl") if alone and dist.is_nccl_available() else None
    rows = []
    for count in SIZES:
        tensor = torch.zeros(count // 4, device="cuda:0")
        host = torch.empty(count // 4, pin_memory=True)
        variants: dict[str, Call] = {
            "ours": partial(dist.all_reduce, tensor),
            "copy": partial(copy, tensor, host),
        }
        if nccl is not None:
            variants["nccl"] = partial(dist.all_reduce, tensor, group=nccl)
        samples: dict[str, list[float]] = {name: [] for name in variants}
        for name in in_turns(list(variants), rounds(TURNS)):
            dist.barrier()
            samples[name].append(seconds_each(variants[name], LOOPS.get(count, MANY_LOOPS)))
        rows.append({"bytes": count, "samples": samples})
    return {"ranks": dist.get_world_size(), "all_reduce": rows}


def copy(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Copy a tensor to pinned memory and back."""
    host.copy_(tensor, non_blocking=True)
    tensor.copy_(host, non_blocking=True)


def seconds_each(call: Call, loops: int) -> float:
    """Return the seconds a call takes, the GPU's work included."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(loops):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / loops


def section(measured: dict) -> Section:
    """Return the tables of :func:`measure`; they have no targets."""
    if measured["device"] is None:
        return Section("GPU", ["There is no GPU on this machine, so nothing was measured."])
    about = (
        f"{measured['device']}: all_reduce of float32, with all ranks on this one GPU. "
        "Microseconds: median (quartiles)."
    )
    return Section("GPU", [about, *map(table_of, measured["runs"])])


def table_of(found: dict) -> Table:
    """Return the table of one number of ranks."""
    names = {"ours": f"torch_mpi4py, {found['ranks']} ranks", "nccl": "NCCL, one rank"}
    names["copy"] = "copy to pinned host memory and back"
    here = {name: names[name] for name in names if name in found["all_reduce"][0]["samples"]}
    columns = {"size": size, **each(here, microseconds), "copy / ours": over("copy", "ours", ".0%")}
    return Table(columns, found["all_reduce"])
