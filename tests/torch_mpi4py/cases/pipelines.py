"""Torch's pipeline schedules give the losses and gradients of one process."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from tests.torch_mpi4py.serial import TOLERANCE

WIDTH = 8
MICROBATCHES = 8


def stages(count: int) -> list[nn.Module]:
    torch.manual_seed(5)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(count)]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(torch.get_default_device()).manual_seed(step)
    inputs, targets = torch.randn(2, 2 * MICROBATCHES, WIDTH, generator=generator).double()
    return inputs, targets


def check(rank: int, size: int, schedule_class, stages_per_rank: int = 1) -> None:
    """Train two steps and compare each own stage with the serial network."""
    count = size * stages_per_rank
    reference = stages(count)
    whole = nn.Sequential(*reference)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.5)
    expected_losses = []
    for step in range(2):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        losses = [
            nn.functional.mse_loss(whole(x), y)
            for x, y in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True)
        ]
        (sum(losses) / MICROBATCHES).backward()
        expected_losses.append(torch.stack([loss.detach() for loss in losses]))
        optimizer.step()

    indices = [rank + size * i for i in range(stages_per_rank)]
    own = {index: stages(count)[index] for index in indices}
    pipeline = [
        PipelineStage(own[index], index, count, torch.get_default_device()) for index in indices
    ]
    schedule = schedule_class(
        pipeline[0] if stages_per_rank == 1 else pipeline,
        n_microbatches=MICROBATCHES,
        loss_fn=nn.functional.mse_loss,
    )
    parameters = [p for module in own.values() for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    for step in range(2):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        losses = []
        arguments = (inputs,) if 0 in own else ()
        if count - 1 in own:
            schedule.step(*arguments, target=targets, losses=losses)
            torch.testing.assert_close(
                torch.stack(losses).detach(), expected_losses[step], rtol=1e-10, atol=1e-10
            )
        else:
            schedule.step(*arguments)
        optimizer.step()
    for index, module in own.items():
        for found, wanted in zip(module.parameters(), reference[index].parameters(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def case_gpipe(rank, size):
    check(rank, size, ScheduleGPipe)


def case_1f1b(rank, size):
    check(rank, size, Schedule1F1B)


def case_interleaved_1f1b(rank, size):
    check(rank, size, ScheduleInterleaved1F1B, stages_per_rank=2)


def case_interleaved_zero_bubble(rank, size):
    check(rank, size, ScheduleInterleavedZeroBubble, stages_per_rank=2)
