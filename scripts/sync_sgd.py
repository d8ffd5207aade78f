"""Train LeNet on all ranks by synchronous SGD, written out: average the gradients, every step.

    mpiexec -n 4 python scripts/sync_sgd.py
    torchrun --nproc-per-node 2 scripts/sync_sgd.py --epochs 2 --batch 32

MNIST if it is on disk (COURSE_DATA says where), the course's own digits otherwise. R ranks with
--batch B do what one process does with batch R x B. scripts/ddp.py is the same training by
DistributedDataParallel.

The last line of the output is the result, as JSON. The checksum tells whether two runs ended with
the same bits; --save writes the weights, to look how far apart they are if they did not.
"""

import time

import torch
import torch.nn.functional as F
from reporting import progress
from training_options import finish, load_images, parse, steps_to_do

from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.parallel.initial_weights import sync_initial_weights
from course_lib.parallel.invariants import assert_replicas_equal, assert_weights_moved, snapshot
from course_lib.parallel.launching import process_group
from course_lib.training.loops import batches, set_seed_of_rank
from course_lib.training.models import LeNet


def main() -> None:
    options = parse(__doc__)
    with process_group() as place:
        train, test, data = load_images()
        set_seed_of_rank(options.seed, place.rank)  # so replicas begin apart ...
        model = LeNet().to(place.device)
        sync_initial_weights(model)  # ... and this makes them equal
        optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9)
        before = snapshot(model)

        together = options.batch * place.world_size
        per_epoch = len(train) // together  # a last, smaller batch is left out
        steps = steps_to_do(options, per_epoch)
        start = time.perf_counter()
        order = batches(len(train), together, seed=options.seed)
        for step in progress(range(steps), shown=options.progress and place.rank == 0):
            if step % per_epoch == 0:
                order = batches(len(train), together, seed=options.seed + step // per_epoch)
            mine = next(order)[place.rank :: place.world_size]
            images, labels = (tensor.to(place.device) for tensor in train[mine])
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            sync_gradients(model)
            optimizer.step()
        seconds = time.perf_counter() - start

        assert_replicas_equal(model)
        assert_weights_moved(model, before)
        finish("sync_sgd", options, place, model, test, data, steps, loss, seconds)


if __name__ == "__main__":
    main()
