"""After catching up, replicas hold the whole state of the rank that was furthest on."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rank_by_rank.lesson_12.survivors import catch_up, unwrapped
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.parallel.invariants import assert_replicas_equal


def trained(steps):
    model = nn.Linear(3, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    for step in range(steps):
        step_on(model, optimizer, step)
    return model, optimizer


def step_on(model, optimizer, step):
    optimizer.zero_grad()
    model(torch.full((1, 3), 1.0 + step)).sum().backward()
    optimizer.step()


def case_catch_up_copies_weights_and_momentum(rank, size):
    for ahead in range(size):
        for behind, furthest in ((0, 1), (3, 4)):  # at 0 there is no momentum yet
            steps = furthest if rank == ahead else behind
            steps = furthest if size == 1 else steps
            model, optimizer = trained(steps)
            assert catch_up(model, optimizer, steps) == furthest
            step_on(model, optimizer, furthest)  # shows in the weights what the momentum is
            wanted = trained(furthest + 1)[0]
            assert_replicas_equal(model)
            assert torch.equal(model.weight, wanted.weight)


def case_catch_up_in_a_subgroup(rank, size):
    living = [r for r in range(size) if r != 0] or [0]
    group = dist.new_group(living)
    if rank in living:
        steps = 2 if rank == living[-1] else 1
        model, optimizer = trained(steps)
        assert catch_up(model, optimizer, steps, group) == 2
        assert torch.equal(model.weight, trained(2)[0].weight)


def case_model_is_rewrapped_after_a_failed_backward(rank, size):
    """If the old wrapper stayed alive, its hooks would raise in the new one's backward."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    broken = [True]

    def fail(gradient):
        if broken[0]:
            raise ValueError("no gradient")

    model[0].weight.register_hook(fail)
    old = DistributedDataParallel(model)
    with pytest.raises(ValueError, match="no gradient"):
        old(torch.ones(1, 3)).sum().backward()
    broken[0] = False
    new = DistributedDataParallel(unwrapped(old))
    for _ in range(2):
        new(torch.ones(1, 3)).sum().backward()
    assert old is not None  # it lives
