"""With averaged gradients R ranks do what one process does with R batches."""

from __future__ import annotations

import gc
import weakref

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_by_rank.lesson_12.survivors import catch_up
from torch import nn
from torch_mpi4py import MismatchError

from course_lib.parallel.batch_norm import convert_sync_batch_norm
from course_lib.parallel.bucketed_sync import BucketedGradientSync
from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.parallel.initial_weights import sync_initial_weights
from course_lib.parallel.invariants import (
    assert_matches_serial,
    assert_replicas_equal,
    assert_weights_moved,
    snapshot,
)
from course_lib.training.data import load_available
from course_lib.training.loops import batches
from course_lib.training.models import LeNet
from tests.parallel.cases.toys import Toy, backward, error_on_all_ranks, samples, sgd
from tests.ranks import case

STEPS = 50
BATCH = 4


def case_gradients_are_exact_means(rank, size):
    """Small integers are exact, so the comparison is too."""
    model = nn.Linear(3, 2)
    model.weight.grad = torch.arange(6.0).view(2, 3) * size + rank * 2
    model.bias.grad = torch.tensor([1.0, float(rank * 2)])
    weight, bias = model.weight.grad, model.bias.grad
    sync_gradients(model)
    assert torch.equal(weight, torch.arange(6.0).view(2, 3) * size + (size - 1))
    assert torch.equal(bias, torch.tensor([1.0, float(size - 1)]))


def case_gradients_are_exact_sums(rank, size):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double(), nn.Linear(2, 2))
    for parameter in model[:2].parameters():
        parameter.grad = torch.full_like(parameter, 1.0 + rank)
    sync_gradients(model, None, "sum")
    for parameter in model[:2].parameters():
        assert (parameter.grad == size * (size + 1) / 2).all()
    assert model[2].weight.grad is None
    assert "not 'product'" in error_on_all_ranks(
        ValueError, sync_gradients, model, reduction="product"
    )


def case_fifty_steps_equal_one_process(rank, size):
    """Rounding is 1e-16 relative a step and training is contractive: 1e-12 is ample room."""
    model, serial = Toy(seed=1 + rank), Toy(seed=1)
    sync_initial_weights(model)
    optimizer, other = sgd(model), sgd(serial)
    before = snapshot(model)
    for step in range(STEPS):
        inputs, labels = samples(BATCH * size, seed=step)
        backward(model, inputs[rank::size], labels[rank::size])
        sync_gradients(model)
        optimizer.step()
        backward(serial, inputs, labels)
        other.step()
    assert_replicas_equal(model)
    assert_matches_serial(model, serial, rtol=0, atol=1e-12)
    assert_weights_moved(model, before, but=["unused"])
    assert torch.equal(model.unused, before["unused"])
    assert model.unused.grad is None
    assert model.frozen.grad is None


@case(seconds=60)
def case_lenet_on_images_equals_one_process(rank, size):
    train, _, _ = load_available("mnist", "digits", size=28)
    torch.manual_seed(rank)
    model = LeNet().double()
    sync_initial_weights(model)
    torch.manual_seed(0)
    serial = LeNet().double()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, serial)]
    feed = batches(len(train), BATCH * size, seed=0)
    for _, chosen in zip(range(STEPS), feed, strict=False):
        for one, part, optimizer in zip(
            (model, serial), (chosen[rank::size], chosen), optimizers, strict=True
        ):
            images, labels = train[part]
            one.zero_grad()
            F.cross_entropy(one(images.double()), labels).backward()
            if one is model:
                sync_gradients(model)
            optimizer.step()
    assert_replicas_equal(model)
    assert_matches_serial(model, serial, rtol=0, atol=1e-10)


def case_parameter_unused_on_some_ranks_counts_as_zeros(rank, size):
    model = nn.ModuleDict({"even": nn.Linear(2, 2), "odd": nn.Linear(2, 2)})
    used = model["even" if rank % 2 == 0 else "odd"]
    used.weight.grad = torch.full((2, 2), float(size))
    used.bias.grad = torch.full((2,), float(2 * size))
    sync_gradients(model)
    evens, odds = (size + 1) // 2, size // 2
    assert (model["even"].weight.grad == evens).all()
    assert (model["even"].bias.grad == 2 * evens).all()
    if odds:
        assert (model["odd"].weight.grad == odds).all()
    else:
        assert model["odd"].weight.grad is None


