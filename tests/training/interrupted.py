"""A training run whose every step depends on everything a checkpoint must hold."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_by_rank.lesson_05.schedules import warm_up
from torch import nn

from course_lib.parallel.batch_norm import convert_sync_batch_norm
from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.training.checkpoint import load_checkpoint, save_checkpoint
from course_lib.training.loops import batches, set_seed_of_rank
from course_lib.training.models import checksum

SAMPLES = 40
BATCH = 8  # five steps an epoch
STEPS = 13
SEED = 3


def start(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, object]:
    """Return model, optimizer and scheduler; replicas are equal, their generators are not."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )
    model = convert_sync_batch_norm(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warm_up(step, 10, 0.01, 0.001) / 0.01
    )
    return model, optimizer, scheduler


def run(first: int, last: int, model, optimizer, scheduler) -> None:
    """Train from step ``first`` to before step ``last``, all generators in use.

    On one thread: sums depend on the number of threads, and the tests before may have changed it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _run(first, last, model, optimizer, scheduler)
    finally:
        torch.set_num_threads(threads)


def _run(first: int, last: int, model, optimizer, scheduler) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    targets = inputs[:, :2].square()
    per_epoch = SAMPLES // BATCH
    step = first
    while step < last:
        epoch = step // per_epoch
        for chosen in batches(SAMPLES, BATCH, seed=SEED + epoch, first=step % per_epoch):
            noise = random.random() + numpy.random.rand() + torch.rand(())
            optimizer.zero_grad()
            F.mse_loss(model(inputs[chosen] * noise), targets[chosen]).backward()
            if dist.is_initialized():
                sync_gradients(model)
            optimizer.step()
            scheduler.step()
            step += 1
            if step == last:
                return


def uninterrupted(rank: int = 0) -> str:
    """Return the checksum of all steps in one go."""
    parts = start(seed=1)
    set_seed_of_rank(SEED, rank)
    run(0, STEPS, *parts)
    return checksum(parts[0])


def save_after(steps: int, path: Path, rank: int = 0) -> None:
    """Train so many steps and write a checkpoint."""
    model, optimizer, scheduler = start(seed=1)
    set_seed_of_rank(SEED, rank)
    run(0, steps, model, optimizer, scheduler)
    epoch, step = divmod(steps, SAMPLES // BATCH)
    save_checkpoint(
        path,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        epoch=epoch,
        step=step,
        sampler_seed=SEED,
        extra={"losses": [0.5, 0.25], "best": torch.tensor(0.25)},
    )


def resume(path: Path) -> str:
    """Return the checksum after the remaining steps, from objects and generators made anew."""
    model, optimizer, scheduler = start(seed=99)
    set_seed_of_rank(99, 99)
    found = load_checkpoint(path, model=model, optimizer=optimizer, scheduler=scheduler)
    assert found.sampler_seed == SEED
    assert found.extra["losses"] == [0.5, 0.25]
    assert found.extra["best"] == 0.25
    run(found.epoch * (SAMPLES // BATCH) + found.step, STEPS, model, optimizer, scheduler)
    return checksum(model)
