"""A broken invariant is reported on every rank, with parameter, rank and distance."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from course_lib.parallel.invariants import (
    InvariantError,
    assert_matches_serial,
    assert_replicas_equal,
    assert_weights_moved,
    snapshot,
)
from tests.parallel.cases.toys import Toy, error_on_all_ranks
from tests.ranks import case


def case_equal_replicas_pass(rank, size):
    model = Toy(seed=3)
    assert_replicas_equal(model)
    assert_replicas_equal(snapshot(model))
    assert_replicas_equal(DDP(model))
    assert_replicas_equal({})
    # Equal bits of NaN are equal; whether they are welcome is another question.
    assert_replicas_equal({"weight": torch.tensor([float("nan"), 1.0])})


@case(sizes=(2, 3, 4))
def case_one_different_number_on_one_rank_raises(rank, size):
    model = Toy(seed=3)
    with torch.no_grad():
        model.head.weight[1, 2] += 0.25 * (rank == size - 1)
    message = error_on_all_ranks(InvariantError, assert_replicas_equal, model)
    assert (
        f"rank {size - 1}: 'head.weight' differs from rank 0's by up to 0.25, in 1 of 18 numbers"
        in message
    )
    assert "sync_initial_weights" in message


@case(sizes=(2, 4))
def case_difference_in_the_last_bit_raises(rank, size):
    for one, other, words in (
        (1.0, 1.0 + 2**-52, "by up to 2.22e-16, in 1 of 1"),
        (0.0, -0.0, "as numbers, but not in all bits"),
        (1.0, float("nan"), "1 NaN"),
        (1.0, float("inf"), "1 infinite"),
    ):
        value = torch.tensor([other if rank == 1 else one], dtype=torch.float64)
        message = error_on_all_ranks(InvariantError, assert_replicas_equal, {"x": value})
        assert words in message, message
        assert "rank 1: 'x'" in message


@case(sizes=(2, 4))
def case_different_buffers_raise(rank, size):
    model = nn.BatchNorm1d(2)
    model(torch.arange(8.0).view(4, 2) * (rank + 1))
    message = error_on_all_ranks(InvariantError, assert_replicas_equal, model)
    assert "'running_mean'" in message
    assert "convert_sync_batch_norm" in message
    model = Toy(seed=0)
    model.mask[0] ^= rank == 1
    model.count += rank
    message = error_on_all_ranks(InvariantError, assert_replicas_equal, model)
    assert "'mask'" in message
    assert "'count' differs from rank 0's by up to 1" in message


@case(sizes=(2, 3, 4))
def case_different_models_are_reported(rank, size):
    model = nn.Linear(2, 3 if rank == size - 1 else 2)
    message = error_on_all_ranks(InvariantError, assert_replicas_equal, model)
    assert f"'weight' is float32 (2, 2) on rank 0, float32 (3, 2) on rank {size - 1}" in message


@case(sizes=(4,))
def case_long_list_of_differences_is_shortened(rank, size):
    message = error_on_all_ranks(InvariantError, assert_replicas_equal, Toy(seed=rank))
    assert "... and" in message
    assert len(message.splitlines()) == 8


@case(sizes=(3, 4))
def case_subgroup_of_ranks(rank, size):
    group = dist.new_group([0, 1])
    if rank < 2:
        assert_replicas_equal({"x": torch.ones(1)}, group)
    error_on_all_ranks(InvariantError, assert_replicas_equal, {"x": torch.ones(1) * (rank < 2)})


def case_serial_run_is_matched_within_tolerance(rank, size):
    model = Toy(seed=5)
    serial = Toy(seed=5) if rank == 0 else None
    assert_matches_serial(model, serial, rtol=0, atol=0)
    assert_matches_serial(DDP(model), snapshot(model) if rank == 0 else None, rtol=0, atol=0)
    # The tolerance is that of the serial value: |1.5 - 1| > 0.4 x 1.
    value = {"x": torch.tensor([1.5])}
    serial = {"x": torch.tensor([1.0], dtype=torch.float64)}
    assert_matches_serial(value, serial, rtol=0.5, atol=0)
    assert_matches_serial(value, serial, rtol=0, atol=0.5)
    assert_matches_serial(value, serial, rtol=0.25, atol=0.25)
    for rtol, atol in ((0.4, 0), (0, 0.4), (0.2, 0.2)):
        error_on_all_ranks(
            InvariantError, assert_matches_serial, value, serial, rtol=rtol, atol=atol
        )


def case_one_rank_differing_from_the_serial_run_raises(rank, size):
    model = Toy(seed=5)
    with torch.no_grad():
        model.first.bias -= 0.5 * (rank == size - 1)
    message = error_on_all_ranks(
        InvariantError, assert_matches_serial, model, Toy(seed=5), rtol=1e-6, atol=1e-6
    )
    found = "'first.bias' differs from the serial run's by up to 0.5, in 6 of 6 numbers"
    assert f"rank {size - 1}: {found}" in message
    assert "rtol=1e-06" in message
    assert "mean" in message


def case_nan_never_matches(rank, size):
    nan = {"x": torch.tensor([float("nan")])}
    message = error_on_all_ranks(InvariantError, assert_matches_serial, nan, nan, rtol=1, atol=1)
    assert "1 NaN" in message


def case_integers_must_match_exactly(rank, size):
    one, two = {"steps": torch.tensor(1)}, {"steps": torch.tensor(2)}
    error_on_all_ranks(InvariantError, assert_matches_serial, one, two, rtol=9, atol=9)


def case_serial_run_of_another_model_raises(rank, size):
    """Only rank 0 can detect it, and no other rank waits."""
    for serial, words in (
        (nn.Linear(2, 3), "shape (2, 2), in the serial run (3, 2)"),
        (nn.Linear(2, 2, bias=False), "'bias' is in the model but not in the serial"),
        (None, "NoneType"),
    ):
        kind = TypeError if serial is None else InvariantError
        here = serial if rank == 0 else None
        message = error_on_all_ranks(
            kind, assert_matches_serial, nn.Linear(2, 2), here, rtol=0, atol=0
        )
        assert words in message, message


def case_moved_weights_pass(rank, size):
    model = Toy(seed=rank)
    before = snapshot(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in ("frozen", "unused"):
                parameter.view(-1)[0] += 1
    assert_weights_moved(model, before, but=["unused"])
    message = error_on_all_ranks(InvariantError, assert_weights_moved, model, before)
    assert "rank 0: 'unused' is exactly where it was" in message
    assert "frozen" not in message
    assert "optimizer.step" in message
    assert_weights_moved({"x": torch.ones(1)}, {"x": torch.zeros(1)})
    assert_weights_moved({"nothing": torch.ones(0, 2)}, {"nothing": torch.ones(0, 2)})


def case_weights_unchanged_on_one_rank_raise(rank, size):
    model = nn.Linear(2, 2)
    before = snapshot(model)
    with torch.no_grad():
        model.weight += 1
        model.bias += rank != size - 1
    message = error_on_all_ranks(InvariantError, assert_weights_moved, model, before)
    assert f"rank {size - 1}: 'bias' is exactly where it was" in message
    assert "weight'" not in message


def case_weights_moved_to_nan_raise(rank, size):
    model = nn.Linear(2, 2, bias=False)
    before = snapshot(model)
    with torch.no_grad():
        model.weight += 1
        model.weight[0, 0] = float("nan")
    message = error_on_all_ranks(InvariantError, assert_weights_moved, model, before)
    assert "'weight' is not finite (1 NaN)" in message


@case(sizes=(2, 4))
def case_snapshot_missing_a_name_on_one_rank_raises(rank, size):
    model = nn.Linear(2, 2)
    before = {} if rank == 1 else snapshot(model)
    message = error_on_all_ranks(InvariantError, assert_weights_moved, model, before)
    assert "on rank 1: the earlier snapshot has no 'weight'" in message


def case_snapshot_is_a_copy(rank, size):
    model = Toy(seed=0)
    before = snapshot(model)
    assert set(before) == {
        *("first.weight", "first.bias", "second.bias", "frozen", "unused"),
        *("head.weight", "head.bias", "mask", "count", "scale"),
    }
    with torch.no_grad():
        model.head.bias += 1
    assert not torch.equal(before["head.bias"], model.head.bias)
    assert not before["head.bias"].requires_grad
