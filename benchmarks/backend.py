"""all_reduce at every size, and a training step under DDP, beside gloo and raw MPI."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch_mpi4py
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from benchmarks.report import (
    MIB,
    SMALL,
    Section,
    Table,
    Target,
    by_turns,
    each,
    extra,
    geometric_mean,
    key,
    milliseconds,
    over,
    ratio,
    size,
    size_name,
    target,
)
from benchmarks.running import Call, all_reduces, least_loops, take_turns, world
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
DDP_ADDED = 0.25  # what communication adds to a step, over what it adds with gloo, at most
_NO_SYNC: AbstractContextManager = nullcontext()
VARIANTS = {"ours": "torch_mpi4py", "gloo": "gloo", "raw": "raw MPI"}


def measure() -> dict:
    """Measure everything on this number of ranks."""
    gloo = dist.new_group(backend="gloo")
    comm = world()
    return {
        "ranks": dist.get_world_size(),
        "library": torch_mpi4py.library(),
        "torch": torch.__version__,
        "all_reduce": sweep(comm, gloo),
        "ddp_step": ddp_steps(comm, gloo),
    }


def sweep(comm: MPI.Intracomm, gloo: dist.ProcessGroup) -> list[dict]:
    """Measure all_reduce of float32 zeros at every size."""
    unchecked = dist.new_group()
    unchecked.check_collectives = False
    rows = []
    for count in SIZES:
        variants = all_reduces(comm, count, gloo=gloo, unchecked=unchecked)
        # The check costs a few per cent, less than the weather: one right after the other, in
        # either order, and twice as often.
        pair = {"checked": variants["ours"], "unchecked": variants.pop("unchecked")}
        if count <= SMALL:
            later = partial(dist.all_reduce, torch.zeros(count // 4), async_op=True)
            variants["asynchronous"] = lambda: later().wait()  # noqa: B023 used within this turn
        turns = LONG_TURNS if count >= LONG else TURNS
        samples = take_turns(comm, variants, turns, least_loops(count))
        samples |= take_turns(comm, pair, 2 * turns, least_loops(count))
        rows.append({"bytes": count, "samples": samples})
    return rows


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


def ddp_steps(comm: MPI.Intracomm, gloo: dist.ProcessGroup) -> list[dict]:
    """Measure a training step under DDP; ``silent`` is the same without communication."""
    batches = BATCHES if comm.Get_size() == 2 else {USUAL_BATCH: BATCHES[USUAL_BATCH]}
    rows = []
    for batch, turns in batches.items():
        inputs, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
        for name, make in MODELS.items():
            silent = DDP(make())
            silent.register_comm_hook(None, send_nothing)
            models = {"ours": DDP(make()), "gloo": DDP(make(), process_group=gloo)}
            variants = {
                variant: step_of(model, inputs, labels)
                for variant, model in (models | {"silent": silent}).items()
            }
            parameters = sum(parameter.numel() for parameter in silent.parameters())
            row = {"model": name, "batch": batch, "parameters": parameters}
            rows.append(row | {"samples": take_turns(comm, variants, turns)})
    return rows


# ---- the report -------------------------------------------------------------------------


def section(run: dict) -> Section:
    """Return tables and targets of one number of ranks."""
    reduced, steps, ranks = run["all_reduce"], run["ddp_step"], run["ranks"]
    small = [row for row in reduced if "asynchronous" in row["samples"]]
    ways = {
        "ours": "on the caller's thread",
        "asynchronous": "asynchronous, then waited for",
        "unchecked": "unchecked",
    }
    by_size = {
        "size": size,
        **each(VARIANTS, milliseconds),
        "gloo / ours": over("gloo", "ours", ".1f"),
        "ours / raw": over("ours", "raw"),
        "checked / unchecked": lambda row: f"{by_turns(row, 'checked', 'unchecked'):.2f}",
    }
    by_model = {
        "model (parameters)": lambda row: f"{row['model']} ({row['parameters']:,})",
        "images a rank": key("batch"),
        **each({"ours": "torch_mpi4py", "gloo": "gloo", "silent": "silent"}, milliseconds),
        "ours / gloo": over("ours", "gloo"),
        "silent / gloo": over("silent", "gloo"),
        "added / added by gloo": lambda row: f"{added(row):.2f}",
    }
    parts = [
        "all_reduce of float32:",
        Table(by_size, reduced),
        "What small messages cost, in ms:",
        Table({"size": size, **each(ways, milliseconds)}, small),
        "Training step under DDP:",
        Table(by_model, steps),
        f"Target: communication adds at most {DDP_ADDED}x of what it adds with gloo. "
        '"Silent" is DDP with a hook that sends nothing. "Silent / gloo" is the floor, no backend '
        "can be below it; the last column is what communication adds to the step: ours less "
        "silent, over gloo less silent.",
    ]
    targets = [*gloo_targets(ranks, reduced), *(raw_targets(reduced) if ranks == 2 else [])]
    targets += [*check_targets(ranks, reduced), *(step_target(ranks, row) for row in steps)]
    return Section(f"{ranks} ranks", parts, targets)


def gloo_targets(ranks: int, rows: list[dict]) -> list[Target]:
    """Return how many times as fast as gloo all_reduce is at least, and by the mean."""
    medians, fastest = ([ratio(row, "gloo", "ours", of) for row in rows] for of in (median, min))
    where, there = (size(rows[values.index(min(values))]) for values in (medians, fastest))
    what = f"all_reduce against gloo, {ranks} ranks"
    return [
        target(
            f"{what}, every size",
            "> 1x",
            min(medians),
            f"{min(fastest):.2f}x ({there})",
            f"{{:.2f}}x ({where})",
            "memory, not the library, limits the largest sizes; there the two are close",
        ),
        target(
            f"{what}, geometric mean",
            f">= {GLOO_TIMES.get(ranks, 8)}x",
            geometric_mean(medians),
            geometric_mean(fastest),
            "{:.1f}x",
        ),
    ]


def raw_targets(rows: list[dict]) -> list[Target]:
    """Return what all_reduce takes over raw MPI."""
    what, first = "all_reduce over raw MPI", rows[0]
    small, least = (extra(first, "ours", "raw", of) for of in (median, min))
    targets = [target(f"{what}, 4 B", "<= +15 us", small, least, "{:+.1f} us")]
    for row in rows:
        if row["bytes"] >= MIB:
            raw = 1e6 * median(row["samples"]["raw"])
            cause = (
                f"raw MPI takes {raw:.0f} us here, of which 15% is {0.15 * raw:.0f} us; ours takes "
                f"{extra(row, 'ours', 'raw'):.0f} us more, of which {small:.0f} us is what any "
                "call costs (at 4 B)"
            )
            got, fastest = (ratio(row, "ours", "raw", of) for of in (median, min))
            targets.append(target(f"{what}, {size(row)}", "<= 1.15x", got, fastest, cause=cause))
    return targets


def check_targets(ranks: int, rows: list[dict]) -> list[Target]:
    """Return what it costs to compare the ranks' calls before each collective."""
    targets = []
    for sizes, wanted, chosen in (
        (f"up to {size_name(SMALL)}", 1.3, [row for row in rows if row["bytes"] <= SMALL]),
        (f"from {size_name(MIB)}", 1.03, [row for row in rows if row["bytes"] >= MIB]),
    ):
        more = [extra(row, "checked", "unchecked") for row in chosen]
        targets.append(
            target(
                f"mismatch check, {ranks} ranks, {sizes}, geometric mean",
                f"<= {wanted}x",
                geometric_mean(by_turns(row, "checked", "unchecked") for row in chosen),
                geometric_mean(ratio(row, "checked", "unchecked", min) for row in chosen),
                cause=f"the check is one more all-reduce, of 16 bytes: {min(more):.0f} to "
                f"{max(more):.0f} us here",
            )
        )
    return targets


def added(row: dict, of: Callable[[list[float]], float] = median) -> float:
    """Return what communication adds to a training step, over what it adds with gloo."""
    ours, gloo, silent = (of(row["samples"][name]) for name in ("ours", "gloo", "silent"))
    return (ours - silent) / (gloo - silent)


def step_target(ranks: int, row: dict) -> Target:
    """Return what communication adds to a training step."""
    share, floor = ratio(row, "ours", "gloo"), ratio(row, "silent", "gloo")
    return target(
        f"what communication adds to a DDP step, against gloo, {row['model']}, batch "
        f"{row['batch']}, {ranks} ranks",
        f"<= {DDP_ADDED}x",
        added(row),
        added(row, min),
        cause=f"the whole step takes {share:.2f}x of gloo's, DDP that sends nothing {floor:.2f}x; "
        f"communication adds {extra(row, 'ours', 'silent') / 1e3:.2f} ms",
    )
