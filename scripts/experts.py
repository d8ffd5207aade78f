"""Train a small mixture of experts: tokens travel to the ranks that have the experts they need.

    mpiexec -n 4 python scripts/experts.py
    torchrun --nproc-per-node 2 scripts/experts.py --epochs 2 --batch 32

--experts ranks are a team that holds all 8 experts, some on each rank; with more ranks there are
several such teams. Every rank has samples of its own. R ranks with --batch B do what one process
does with batch R x B, however they are grouped.

The last line of the output is the result, as JSON. The checksum tells whether two runs ended with
the same bits; --save writes the weights, to look how far apart they are if they did not.
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mixture import EXPERTS, Classifier
from reporting import progress
from torch.distributed.device_mesh import init_device_mesh
from training_options import checked, finish, load_images, steps_to_do, training_parser

from course_lib.parallel.invariants import assert_replicas_equal
from course_lib.parallel.launching import process_group
from course_lib.training.loops import batches, set_seed


def main() -> None:
    parser = training_parser(__doc__)
    parser.add_argument("--experts", type=int, default=2, help="ranks that share experts (2)")
    options = checked(parser)
    with process_group() as place:
        ranks = options.experts if place.world_size > 1 else 1
        if ranks < 1 or place.world_size % ranks or EXPERTS % ranks:
            raise SystemExit(
                f"--experts {ranks}: it must divide {EXPERTS} experts and {place.world_size} ranks"
            )
        train, test, data = load_images()
        shape = (place.world_size // ranks, ranks)
        mesh = init_device_mesh(place.device.type, shape, mesh_dim_names=("data", "experts"))
        set_seed(options.seed)  # the same on all ranks, each of which keeps its own experts
        model = Classifier(train[0:1][0].numel(), mesh["experts"].get_group()).to(place.device)
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
            images, labels = (part.to(place.device) for part in train[mine])
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            average_gradients(model, mesh["data"].get_group())
            optimizer.step()
        seconds = time.perf_counter() - start

        whole = model.with_all_experts()
        assert_replicas_equal(whole)
        finish("experts", options, place, whole, test, data, steps, loss, seconds)


def average_gradients(model: Classifier, replicas: dist.ProcessGroup) -> None:
    """Sum each gradient over the ranks that have its weight; divide by all that have samples.

    An expert's gradient is a sum over its team already: its tokens came from there.
    """
    for name, parameter in model.named_parameters():
        group = replicas if ".experts." in name else None
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size()


if __name__ == "__main__":
    main()
