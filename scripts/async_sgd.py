"""Train LeNet by asynchronous SGD: rank 0 is the parameter server, all other ranks are workers.

    mpiexec -n 4 python scripts/async_sgd.py
    mpiexec -n 4 python scripts/async_sgd.py --straggler 0.05
    mpiexec -n 4 python scripts/async_sgd.py --straggler 0.05 --mode synchronous
    mpiexec -n 4 python scripts/async_sgd.py --mode bounded --bound 2 --over-staleness

MNIST if it is on disk (COURSE_DATA says where), the course's own digits otherwise. An epoch is over
when as many samples as the data set has went into updates, from any worker. In the synchronous mode
--backup b uses the first of each round's gradients and drops the last b.

It needs mpiexec, not torchrun: it relies on the course's own backend to receive from any source,
and to go on when a worker is killed. The last line of the output is the result, as JSON.
"""

import argparse

import torch
import torch.nn.functional as F
from reporting import progress, result_line
from training_options import load_images

from course_lib.parallel.launching import on_terminal, process_group
from course_lib.parallel.parameter_server import (
    Asynchronous,
    BoundedStaleness,
    Server,
    Stop,
    Synchronous,
    Worker,
    constant,
    over_staleness,
)
from course_lib.training.loops import accuracy, set_seed
from course_lib.training.models import LeNet, checksum
from course_lib.training.shuffled_batches import shuffled_batches

STRAGGLER = 1  # the rank that --straggler slows down


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = ("asynchronous", "synchronous", "bounded")
    parser.add_argument("--mode", choices=modes, default=modes[0], help=f"({modes[0]})")
    parser.add_argument("--backup", type=int, default=0, help="synchronous: backup workers (0)")
    parser.add_argument("--bound", type=int, default=3, help="bounded: steps ahead (3)")
    parser.add_argument("--over-staleness", action="store_true", help="divide the rate by it")
    parser.add_argument("--straggler", type=float, default=0, help="s more a step on rank 1 (0)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (5)")
    parser.add_argument("--steps", type=int, help="stop after so many updates (all epochs)")
    parser.add_argument("--batch", type=int, default=16, help="samples in a gradient (16)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (0.05)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (0)")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="bar (on a terminal)"
    )
    options = parser.parse_args()
    if min(options.epochs, options.batch) < 1 or min(options.seed, options.straggler) < 0:
        parser.error("--epochs and --batch must be at least 1, --seed and --straggler at least 0")
    if options.progress is None:
        options.progress = on_terminal()
    return options


def serve(options: argparse.Namespace, model: torch.nn.Module, samples: int, workers: int):
    """Run the server on this rank and return its record."""
    if options.mode == "synchronous":
        mode, in_a_round = Synchronous(workers - options.backup), workers - options.backup
    else:
        mode = Asynchronous() if options.mode == "asynchronous" else BoundedStaleness(options.bound)
        in_a_round = 1
    updates = options.steps or -(-options.epochs * samples // (options.batch * in_a_round))
    bar = iter(progress(range(updates), shown=options.progress, unit="update"))
    next(bar)
    server = Server(
        model,
        torch.optim.SGD(model.parameters(), lr=options.rate),  # staleness is momentum enough
        mode=mode,
        rate=over_staleness if options.over_staleness else constant,
        stop=Stop(steps=updates, when=lambda server: next(bar, None) and False),
    )
    record = server.run()
    next(bar, None)
    return record


def main() -> None:
    options = parse()
    with process_group(any_source=True) as place:
        if place.world_size < 2 or place.backend != "mpi4py":
            raise SystemExit("start a server and its workers: mpiexec -n 4 python ...")
        train, test, data = load_images()
        set_seed(options.seed)
        model = LeNet().to(place.device)
        torch.distributed.barrier()  # no rank gets a head start on one that was slower to come up
        if place.rank > 0:
            batches = shuffled_batches(train, options.batch, seed=options.seed + place.rank)
            on_device = (tuple(tensor.to(place.device) for tensor in batch) for batch in batches)
            slowdown = options.straggler if place.rank == STRAGGLER else 0.0
            Worker(model, F.cross_entropy, on_device, slowdown=slowdown).run()
            return
        record = serve(options, model, len(train), place.world_size - 1)
        last = record.losses[-20:]
        result = result_line(
            script="async_sgd",
            ranks=place.world_size,
            backend=place.backend,
            data=data,
            mode=record.mode,
            updates=record.version,
            loss=sum(last) / len(last),
            accuracy=accuracy(model, test),
            samples_per_s=record.samples / record.seconds,
            seconds=record.seconds,
            mean_staleness=sum(record.staleness) / len(record.staleness),
            gradients_by_worker=list(record.steps_by_worker.values()),
            dropped=len(record.dropped),
            checksum=checksum(model),
        )
        print(result, flush=True)


if __name__ == "__main__":
    main()
