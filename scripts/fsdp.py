"""Train a small transformer whose parameters, gradients and momentum are sharded (FSDP2).

    mpiexec -n 4 python scripts/fsdp.py
    torchrun --nproc-per-node 2 scripts/fsdp.py --epochs 2 --batch 32

Each rank stores a part of every parameter, with its gradient and momentum, and gathers a block's
parameters when it computes with them. R ranks with --batch B do what one process does with batch
R x B.

The last line of the output is the result, as JSON. The checksum tells whether two runs ended with
the same bits; --save writes the weights, to look how far apart they are if they did not.
"""

import copy
import time

import torch
import torch.nn.functional as F
from reporting import progress
from sharded_state import whole_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training_options import finish, load_images, parse, steps_to_do

from course_lib.parallel.invariants import assert_replicas_equal, assert_weights_moved, snapshot
from course_lib.parallel.launching import process_group
from course_lib.training.loops import batches, set_seed
from course_lib.training.transformer import Transformer


def main() -> None:
    options = parse(__doc__)
    with process_group() as place:
        train, test, data = load_images()
        set_seed(options.seed)  # the same on all ranks: fully_shard cuts, and sends nothing
        whole = Transformer().to(place.device)
        before = snapshot(whole)
        mesh = init_device_mesh(place.device.type, (place.world_size,))
        model = copy.deepcopy(whole)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)  # one all-gather for each block
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9)

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
            optimizer.step()
        seconds = time.perf_counter() - start

        whole.load_state_dict(whole_state(model))
        assert_replicas_equal(whole)
        # A bias of the keys shifts all scores alike, so its gradient is zero.
        still = [name for name in before if name.endswith("key.bias")]
        assert_weights_moved(whole, before, but=still)
        finish("fsdp", options, place, whole, test, data, steps, loss, seconds)


if __name__ == "__main__":
    main()
