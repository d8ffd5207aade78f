"""The course's bucketed sync and DDP do the same step, in turns, on one backend.

Both keep replicas of equal weights equal, which is checked at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from benchmarks import report
from benchmarks.backend import MODELS, step_of
from benchmarks.report import Section, Table, Target, by_turns, compared
from benchmarks.running import take_turns, world
from course_lib.parallel.bucketed_sync import BucketedGradientSync
from course_lib.parallel.invariants import assert_replicas_equal
from course_lib.training.models import MLP

BATCH = 32
TURNS = 31
ALL_MODELS: dict[str, Callable[[], nn.Module]] = {
    **MODELS,
    "deep MLP": lambda: MLP(inputs=784, hidden=(256,) * 12),
}


def measure() -> dict:
    """Measure every model."""
    comm = world()
    torch.manual_seed(dist.get_rank())
    inputs, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    rows = []
    for name, make in ALL_MODELS.items():
        torch.manual_seed(0)
        plain, by_hand = make(), make()
        by_hand.load_state_dict(plain.state_dict())
        sync = BucketedGradientSync(by_hand)
        variants = {
            "sync": step_of(by_hand, inputs, labels, sync),
            "ddp": step_of(DDP(plain), inputs, labels),
        }
        samples = take_turns(comm, variants, TURNS)
        assert_replicas_equal(plain)
        assert_replicas_equal(by_hand)
        sizes = [parameter.numel() for parameter in plain.parameters()]
        row = {"model": name, "parameters": sum(sizes), "tensors": len(sizes)}
        rows.append(row | {"buckets": len(sync.buckets), "samples": samples})
    return {"ranks": dist.get_world_size(), "batch": BATCH, "models": rows}


def section(measured: dict) -> Section:
    """Return table and targets of :func:`measure`."""
    columns = {
        "model (parameters, tensors, buckets)": lambda row: (
            f"{row['model']} ({row['parameters']:,}, {row['tensors']}, {row['buckets']})"
        ),
        **report.each({"sync": "BucketedGradientSync", "ddp": "DDP"}, report.milliseconds),
        "ratio per turn": report.over("sync", "ddp", of=by_turns),
    }
    about = (
        f"Both run on this backend, on {measured['ranks']} ranks, with {measured['batch']} images "
        "per rank and step. A step consists of zero_grad, forward, backward with communication, "
        "and update. Times in ms: median (quartiles)."
    )

    def over_ddp(row: dict) -> Target:
        more = report.extra(row, "sync", "ddp")
        cause = (
            f"its {row['tensors']} hooks run in Python and cost {more:.0f} us a step; DDP's are "
            "in C++"
        )
        what = (
            f"lesson's bucketed sync compared with DDP, {row['model']}, {measured['ranks']} ranks"
        )
        return compared(what, "<= 1.05x", row, "sync", "ddp", cause, by_turns)

    title, rows = "The lesson's bucketed, overlapped sync compared with DDP", measured["models"]
    return Section(title, [about, Table(columns, rows)], [*map(over_ddp, rows)])
