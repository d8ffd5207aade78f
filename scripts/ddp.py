"""Train LeNet on all ranks by DistributedDataParallel, fed by a DistributedSampler.

    mpiexec -n 4 python scripts/ddp.py
    torchrun --nproc-per-node 2 scripts/ddp.py --epochs 2 --batch 32

It is the training of scripts/sync_sgd.py with the same samples in the same order: what that
program does by hand, initial weights and gradient averages, DDP does here.

The last line of the output is the result, as JSON. The checksum tells whether two runs ended with
the same bits; --save writes the weights, to look how far apart they are if they did not.
"""

import time

import torch
import torch.nn.functional as F
from reporting import progress
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from training_options import finish, load_images, parse, steps_to_do

from course_lib.parallel.invariants import assert_replicas_equal, assert_weights_moved, snapshot
from course_lib.parallel.launching import process_group
from course_lib.training.loops import set_seed_of_rank
from course_lib.training.models import LeNet


def main() -> None:
    options = parse(__doc__)
    with process_group() as place:
        train, test, data = load_images()
        set_seed_of_rank(options.seed, place.rank)
        gpu = [place.device] if place.device.type == "cuda" else None
        model = DistributedDataParallel(LeNet().to(place.device), device_ids=gpu)
        optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9)
        before = snapshot(model)

        sampler = DistributedSampler(train, seed=options.seed, drop_last=True)
        # Whole batches of indices, because the data set takes them at once.
        loader = DataLoader(
            train, sampler=BatchSampler(sampler, options.batch, drop_last=True), batch_size=None
        )
        steps = steps_to_do(options, len(loader))
        start = time.perf_counter()
        feed = iter(loader)
        for step in progress(range(steps), shown=options.progress and place.rank == 0):
            if step % len(loader) == 0:
                sampler.set_epoch(step // len(loader))  # without it every epoch has one order
                feed = iter(loader)
            images, labels = (tensor.to(place.device) for tensor in next(feed))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - start

        assert_replicas_equal(model)
        assert_weights_moved(model, before)
        finish("ddp", options, place, model.module, test, data, steps, loss, seconds)


if __name__ == "__main__":
    main()
