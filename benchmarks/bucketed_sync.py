"""The lesson's bucketed sync and DDP do the same step, in turns, on one backend.

Runs under ``mpiexec -n 2``; rank 0 writes the samples, in seconds a training step, to the file
named on the command line. Both keep replicas of equal weights equal, which is checked at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import Optimizer
from torch_mpi4py import MPI

from benchmarks.measure import LEAST_LOOPS, take_turns
from course_lib.parallel.bucketed_sync import BucketedGradientSync
from course_lib.parallel.invariants import assert_replicas_equal
from course_lib.training.models import MLP, LeNet

BATCH = 32
ROUNDS = 31
MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: MLP(inputs=784, hidden=(512, 512)),
    "LeNet": lambda: LeNet(),
    "deep MLP": lambda: MLP(inputs=784, hidden=(256,) * 12),
}


def main() -> None:
    """Measure every model."""
    torch.set_num_threads(1)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    comm = MPI.COMM_WORLD.Dup()
    torch.manual_seed(dist.get_rank())
    inputs, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    rows = []
    for name, make in MODELS.items():
        torch.manual_seed(0)
        plain, by_hand = make(), make()
        by_hand.load_state_dict(plain.state_dict())
        wrapped, sync = DDP(plain), BucketedGradientSync(by_hand)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (plain, by_hand)]

        def with_ddp(model: nn.Module = wrapped, optimizer: Optimizer = optimizers[0]) -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

        def with_sync(
            model: nn.Module = by_hand,
            optimizer: Optimizer = optimizers[1],
            sync: BucketedGradientSync = sync,
        ) -> None:
            optimizer.zero_grad()
            with sync:
                nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

        samples = take_turns(comm, {"sync": with_sync, "ddp": with_ddp}, ROUNDS, LEAST_LOOPS)
        assert_replicas_equal(plain)
        assert_replicas_equal(by_hand)
        rows.append(
            {
                "model": name,
                "parameters": sum(parameter.numel() for parameter in plain.parameters()),
                "tensors": len(list(plain.parameters())),
                "buckets": len(sync.buckets),
                "samples": samples,
            }
        )
    if dist.get_rank() == 0:
        result = {"ranks": dist.get_world_size(), "batch": BATCH, "models": rows}
        Path(sys.argv[1]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
