"""After the sync every replica holds the root's bits, whatever it held before."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from course_lib.parallel.initial_weights import sync_initial_weights
from course_lib.parallel.invariants import assert_replicas_equal, snapshot
from tests.parallel.cases.toys import Toy, error_on_all_ranks
from tests.ranks import case


def case_every_rank_gets_bits_of_root(rank, size):
    for root in range(size):
        model = Toy(seed=10 + rank)
        kept = dict(model.named_parameters())
        sync_initial_weights(model, root=root)
        wanted = Toy(seed=10 + root)
        for name, parameter in model.named_parameters():
            same = torch.equal(parameter, wanted.get_parameter(name))
            assert same, f"{name}"
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, wanted.get_buffer(name)), f"{name}"
        assert all(kept[name] is p for name, p in model.named_parameters())
        assert model.second.weight is model.first.weight


def case_nan_and_negative_zero_are_preserved(rank, size):
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[float("nan"), -0.0], [float("inf"), rank]]))
    sync_initial_weights(model)
    assert_replicas_equal(model)
    assert model.weight[0, 0].isnan()
    assert torch.signbit(model.weight[0, 1])
    assert model.weight[1].tolist() == [float("inf"), 0.0]


def case_half_precision_and_channels_last(rank, size):
    torch.manual_seed(rank)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last), nn.Linear(2, 2).bfloat16()
    )
    sync_initial_weights(model)
    torch.manual_seed(0)
    wanted = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(2, 2).bfloat16())
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(one, other)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def case_model_without_parameters(rank, size):
    sync_initial_weights(nn.ReLU())


@case(sizes=(3, 4))
def case_subgroup_of_ranks(rank, size):
    """The root is numbered within the group."""
    group = dist.new_group([0, 2])
    model = Toy(seed=rank)
    if rank in (0, 2):
        sync_initial_weights(model, root=1, group=group)
    wanted = snapshot(Toy(seed=2 if rank == 0 else rank))
    assert all(torch.equal(t, wanted[name]) for name, t in snapshot(model).items())


@case(sizes=(2, 3, 4))
def case_different_models_are_reported(rank, size):
    last = rank == size - 1
    wider = nn.Linear(4, 6 if last else 5)
    message = error_on_all_ranks(ValueError, sync_initial_weights, wider)
    assert f"'weight' is float32 (5, 4) on rank 0, float32 (6, 4) on rank {size - 1}" in message
    # The same number of bytes in another shape.
    turned = nn.Linear(2, 6, bias=False) if last else nn.Linear(6, 2, bias=False)
    assert "'weight'" in error_on_all_ranks(ValueError, sync_initial_weights, turned)
    more = nn.Sequential(nn.Linear(2, 2), *([nn.Linear(2, 2)] if last else []))
    message = error_on_all_ranks(ValueError, sync_initial_weights, more)
    assert f"'1.weight' is missing on rank 0, float32 (2, 2) on rank {size - 1}" in message
    other = nn.Linear(2, 2).to(torch.float64 if last else torch.float32)
    assert "float64 (2, 2) on rank" in error_on_all_ranks(ValueError, sync_initial_weights, other)


@case(sizes=(2, 4))
def case_wrong_arguments_on_one_rank(rank, size):
    """The other ranks raise instead of waiting."""
    wrong = "no model" if rank == 1 else nn.Linear(2, 2)
    message = error_on_all_ranks(TypeError, sync_initial_weights, wrong)
    assert message.startswith("on rank 1: a model")
    assert message.endswith("not str")
    error_on_all_ranks(ValueError, sync_initial_weights, nn.Linear(2, 2), root=size)
    message = error_on_all_ranks(ValueError, sync_initial_weights, nn.Linear(2, 2), root=rank)
    assert "same root" in message
