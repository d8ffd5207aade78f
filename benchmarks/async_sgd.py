"""With one slow worker of four, who reaches the target accuracy first?

Runs under ``mpiexec -n 5``: a parameter server and four workers; rank 0 writes, for every seed,
the seconds that each mode took to the target, to the file named on the command line. Devices are
simulated: a gradient takes at least STEP_SECONDS, on the straggler three times as long, and the
rest of that time is slept, so that five ranks do not compete for two cores. The server keeps
snapshots; their accuracy is measured afterwards, so measuring takes no time from the run.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from statistics import mean

import torch
import torch.distributed as dist
import torch_mpi4py
from torch import nn

from course_lib.parallel.parameter_server import (
    Asynchronous,
    Record,
    Server,
    Stop,
    Synchronous,
    Worker,
    load_parameters,
)
from course_lib.training.data import DataSet, load
from course_lib.training.loops import accuracy, set_seed
from course_lib.training.models import MLP
from course_lib.training.shuffled_batches import shuffled_batches

STEP_SECONDS = 0.02
SLOWER = 3
STRAGGLER = 4  # its rank
TARGET = 0.9
BATCH = 16
RATE = 0.1  # of one gradient; a round's mean of four has four times the rate (linear rule)
SEEDS = range(7)
MODES = {"synchronous": Synchronous(), "asynchronous": Asynchronous()}
LOW_LOSS = 0.25  # accuracy is beyond TARGET then; a run ends some while after it
MOST_SECONDS = 12.0
EVERY = {"synchronous": 1, "asynchronous": 4}  # updates between snapshots: the same gradients


def one_run(mode: str, seed: int, train: DataSet, test: DataSet) -> dict | None:
    """Return what one run gave, on the server; nothing on a worker."""
    set_seed(seed)
    model, rank = MLP(), dist.get_rank()
    dist.barrier()
    if rank:
        batches = shuffled_batches(train, BATCH, seed=100 * seed + rank)
        pace = STEP_SECONDS * (SLOWER if rank == STRAGGLER else 1)
        Worker(model, nn.functional.cross_entropy, batches, step_seconds=pace).run()
        return None
    rate = RATE * (dist.get_world_size() - 1 if mode == "synchronous" else 1)
    server = Server(
        model,
        torch.optim.SGD(model.parameters(), lr=rate),
        mode=MODES[mode],
        snapshots=EVERY[mode],
        stop=Stop(when=low_loss, seconds=MOST_SECONDS),
    )
    return found_in(server.run(), test)


def low_loss(server: Server) -> bool:
    """Return whether the last 40 gradients had so small a loss that the target is behind."""
    losses = [
        gradient.loss for update in server.record.updates[-40:] for gradient in update.gradients
    ]
    return len(losses) >= 40 and mean(losses[-40:]) < LOW_LOSS


def found_in(record: Record, test: DataSet) -> dict:
    """Return when the target was reached (None: never), and how many updates and gradients."""
    model = MLP()
    reached = None
    for _, seconds, parameters in record.snapshots:
        load_parameters(model, parameters)
        if accuracy(model, test) >= TARGET:
            reached = seconds
            break
    return {
        "seconds": reached,
        "updates_per_s": record.version / record.seconds,
        "gradients_per_s": len(record.gradients) / record.seconds,
        "staleness": mean(record.staleness),
    }


def main() -> None:
    """Measure both modes in turns."""
    torch.set_num_threads(1)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    train, test = load("digits")
    runs: dict[str, list] = {mode: [] for mode in MODES}
    for seed in SEEDS:
        order = list(MODES) if seed % 2 else list(reversed(MODES))
        for mode in order:
            runs[mode].append(one_run(mode, seed, train, test))
    if dist.get_rank() == 0:
        result = {
            "ranks": dist.get_world_size(),
            "library": torch_mpi4py.library(),
            "target": TARGET,
            "step_seconds": STEP_SECONDS,
            "slower": SLOWER,
            "batch": BATCH,
            "rate": RATE,
            "runs": runs,
        }
        Path(sys.argv[1]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
