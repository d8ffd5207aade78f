"""Buckets change when gradients travel, and nothing about what arrives."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from course_lib.parallel.bucketed_sync import BucketedGradientSync
from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.parallel.initial_weights import sync_initial_weights
from course_lib.parallel.invariants import (
    assert_matches_serial,
    assert_replicas_equal,
    assert_weights_moved,
    snapshot,
)
from tests.parallel.cases.toys import Toy, backward, error_on_all_ranks, samples
from tests.ranks import case

BUCKET_BYTES = (1, 300, 25 * 2**20)  # one parameter each, a few, all
STEPS = 20
BATCH = 4


def all_kinds(model, **options):
    for bucket_bytes in BUCKET_BYTES:
        for overlap in (True, False):
            yield BucketedGradientSync(model, None, bucket_bytes, overlap, **options)


@torch.no_grad()
def descend(model: nn.Module, velocity: dict[str, torch.Tensor]) -> None:
    """Do a step with momentum; an optimizer of torch's takes a second to import."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            velocity[name] = 0.9 * velocity.get(name, 0) + parameter.grad
            parameter -= 0.1 * velocity[name]


def case_steps_equal_one_process(rank, size):
    """Float64 rounds at 1e-16 a step and training is contractive: 1e-12 is ample room."""
    for bucket_bytes in BUCKET_BYTES:
        for overlap in (True, False):
            model, serial = Toy(seed=1 + rank), Toy(seed=1)
            sync_initial_weights(model)
            sync = BucketedGradientSync(model, None, bucket_bytes, overlap)
            velocity, other = {}, {}
            before = snapshot(model)
            for step in range(STEPS):
                inputs, labels = samples(BATCH * size, seed=step)
                with sync:
                    backward(model, inputs[rank::size], labels[rank::size])
                descend(model, velocity)
                backward(serial, inputs, labels)
                descend(serial, other)
            assert_replicas_equal(model)
            assert_matches_serial(model, serial, rtol=0, atol=1e-12)
            assert_weights_moved(model, before, but=["unused"])
            assert model.unused.grad is None
            assert model.frozen.grad is None


def case_gradients_equal_sync_gradients(rank, size):
    """With up to two ranks there is one order of adding; with more, p additions round."""
    inputs, labels = samples(BATCH)
    for sync in all_kinds(model := Toy(seed=0)):
        reference = copy.deepcopy(model)
        backward(reference, inputs + rank, labels)
        sync_gradients(reference)
        with sync:
            backward(model, inputs + rank, labels)
        for one, two in zip(model.parameters(), reference.parameters(), strict=True):
            if two.grad is None:
                assert one.grad is None
            elif size <= 2:
                assert torch.equal(one.grad, two.grad)
            else:
                assert torch.allclose(one.grad, two.grad, rtol=1e-14, atol=1e-14)
        sync.remove()


@case(sizes=(2,))
def case_gradients_equal_ddp(rank, size):
    model = Toy(seed=0)
    reference = DDP(copy.deepcopy(model), find_unused_parameters=True)
    sync = BucketedGradientSync(model, bucket_bytes=300)
    for step in range(3):
        inputs, labels = samples(BATCH, seed=10 * step + rank)
        backward(reference, inputs, labels)
        with sync:
            backward(model, inputs, labels)
        pairs = zip(model.parameters(), reference.module.parameters(), strict=True)
        for one, two in pairs:
            if two.grad is not None:
                assert torch.allclose(one.grad, two.grad, rtol=1e-14, atol=1e-14)


def case_means_and_sums_are_exact(rank, size):
    for reduction, factor in (("mean", 1), ("sum", size)):
        model = nn.Linear(3, 2)
        for sync in all_kinds(model, reduction=reduction):
            model.weight.grad = torch.arange(6.0).view(2, 3) * size + rank * 2
            model.bias.grad = torch.tensor([1.0, float(rank * 2)])
            kept = model.weight.grad
            sync.finish()
            expected = torch.arange(6.0).view(2, 3) * size + (size - 1)
            assert torch.equal(kept, expected * factor)
            assert torch.equal(model.bias.grad, torch.tensor([1.0, size - 1.0]) * factor)
            sync.remove()


