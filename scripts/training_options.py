"""Shared by the training programs beside this file: options, and the final line."""

import argparse
import platform

import torch
import torch.distributed as dist
from reporting import result_line
from torch import nn

from course_lib.parallel.agreement import agree
from course_lib.parallel.launching import Place, on_terminal
from course_lib.training.data import DataSet, data_root, load_available
from course_lib.training.loops import accuracy
from course_lib.training.models import checksum


def parse(description: str) -> argparse.Namespace:
    """Return the options of a training program from its command line."""
    return checked(training_parser(description))


def training_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all training programs have; a program may add some."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (5)")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many (all epochs)")
    parser.add_argument("--batch", type=int, default=16, help="samples a step on each rank (16)")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate (0.02)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (0)")
    parser.add_argument("--save", metavar="FILE", help="write rank 0's weights there")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="bar (on a terminal)"
    )
    return parser


def checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options from the command line, which ends the program if they make no sense."""
    options = parser.parse_args()
    if options.epochs < 1 or options.steps < 0 or options.batch < 1 or options.seed < 0:
        parser.error("--epochs and --batch must be at least 1, --steps and --seed at least 0")
    if options.progress is None:
        options.progress = on_terminal()
    return options


def load_images() -> tuple[DataSet, DataSet, str]:
    """Return training set, test set and name: MNIST where it is on disk, else the digits.

    Images are 28 by 28 pixels. Every rank calls it.

    Raises:
        ValueError: on all ranks, unless all found the same. mpiexec, for one, passes no variables
            on to other hosts, and ranks that train on different data raise no error by themselves.
    """
    found = load_available("mnist", "digits", size=28)
    train, test, name = found
    what = agree(lambda: (name, len(train), len(test), platform.node(), data_root()))
    for rank, (other, samples, tests, host, root) in enumerate(what):
        if (other, samples, tests) != what[0][:3]:
            raise ValueError(
                f"the ranks have different data: rank 0 on {what[0][3]} {what[0][1]:,} samples of "
                f"{what[0][0]} (below {what[0][4]}), rank {rank} on {host} {samples:,} of {other} "
                f"(below {root}). Have the same files on each host and COURSE_DATA name their "
                "folder there; Open MPI's mpiexec passes it on with -x COURSE_DATA"
            )
    return found


def steps_to_do(options: argparse.Namespace, per_epoch: int) -> int:
    """Return how many steps to train: all epochs, or --steps if those are fewer."""
    if not per_epoch:
        raise SystemExit(f"the data are fewer than one batch of {options.batch} for every rank")
    in_all = per_epoch * options.epochs
    return min(options.steps or in_all, in_all)


def finish(
    script: str,
    options: argparse.Namespace,
    place: Place,
    model: nn.Module,
    test: DataSet,
    data: str,
    steps: int,
    loss: torch.Tensor,
    seconds: float,
) -> None:
    """Print the result as one line of JSON on rank 0; every rank calls it.

    ``loss`` is the mean of the ranks' last losses, ``samples_per_s`` counts all ranks' samples.
    """
    mean_loss = loss.detach().clone()
    dist.all_reduce(mean_loss)
    if place.rank == 0:
        if options.save:
            torch.save(model.state_dict(), options.save)
        line = result_line(
            script=script,
            ranks=place.world_size,
            backend=place.backend,
            data=data,
            steps=steps,
            loss=mean_loss.item() / place.world_size,
            accuracy=accuracy(model, test),
            samples_per_s=steps * options.batch * place.world_size / seconds,
            checksum=checksum(model),
        )
        print(line, flush=True)
    dist.barrier()
