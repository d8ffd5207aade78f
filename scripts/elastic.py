"""Train on all ranks, save a checkpoint every few steps, and go on from it after a death.

    torchrun --nproc-per-node 2 --max-restarts 1 scripts/elastic.py run.pt
    torchrun --nproc-per-node 2 --max-restarts 1 scripts/elastic.py run.pt --die-at 12

With --die-at the last rank kills itself in that step, unless the run began from a checkpoint.
torchrun then ends all ranks and starts them again, and they find the checkpoint. Without
--max-restarts, or under mpiexec, start the program once more by hand.

The last line of the output is the result, as JSON: which step this life of the ranks began with,
how often torchrun had started them again, and a checksum of the weights, which is the same
whether a rank died or not.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.parallel.initial_weights import sync_initial_weights
from course_lib.parallel.launching import process_group
from course_lib.training.checkpoint import load_checkpoint, save_checkpoint
from course_lib.training.data import load
from course_lib.training.loops import accuracy, batches, set_seed_of_rank
from course_lib.training.models import checksum

BATCH = 32  # samples a step on each rank


def main() -> None:
    from reporting import result_line  # lesson 12 runs `train` without this folder on the path

    options = parse()
    with process_group() as place:
        where = {"path": Path(options.checkpoint), "device": place.device}
        result = train(**where, steps=options.steps, every=options.every, die_at=options.die_at)
        if place.rank == 0:
            restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
            line = result_line(script="elastic", backend=place.backend, restarts=restarts, **result)
            print(line, flush=True)
        dist.barrier()


def train(
    path: Path, steps: int, every: int, die_at: int = 0, group=None, device: str = "cpu"
) -> dict:
    """Train up to step number ``steps``, from the checkpoint at ``path`` if there is one."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    training, test = load("digits")
    set_seed_of_rank(0, rank)
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    model = nn.Sequential(nn.Flatten(), *layers).to(device)
    sync_initial_weights(model, group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    per_epoch = len(training) // (size * BATCH)
    saved = {"model": model, "optimizer": optimizer, "group": group}

    first = 0
    if path.exists():  # every rank looks; the folder is shared
        place = load_checkpoint(path, **saved)
        first = place.epoch * per_epoch + place.step
    for step in range(first, steps):
        epoch, within = divmod(step, per_epoch)
        batch = list(batches(len(training), size * BATCH, seed=epoch))[within]
        images, labels = (tensor.to(device) for tensor in training[batch[rank::size]])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        if step == die_at > 0 and first == 0 and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)  # without any clean-up
        loss.backward()
        # Not DDP, which lays out its buckets anew after its first step: with three ranks and more
        # a run that begins again would add up in another order than one that does not.
        sync_gradients(model, group=group)
        optimizer.step()
        if (step + 1) % every == 0:
            epoch, within = divmod(step + 1, per_epoch)
            save_checkpoint(path, **saved, epoch=epoch, step=within, sampler_seed=0)
    found = {"ranks": size, "began_with_step": first, "steps": steps}
    return {**found, "accuracy": accuracy(model, test), "checksum": checksum(model)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="file to go on from, if it is there, and to write")
    parser.add_argument("--steps", type=int, default=40, help="how many to train in all (40)")
    parser.add_argument("--every", type=int, default=5, help="steps from save to save (5)")
    parser.add_argument("--die-at", type=int, default=0, metavar="STEP", help="never (0)")
    options = parser.parse_args()
    if options.steps < 1 or options.every < 1 or options.die_at < 0:
        parser.error("--steps and --every must be at least 1, --die-at at least 0")
    return options


if __name__ == "__main__":
    main()
