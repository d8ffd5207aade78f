"""all_reduce at every size beside its peers, and a training step under DDP.

``C`` is the MPI library's own MPI_Allreduce in a small C function, built with the local compiler;
it gets the communicator from mpi4py, so all variants run in the same processes. Without a compiler
it is left out, and ``no_c`` gives the reason.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch_mpi4py
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from benchmarks import report
from benchmarks.report import MIB, SMALL, Section, Table, Target, compared, ratio, size, target
from benchmarks.running import Call, all_reduces, execute, least_loops, take_turns, world
from course_lib.training.models import MLP, LeNet

if TYPE_CHECKING:
    from torch_mpi4py import MPI

SIZES = tuple(4 * 4**power for power in range(13))  # bytes: 4 B to 64 MiB
TURNS = 11
LONG, LONG_TURNS = 64 * MIB, 7  # such calls take a tenth of a second
BATCHES = {8: 61, 32: 61, 256: 11}  # images a rank, and turns: less time for long steps
USUAL_BATCH = 32  # more ranks than two are measured with this one only
MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: MLP(inputs=784, hidden=(512, 512)),
    "LeNet": LeNet,
}
GLOO_TIMES = {2: 12, 4: 8}  # as fast as gloo by the geometric mean, at least
DDP_ADDED = 0.25  # the time that communication adds to a step, relative to gloo, at most
NAMES = {"ours": "torch_mpi4py", "gloo": "gloo", "raw": "raw MPI", "C": "C, called through ctypes"}
COMPILE_SECONDS = 60
SOURCE = """\
#include <mpi.h>
void all_reduce(void *data, int count, MPI_Comm *comm) {
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, *comm);
}
"""
_MS = report.milliseconds
_NO_SYNC: AbstractContextManager = nullcontext()


def measure() -> dict:
    """Measure everything on this number of ranks."""
    gloo, comm = dist.new_group(backend="gloo"), world()
    in_c, reason = c_function(comm)
    return {
        "ranks": dist.get_world_size(),
        "library": torch_mpi4py.library(),
        "torch": torch.__version__,
        "no_c": reason,
        "all_reduce": sweep(comm, gloo, in_c),
        "ddp_step": ddp_steps(comm, gloo, BATCHES if comm.Get_size() == 2 else [USUAL_BATCH]),
    }


def sweep(comm: MPI.Intracomm, gloo: dist.ProcessGroup, in_c: Callable | None) -> list[dict]:
    """Measure all_reduce of float32 zeros at every size."""
    unchecked = dist.new_group()
    unchecked.check_collectives = False
    rows = []
    for count in SIZES:
        variants = all_reduces(comm, count, gloo=gloo, unchecked=unchecked)
        # The check costs a few per cent, less than the noise: one right after the other, in either
        # order, and twice as often.
        pair = {"checked": variants["ours"], "unchecked": variants.pop("unchecked")}
        tensor = torch.zeros(count // 4)
        if in_c:
            variants["C"] = partial(in_c, tensor.data_ptr(), count // 4)
        if count <= SMALL:
            later = partial(dist.all_reduce, tensor, async_op=True)
            variants["asynchronous"] = lambda: later().wait()  # noqa: B023 used within this turn
        turns = LONG_TURNS if count >= LONG else TURNS
        samples = take_turns(comm, variants, turns, least_loops(count))
        samples |= take_turns(comm, pair, 2 * turns, least_loops(count))
        rows.append({"bytes": count, "samples": samples})
    return rows


def c_function(comm: MPI.Intracomm) -> tuple[Callable | None, str]:
    """Return the C function on all ranks, or None on all and why; rank 0 compiles."""
    from torch_mpi4py import MPI

    with tempfile.TemporaryDirectory() as folder:
        library, reason = compiled(Path(folder)) if comm.Get_rank() == 0 else (None, "")
        library, reason = comm.bcast((library, reason))
        loaded = ctypes.CDLL(str(library)) if library else None
        comm.Barrier()
    if loaded is None:
        return None, reason
    function, handle = loaded.all_reduce, MPI._addressof(comm)
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    function.restype = None
    check = torch.ones(2)
    function(check.data_ptr(), 2, handle)
    assert check.tolist() == [comm.Get_size()] * 2
    return lambda data, count: function(data, count, handle), ""


def compiled(folder: Path) -> tuple[Path | None, str]:
    """Return a shared library with ``all_reduce``, or None and why there is none."""
    beside = Path(sys.executable).parent / "mpicc"
    wrapper = str(beside) if beside.exists() else shutil.which("mpicc")
    if wrapper is None:
        return None, "there is no mpicc"
    source, library = folder / "peer.c", folder / "peer.so"
    source.write_text(SOURCE)
    command = [wrapper, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    try:
        execute(command, COMPILE_SECONDS)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        return None, f"no C function was made: {str(error).strip().splitlines()[-1]}"
    return library, ""


def step_of(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    sync: AbstractContextManager = _NO_SYNC,
) -> Call:
    """Return a function that trains ``model`` by one step, with backward inside ``sync``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        with sync:
            nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def send_nothing(_, bucket):  # type: ignore[no-untyped-def]  # DDP reads no text annotations
    """A communication hook that leaves every rank its own gradients."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def ddp_steps(
    comm: MPI.Intracomm, gloo: dist.ProcessGroup, batches: Iterable[int] = (USUAL_BATCH,)
) -> list[dict]:
    """Measure a training step under DDP; ``silent`` is the same without communication.

    Args:
        batches: images a rank.
    """
    rows = []
    for batch in batches:
        turns = BATCHES[batch]
        inputs, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
        for name, make in MODELS.items():
            silent = DDP(make())
            silent.register_comm_hook(None, send_nothing)
            models = {"ours": DDP(make()), "gloo": DDP(make(), process_group=gloo)}
            models["silent"] = silent
            steps = {variant: step_of(model, inputs, labels) for variant, model in models.items()}
            parameters = sum(parameter.numel() for parameter in silent.parameters())
            row = {"model": name, "batch": batch, "parameters": parameters}
            rows.append(row | {"samples": take_turns(comm, steps, turns)})
    return rows


# ---- the report -------------------------------------------------------------------------


def section(run: dict) -> Section:
    """Return tables and targets of one number of ranks."""
    reduced, steps, ranks = run["all_reduce"], run["ddp_step"], run["ranks"]
    small = [row for row in reduced if "asynchronous" in row["samples"]]
    names = {v: NAMES[v] for v in NAMES if v in reduced[0]["samples"]}
    by_size = {
        "size": size,
        **report.each(names, _MS),
        "gloo / ours": report.over("gloo", "ours", ".1f"),
        "ours / raw": report.over("ours", "raw"),
        "ours / fastest peer": lambda row: f"{over_fastest(row['samples']):.2f}",
        "checked / unchecked": report.over("checked", "unchecked", of=report.by_turns),
    }
    ways = {
        "ours": "on the caller's thread",
        "asynchronous": "asynchronous, then `wait()`",
        "unchecked": "unchecked",
    }
    by_model = {
        "model (parameters)": lambda row: f"{row['model']} ({row['parameters']:,})",
        "images per rank": report.key("batch"),
        **report.each({"ours": "torch_mpi4py", "gloo": "gloo", "silent": "silent"}, _MS),
        "ours / gloo": report.over("ours", "gloo"),
        "silent / gloo": report.over("silent", "gloo"),
        "added / added with gloo": lambda row: f"{added(row):.2f}",
    }
    missing = f" The C all-reduce is missing: {run['no_c']}." if run.get("no_c") else ""
    in_c = "; calling C through ctypes adds about a microsecond a call" if "C" in names else ""
    parts = [
        f"all_reduce of float32 tensors, in ms{in_c}.{missing}",
        Table(by_size, reduced),
        "Cost of small messages, in ms:",
        Table({"size": size, **report.each(ways, _MS)}, small),
        "A training step under DDP, in ms:",
        Table(by_model, steps),
        f"Target: communication adds at most {DDP_ADDED}x as much time as with gloo. "
        '"Silent" is DDP with a hook that sends nothing, so "ours / gloo" cannot be below '
        '"silent / gloo". The last column compares the time that communication adds: '
        "(ours - silent) / (gloo - silent).",
    ]
    targets = [*gloo_targets(ranks, reduced), *(raw_targets(reduced) if ranks == 2 else [])]
    targets += [*check_targets(ranks, reduced), *(step_target(ranks, row) for row in steps)]
    return Section(f"{ranks} ranks", parts, targets)


def gloo_targets(ranks: int, rows: list[dict]) -> list[Target]:
    """Return the least and the mean speed-up of all_reduce over gloo."""
    medians, fastest = ([ratio(row, "gloo", "ours", of) for row in rows] for of in (median, min))
    where, there = (size(rows[values.index(min(values))]) for values in (medians, fastest))
    what, form = f"all_reduce compared with gloo, {ranks} ranks", f"{{:.2f}}x ({where})"
    best, mean = f"{min(fastest):.2f}x ({there})", report.geometric_mean(medians)
    cause = "memory, not the library, limits the largest sizes, where the two are close"
    wanted, mean_of_fastest = f">= {GLOO_TIMES.get(ranks, 8)}x", report.geometric_mean(fastest)
    return [
        target(f"{what}, every size", "> 1x", min(medians), best, form, cause),
        target(f"{what}, geometric mean", wanted, mean, mean_of_fastest, "{:.1f}x"),
    ]


def raw_targets(rows: list[dict]) -> list[Target]:
    """Return the time of all_reduce relative to raw MPI."""
    small = report.extra(rows[0], "ours", "raw")
    what = "all_reduce over raw MPI"
    parts = "it is Python's time, of which docs/benchmark.md lists the parts"
    targets = [
        compared(f"{what}, 4 B", "<= +15 us", rows[0], "ours", "raw", parts, of=report.extra)
    ]
    for row in rows:
        raw, more = 1e6 * median(row["samples"]["raw"]), report.extra(row, "ours", "raw")
        cause = (
            f"raw MPI takes {raw:.0f} us here, and 15% of that is {0.15 * raw:.0f} us; ours takes "
            f"{more:.0f} us more, of which any call costs {small:.0f} us (measured at 4 B)"
        )
        if row["bytes"] >= MIB:
            at_size = f"{what}, {size(row)}"
            targets.append(compared(at_size, "<= 1.15x", row, "ours", "raw", cause))
    return targets


def check_targets(ranks: int, rows: list[dict]) -> list[Target]:
    """Return the cost of comparing the ranks' calls before each collective."""
    targets, pair = [], ("checked", "unchecked")
    for sizes, wanted, chosen in (
        ("up to 64 KiB", 1.3, [row for row in rows if row["bytes"] <= SMALL]),
        ("from 1 MiB", 1.03, [row for row in rows if row["bytes"] >= MIB]),
    ):
        more = [report.extra(row, *pair) for row in chosen]
        what = f"mismatch check, {ranks} ranks, {sizes}, geometric mean"
        got = report.geometric_mean(report.by_turns(row, *pair) for row in chosen)
        fastest = report.geometric_mean(ratio(row, *pair, min) for row in chosen)
        extent = f"{min(more):.0f} to {max(more):.0f} us here"
        cause = f"the check is one more all-reduce, of 16 bytes, and takes {extent}"
        targets.append(target(what, f"<= {wanted}x", got, fastest, cause=cause))
    return targets


def over_fastest(samples: dict[str, list[float]]) -> float:
    """Return our time over that of the fastest of the others."""
    peers = [median(samples[name]) for name in ("gloo", "raw", "C") if name in samples]
    return median(samples["ours"]) / min(peers)


def added(row: dict, of: Callable[[list[float]], float] = median) -> float:
    """Return the time that communication adds to a training step, relative to gloo."""
    ours, gloo, silent = (of(row["samples"][name]) for name in ("ours", "gloo", "silent"))
    return (ours - silent) / (gloo - silent)


def step_target(ranks: int, row: dict) -> Target:
    """Return the time that communication adds to a training step."""
    what = f"{row['model']}, batch {row['batch']}, {ranks} ranks"
    cause = (
        f"the whole step takes {ratio(row, 'ours', 'gloo'):.2f}x as long as with gloo, and a DDP "
        f"step that sends nothing {ratio(row, 'silent', 'gloo'):.2f}x; communication adds "
        f"{report.extra(row, 'ours', 'silent') / 1e3:.2f} ms"
    )
    what = f"communication added to a DDP step, compared with gloo, {what}"
    return target(what, f"<= {DDP_ADDED}x", added(row), added(row, min), cause=cause)