def case_gradient_missing_on_all_ranks_stays_none(rank, size):
    model = Toy(seed=0)
    sync_gradients(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    sync_gradients(nn.ReLU())


def case_tied_parameter_is_averaged_once(rank, size):
    model = Toy(seed=0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1.0 + rank)
    sync_gradients(model)
    assert (model.first.weight.grad == (size + 1) / 2).all()


def case_frozen_parameter_keeps_its_gradient(rank, size):
    """Frozen after some steps, it still carries the gradient of the last one."""
    model = nn.Linear(2, 2)
    model.weight.grad = torch.full((2, 2), float(rank))
    model.bias.grad = torch.full((2,), float(2 * rank))
    model.weight.requires_grad_(False)
    sync_gradients(model)
    assert (model.weight.grad == rank).all()
    assert (model.bias.grad == size - 1).all()


def case_several_dtypes_and_strides(rank, size):
    model = nn.Sequential(
        nn.Linear(2, 2).bfloat16(),
        nn.Linear(2, 3).double(),
        nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last),
        nn.Linear(2, 2).half(),
    )
    for parameter in model.parameters():
        numbers = torch.arange(parameter.numel()).view(parameter.shape) % 7
        parameter.grad = (numbers + 2 * rank).to(parameter)
    model[2].weight.grad = model[2].weight.grad.to(memory_format=torch.channels_last)
    sync_gradients(model)
    for parameter in model.parameters():
        numbers = torch.arange(parameter.numel()).view(parameter.shape) % 7
        assert torch.equal(parameter.grad, (numbers + size - 1).to(parameter))


def case_model_may_change_between_calls(rank, size):
    """What is kept from call to call must notice."""

    def check(model, reduction="mean"):
        for parameter in model.parameters():
            numbers = torch.arange(parameter.numel()).view(parameter.shape) % 7
            parameter.grad = (numbers + 2 * rank).to(parameter)
        sync_gradients(model, None, reduction)
        for parameter in model.parameters():
            mine = parameter.grad
            numbers = torch.arange(parameter.numel()).view(parameter.shape) % 7
            total = numbers * size + size * (size - 1)
            expected = numbers + 2 * rank if not parameter.requires_grad else total
            if parameter.requires_grad and reduction == "mean":
                expected = total / size
            assert torch.equal(mine, expected.to(parameter))

    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    check(model)
    check(model, "sum")
    check(model)
    model[0].weight.requires_grad_(False)
    check(model)
    model[0].weight.requires_grad_(True)
    check(model)
    model.double()  # the same parameters, of another dtype
    check(model)
    model[2].weight = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    check(model)
    model[2].bias = None
    check(model)
    model.append(nn.Linear(2, 4))
    check(model)
    model[0].weight.data = torch.ones(3, 3)  # another shape, and dtype
    check(model)
    model[2].weight = model[0].weight  # tied
    check(model)
    del model[3]
    check(model)


def case_gradients_of_an_earlier_call_are_not_overwritten(rank, size):
    model = nn.Linear(3, 2)
    model.weight.grad = torch.full((2, 3), 1.0 + rank)
    sync_gradients(model)
    kept = model.weight.grad
    model.zero_grad()
    model.weight.grad = torch.full((2, 3), 10.0)
    sync_gradients(model)
    assert (kept == (size + 1) / 2).all()
    assert (model.weight.grad == 10).all()


def case_failed_call_does_not_reuse_its_buffer(rank, size):
    """A call that was given up may still write to the memory it was given."""
    given = []
    all_reduce = dist.all_reduce

    def failing(tensor, *arguments, **options):
        given.append(tensor)
        raise RuntimeError("given up")

    def working(tensor, *arguments, **options):
        given.append(tensor)
        return all_reduce(tensor, *arguments, **options)

    model = nn.Linear(3, 2, bias=False)
    model.weight.grad = torch.full((2, 3), 1.0 + rank)
    given.clear()
    for patched in (working, working, failing, working):
        dist.all_reduce, told = patched, ""
        try:
            sync_gradients(model)
        except RuntimeError as error:
            told = str(error)
        finally:
            dist.all_reduce = all_reduce
        assert told == ("given up" if patched is failing else "")
    first, second, failed, after = [tensor.data_ptr() for tensor in given]
    assert first == second == failed != after
    assert (model.weight.grad == (size + 1) / 2).all()


def case_deleted_model_leaves_no_cached_state(rank, size):
    model = nn.Linear(3, 2)
    model.weight.grad = torch.ones(2, 3)
    sync_gradients(model)
    parameter = weakref.ref(model.weight)
    del model
    gc.collect()
    assert parameter() is None