class Branches(nn.Module):
    """Parts that ranks use or not; the last bucket's layer is always used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.branches = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, inputs: torch.Tensor, used: list[int]) -> torch.Tensor:
        hidden = self.first(inputs)
        return sum(self.branches[index](hidden).sum() for index in used)


def case_ranks_using_different_parts_do_not_hang(rank, size):
    """A rank that is complete early must not send a bucket that another sends later."""
    for sync in all_kinds(model := Branches()):
        for turn in range(4):
            model.zero_grad()
            used = [(rank + turn) % 4, 2] if rank % 2 else [3, 0]
            reference = copy.deepcopy(model)
            reference(torch.ones(1, 2), used).backward()
            sync_gradients(reference)
            with sync:
                model(torch.ones(1, 2), used).backward()
            for one, two in zip(model.parameters(), reference.parameters(), strict=True):
                assert (one.grad is None) == (two.grad is None)
                assert one.grad is None or torch.equal(one.grad, two.grad)
        sync.remove()


def case_one_rank_without_backward_takes_part(rank, size):
    model = nn.Linear(2, 2)
    for sync in all_kinds(model):
        model.zero_grad()
        if rank == 0:
            model(torch.full((1, 2), float(size))).sum().backward()
        sync.finish()
        assert torch.equal(model.weight.grad, torch.ones(2, 2))
        sync.remove()


def case_accumulated_gradients_are_sent_once(rank, size):
    for sync in all_kinds(model := Toy(seed=0)):
        model.zero_grad()
        parts = [samples(BATCH, seed=10 * rank + turn) for turn in range(3)]
        reference = copy.deepcopy(model)
        for inputs, labels in parts:
            F.cross_entropy(reference(inputs), labels).backward()
        sync_gradients(reference)
        with sync.no_sync():
            for inputs, labels in parts[:-1]:
                F.cross_entropy(model(inputs), labels).backward()
            assert all(bucket.work is None for bucket in sync.buckets)
        with sync:
            F.cross_entropy(model(parts[-1][0]), parts[-1][1]).backward()
        for one, two in zip(model.parameters(), reference.parameters(), strict=True):
            if two.grad is not None:
                assert torch.allclose(one.grad, two.grad, rtol=1e-14, atol=1e-14)
        sync.remove()


def case_parameters_used_only_in_an_early_pass_are_synced(rank, size):
    sync = BucketedGradientSync(model := Branches(), bucket_bytes=1)
    with sync.no_sync():
        model(torch.full((1, 2), float(rank)), [1]).backward()
    with sync:
        model(torch.ones(1, 2), [3]).backward()
    mean = (size - 1) / 2
    assert torch.equal(model.branches[1].weight.grad, torch.full((2, 2), 2 * mean + 1))


def case_bucket_is_sent_before_backward_ends(rank, size):
    left = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    for overlap, expected in ((True, [True, True, False]), (False, [False] * 3)):
        sync = BucketedGradientSync(model, None, bucket_bytes=(16 + 4) * 4, overlap=overlap)
        assert [bucket.names for bucket in sync.buckets] == [
            ["2.bias", "2.weight"],
            ["1.bias", "1.weight"],
            ["0.bias", "0.weight"],
        ]
        hidden = model[0](torch.ones(2, 4))

        def note(gradient, sync=sync):
            left[:] = [bucket.work is not None for bucket in sync.buckets]

        hidden.register_hook(note)
        with sync:
            model[2](model[1](hidden)).sum().backward()
        assert left == expected
        sync.remove()


def case_every_bucket_is_one_all_reduce_in_order(rank, size):
    sent = []
    all_reduce = dist.all_reduce

    def noted(tensor, *arguments, **options):
        sent.append((tensor.dtype, tensor.numel()))
        return all_reduce(tensor, *arguments, **options)

    model = nn.Sequential(
        nn.Linear(10, 10), nn.Linear(10, 10).double(), nn.Linear(10, 30), nn.Linear(10, 10)
    )
    sync = BucketedGradientSync(model, bucket_bytes=4 * 200)
    dist.all_reduce = noted
    try:
        sync.finish()
    finally:
        dist.all_reduce = all_reduce
    # The gradients of a bucket and a flag for each parameter; 30 x 10 is too large for others.
    assert sent == [
        (torch.float32, 10 + 100 + 30 + 3),
        (torch.float32, 300 + 1),
        (torch.float64, 10 + 1),
        (torch.float64, 100 + 1),
        (torch.float32, 10 + 100 + 2),
    ]
    assert [bucket.nbytes for bucket in sync.buckets] == [560, 1200, 80, 800, 440]


def case_first_bucket_is_small(rank, size):
    layers = [nn.Linear(256, 512, bias=False) for _ in range(12)]  # half a MiB each
    for bucket_bytes, expected in ((25 * 2**20, [2, 10]), (2**21, [2, 4, 4, 2]), (2**19, [1] * 12)):
        sync = BucketedGradientSync(nn.Sequential(*layers), bucket_bytes=bucket_bytes)
        assert [len(bucket.parameters) for bucket in sync.buckets] == expected
        sync.remove()


def case_bucket_order_follows_last_parameter(rank, size):
    """The double bucket is begun first and complete last; the other must not wait for it."""
    model = nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 2), nn.Linear(2, 2).double())
    sync = BucketedGradientSync(model)
    assert [bucket.names for bucket in sync.buckets] == [
        ["1.bias", "1.weight"],
        ["2.bias", "2.weight", "0.bias", "0.weight"],
    ]


def case_several_dtypes_and_strides(rank, size):
    model = nn.Sequential(
        nn.Linear(2, 2).bfloat16(),
        nn.Linear(2, 3).double(),
        nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last),
        nn.Linear(2, 2).half(),
    )
    for sync in all_kinds(model):
        for parameter in model.parameters():
            numbers = torch.arange(parameter.numel()).view(parameter.shape) % 7
            parameter.grad = (numbers + 2 * rank).to(parameter)
        model[2].weight.grad = model[2].weight.grad.to(memory_format=torch.channels_last)
        sync.finish()
        for parameter in model.parameters():
            numbers = torch.arange(parameter.numel()).view(parameter.shape) % 7
            assert torch.equal(parameter.grad, (numbers + size - 1).to(parameter))
        sync.remove()


def case_second_backward_pass_raises(rank, size):
    model = nn.Linear(2, 2)
    sync = BucketedGradientSync(model)

    def twice() -> None:
        with sync:
            model(torch.ones(1, 2)).sum().backward()
            model(torch.ones(1, 2)).sum().backward()

    assert "no_sync" in error_on_all_ranks(RuntimeError, twice)
    model.zero_grad()
    with sync:  # the next step is in order again
        model(torch.ones(1, 2) * size).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((2, 2), float(size)))


@case(sizes=(2, 3, 4))
def case_sparse_gradient_raises_on_all_ranks(rank, size):
    embedding = nn.Embedding(4, 2, sparse=rank == 1)
    model = nn.Sequential(embedding, nn.Linear(2, 2))
    for sync in all_kinds(model):

        def step(sync=sync) -> None:
            model.zero_grad()
            with sync:
                model(torch.tensor([1, 2])).sum().backward()

        message = error_on_all_ranks(TypeError, step)
        assert "'0.weight'" in message
        assert "sparse=False" in message
        sync.remove()


@case(sizes=(2, 3, 4))
def case_different_models_or_settings_raise_on_all_ranks(rank, size):
    last = rank == size - 1
    partly_frozen = nn.Linear(6, 6)
    partly_frozen.bias.requires_grad_(not last)
    for model in (nn.Linear(2, 7 if last else 6), partly_frozen):
        assert "different models" in error_on_all_ranks(ValueError, BucketedGradientSync, model)
    model, other = nn.Linear(2, 2), 100 + last
    error_on_all_ranks(ValueError, BucketedGradientSync, model, None, other)
    error_on_all_ranks(ValueError, BucketedGradientSync, model, None, 0 if last else 1)
    error_on_all_ranks(ValueError, BucketedGradientSync, model, reduction="product")


def case_parameters_frozen_later_are_detected(rank, size):
    model = nn.Linear(2, 2)
    sync = BucketedGradientSync(model)
    model.bias.requires_grad_(False)
    assert "frozen" in error_on_all_ranks(RuntimeError, sync.finish)
    BucketedGradientSync(nn.ReLU()).finish()  # nothing to send is no error


@case(sizes=(2, 3))
def case_subgroup_of_ranks(rank, size):
    group = dist.new_group([size - 1, 0])
    model = nn.Linear(2, 2)
    model.weight.grad = torch.full((2, 2), float(rank))
    if rank in (0, size - 1):
        BucketedGradientSync(model, group).finish()
        assert (model.weight.grad == (size - 1) / 2).all()
    else:
        assert (model.weight.grad == rank).all()
