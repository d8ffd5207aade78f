"""Train a small transformer in stages: each rank has some of its blocks.

    mpiexec -n 4 python scripts/pipeline.py
    torchrun --nproc-per-node 2 scripts/pipeline.py --schedule gpipe --micro-batches 4

All ranks see one batch together, of --batch samples times the number of ranks, cut into
--micro-batches. R ranks do what one process does with the whole batch, by either schedule.

The last line of the output is the result, as JSON. The checksum tells whether two runs ended with
the same bits; --save writes the weights, to look how far apart they are if they did not.
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from reporting import progress
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from training_options import checked, finish, load_images, steps_to_do, training_parser

from course_lib.parallel.agreement import exchange
from course_lib.parallel.invariants import assert_replicas_equal, assert_weights_moved, snapshot
from course_lib.parallel.launching import process_group
from course_lib.training.loops import batches, set_seed
from course_lib.training.transformer import Transformer

DEPTH = 8
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Stage(nn.Module):
    """Some blocks of a model, with its own parameters; the ends embed and classify."""

    def __init__(self, model: Transformer, number: int, stages: int) -> None:
        super().__init__()
        self.first, self.last = number == 0, number == stages - 1
        self.blocks = model.blocks[DEPTH * number // stages : DEPTH * (number + 1) // stages]
        if self.first:
            self.embedding, self.position = model.embedding, model.position
        if self.last:
            self.norm, self.classifier = model.norm, model.classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first:
            x = self.embedding(x.squeeze(1)) + self.position
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x).mean(dim=1)) if self.last else x


def main() -> None:
    parser = training_parser(__doc__)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b", help="which (1f1b)")
    parser.add_argument("--micro-batches", type=int, default=8, help="parts of a batch (8)")
    options = checked(parser)
    with process_group() as place:
        together, ranks = options.batch * place.world_size, place.world_size
        if options.micro_batches < ranks or together % options.micro_batches or ranks > DEPTH:
            raise SystemExit(
                f"--micro-batches {options.micro_batches}: at least one for each of {ranks} ranks, "
                f"and a divisor of the {together} samples of a step; at most {DEPTH} ranks"
            )
        train, test, data = load_images()
        set_seed(options.seed)  # the same on all ranks: cutting sends nothing
        whole = Transformer(depth=DEPTH).to(place.device)
        before = snapshot(whole)
        own = Stage(whole, place.rank, ranks)
        stage = PipelineStage(own, place.rank, ranks, place.device)
        schedule = SCHEDULES[options.schedule](
            stage, n_microbatches=options.micro_batches, loss_fn=F.cross_entropy
        )
        optimizer = torch.optim.SGD(own.parameters(), lr=options.rate, momentum=0.9)

        per_epoch = len(train) // together  # a last, smaller batch is left out
        steps = steps_to_do(options, per_epoch)
        start = time.perf_counter()
        order = batches(len(train), together, seed=options.seed)
        loss = torch.zeros((), device=place.device)
        for step in progress(range(steps), shown=options.progress and place.rank == 0):
            if step % per_epoch == 0:
                order = batches(len(train), together, seed=options.seed + step // per_epoch)
            images, labels = (part.to(place.device) for part in train[next(order)])
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            inputs = (images,) if own.first else ()
            schedule.step(*inputs, target=labels if own.last else None, losses=losses)
            loss = torch.stack(losses).mean().detach() if own.last else loss
            optimizer.step()
        seconds = time.perf_counter() - start

        names = {parameter: name for name, parameter in whole.named_parameters()}
        parts = exchange({names[p]: p.detach().cpu() for p in own.parameters()})
        whole.load_state_dict({name: p for part in parts for name, p in part.items()})
        assert_replicas_equal(whole)
        # A bias of the keys shifts all scores alike, so its gradient is zero.
        assert_weights_moved(whole, before, but=[n for n in before if n.endswith("key.bias")])
        dist.broadcast(loss, src=ranks - 1)  # only the last stage has one
        finish("pipeline", options, place, whole, test, data, steps, loss, seconds)


if __name__ == "__main__":
    main()