def case_models_comparing_by_value_are_distinguished(rank, size):
    class Valued(nn.Linear):
        def __hash__(self):
            return 1

        def __eq__(self, other):
            return type(self) is type(other)

    first, second = Valued(2, 2), Valued(2, 2)
    for model, value in ((first, 1.0), (second, 2.0), (first, 3.0)):
        model.weight.grad = torch.full((2, 2), value)
        sync_gradients(model)
        assert (model.weight.grad == value).all()
    assert (second.weight.grad == 2).all()


@case(sizes=(2, 3, 4))
def case_one_message_for_all_parameters(rank, size):
    calls = []
    all_reduce = dist.all_reduce

    def counted(tensor, *arguments, **options):
        calls.append(tensor.numel())
        return all_reduce(tensor, *arguments, **options)

    model = LeNet()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    dist.all_reduce = counted
    try:
        sync_gradients(model)
    finally:
        dist.all_reduce = all_reduce
    extra = 10 + 2 * size  # a presence flag per parameter, a fingerprint per rank
    assert calls == [61_706 + extra]


@case(sizes=(2, 3, 4))
def case_sparse_gradient_raises_on_all_ranks(rank, size):
    embedding = nn.Embedding(4, 2, sparse=rank == 1)
    model = nn.Sequential(embedding, nn.Linear(2, 2))
    model(torch.tensor([1, 2])).sum().backward()
    message = error_on_all_ranks(TypeError, sync_gradients, model)
    assert "'0.weight'" in message
    assert "sparse=False" in message


@case(sizes=(2, 3, 4))
def case_different_models_raise_on_all_ranks(rank, size):
    last = rank == size - 1
    turned = nn.Linear(2, 6, bias=False) if last else nn.Linear(6, 2, bias=False)
    turned.weight.grad = torch.ones_like(turned.weight)
    message = error_on_all_ranks(ValueError, sync_gradients, turned)
    assert f"rank {size - 1} differ from rank 0's" in message
    longer = nn.Linear(2, 7 if last else 6)
    error_on_all_ranks(MismatchError, sync_gradients, longer)
    partly_frozen = nn.Linear(6, 6)
    partly_frozen.bias.requires_grad_(not last)
    error_on_all_ranks((MismatchError, ValueError), sync_gradients, partly_frozen)
    # What travels first has one size, so the ranks see that something comes after it.
    more = nn.Linear(2, 2)
    if last:
        more.factor = nn.Parameter(torch.ones(1, dtype=torch.float64))
    message = error_on_all_ranks(ValueError, sync_gradients, more)
    assert f"rank {size - 1} differ from rank 0's" in message
    frozen = nn.Linear(6, 6).requires_grad_(not last)
    assert "all_reduce" in error_on_all_ranks(MismatchError, sync_gradients, frozen)
    reduction = "sum" if last else "mean"
    message = error_on_all_ranks(ValueError, sync_gradients, nn.Linear(2, 2), reduction=reduction)
    assert "its reduction differs" in message
    message = error_on_all_ranks(ValueError, sync_gradients, nn.Linear(2, 2), None, f"mean{rank}")
    assert "its reduction differs" in message


@case(sizes=(2, 4))
def case_rank_outside_the_group_raises(rank, size):
    group = dist.new_group([0])
    if rank:
        model = nn.Linear(2, 2)
        before = snapshot(model)
        for call in (
            lambda: sync_gradients(model, group),
            lambda: BucketedGradientSync(model, group),
            lambda: sync_initial_weights(model, group=group),
            lambda: assert_replicas_equal(model, group),
            lambda: assert_weights_moved(model, before, group),
            lambda: assert_matches_serial(model, model, rtol=0, atol=0, group=group),
            lambda: catch_up(model, sgd(model), 0, group),
            lambda: convert_sync_batch_norm(nn.BatchNorm1d(2), group)(torch.ones(2, 2)),
        ):
            told = ""
            try:
                call()
            except ValueError as error:
                told = str(error)
            assert f"rank {rank} is not in this group" in told, told


@case(sizes=(2, 4))
def case_subgroup_of_ranks(rank, size):
    group = dist.new_group([size - 1])
    model = nn.Linear(2, 2)
    model.weight.grad = torch.full((2, 2), float(rank))
    if rank == size - 1:
        sync_gradients(model, group)
    assert (model.weight.grad == rank).all()


def case_nan_reaches_every_rank(rank, size):
    """A NaN on one rank must not be lost: all replicas have to stay equal."""
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    if rank == size - 1:
        model.weight.grad[0, 0] = float("nan")
    sync_gradients(model)
    assert model.weight.grad[0, 0].isnan()
    assert (model.weight.grad[1] == 1).all()
    assert (model.bias.grad == 1).all()
