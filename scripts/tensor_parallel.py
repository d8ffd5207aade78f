"""Train a small transformer in slices: tensor parallel groups of ranks, data parallel beside.

    mpiexec -n 4 python scripts/tensor_parallel.py
    torchrun --nproc-per-node 2 scripts/tensor_parallel.py --epochs 2 --batch 32

--tensor ranks hold one slice each of every block and see the same samples; with more ranks there
are several such groups, which average their gradients. R ranks with --batch B do what one process
does with batch R x B, however they are grouped.

The last line of the output is the result, as JSON. The checksum tells whether two runs ended with
the same bits; --save writes the weights, to look how far apart they are if they did not.
"""

import copy
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from reporting import progress
from sharded_state import whole_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from training_options import checked, finish, load_images, steps_to_do, training_parser

from course_lib.parallel.invariants import assert_replicas_equal, assert_weights_moved, snapshot
from course_lib.parallel.launching import process_group
from course_lib.training.loops import batches, set_seed
from course_lib.training.transformer import Transformer

HEADS = 4
COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.up")
ROWS = ("attention.out", "mlp.down")


def main() -> None:
    parser = training_parser(__doc__)
    parser.add_argument("--tensor", type=int, default=2, help="ranks that share a block (2)")
    options = checked(parser)
    with process_group() as place:
        tensor = options.tensor if place.world_size > 1 else 1
        if tensor < 1 or place.world_size % tensor or HEADS % tensor:
            raise SystemExit(
                f"--tensor {tensor}: it must divide the {HEADS} heads and {place.world_size} ranks"
            )
        train, test, data = load_images()
        set_seed(options.seed)  # the same on all ranks: cutting sends nothing
        whole = Transformer(heads=HEADS).to(place.device)
        before = snapshot(whole)
        shape = (place.world_size // tensor, tensor)
        mesh = init_device_mesh(place.device.type, shape, mesh_dim_names=("data", "tensor"))
        model = copy.deepcopy(whole)
        for block in model.blocks:
            plan = {name: ColwiseParallel() for name in COLUMNS}
            plan |= {name: RowwiseParallel() for name in ROWS}
            parallelize_module(block, mesh["tensor"], plan)
        # foreach, the default on GPUs, refuses parameters of which some are DTensors.
        optimizer = torch.optim.SGD(
            model.parameters(), lr=options.rate, momentum=0.9, foreach=False
        )

        together = options.batch * place.world_size
        per_epoch = len(train) // together  # a last, smaller batch is left out
        steps = steps_to_do(options, per_epoch)
        start = time.perf_counter()
        order = batches(len(train), together, seed=options.seed)
        for step in progress(range(steps), shown=options.progress and place.rank == 0):
            if step % per_epoch == 0:
                order = batches(len(train), together, seed=options.seed + step // per_epoch)
            mine = next(order)[mesh["data"].get_local_rank() :: shape[0]]
            images, labels = (part.to(place.device) for part in train[mine])
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            average_gradients(model, mesh["data"].get_group())
            optimizer.step()
        seconds = time.perf_counter() - start

        whole.load_state_dict(whole_state(model))
        assert_replicas_equal(whole)
        # A bias of the keys shifts all scores alike, so its gradient is zero.
        still = [name for name in before if name.endswith("key.bias")]
        assert_weights_moved(whole, before, but=still)
        finish("tensor_parallel", options, place, whole, test, data, steps, loss, seconds)


def average_gradients(model: torch.nn.Module, group: dist.ProcessGroup) -> None:
    """Average over the ranks that hold the same slices, as lesson 05 does over all."""
    for parameter in model.parameters():
        gradient = parameter.grad
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        dist.all_reduce(local, group=group)
        local /= dist.get_world_size(group)


if __name__ == "__main__":
    main()
