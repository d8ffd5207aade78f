"""The result of a wrong step of data parallelism reveals which mistake was made.

Used by :mod:`rank_by_rank.lesson_07.exercises`. Numbers are small integers or multiples of
1/4, so that every sum is exact.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import NamedTuple

import torch
from torch import nn

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import in_one_line
from course_lib.teaching.judges.formulas import name_the_mistake, plain

# ---- scatter ----------------------------------------------------------------------------------


def judge_scatter(scatter: Callable) -> str:
    for samples, p in ((8, 4), (9, 4), (10, 4), (250, 4), (7, 3), (2, 4), (3, 4), (5, 1)):
        batch = torch.arange(2 * samples).reshape(samples, 2)
        _judge_shards(scatter(batch, p), batch, p)
    thirds = torch.arange(20, dtype=torch.float64) / 3  # not exact in float32
    for batch in (thirds.reshape(5, 1, 2, 2), torch.arange(5)):  # such as images, and labels
        _judge_shards(scatter(batch, 3), batch, 3)
    return "All samples are dealt out in order, and shard sizes differ by at most one."


def _judge_shards(shards, batch: torch.Tensor, p: int) -> None:
    asked = f"{len(batch)} samples on {p} devices"
    if not isinstance(shards, (list, tuple)) or not all(
        isinstance(shard, torch.Tensor) for shard in shards
    ):
        raise WrongAnswer("not-tensors", asked=asked, p=p)
    if not isinstance(shards, list):
        raise WrongAnswer("not-a-list", asked=asked, kind=type(shards).__name__)
    for shard in shards:
        if shard.dim() != batch.dim() or shard.shape[1:] != batch.shape[1:]:
            raise WrongAnswer(
                "another-shape", asked=asked, given=list(shard.shape), wanted=list(batch.shape)
            )
        if shard.dtype != batch.dtype:
            given, wanted = (str(t.dtype).removeprefix("torch.") for t in (shard, batch))
            raise WrongAnswer("another-type", asked=asked, given=given, wanted=wanted)
    wanted = [len(batch) // p + (i < len(batch) % p) for i in range(p)]
    sizes = [len(shard) for shard in shards]
    if sizes == [len(batch)] * p and p > 1:
        raise WrongAnswer("everyone-gets-all", asked=asked)
    if sum(sizes) < len(batch):
        raise WrongAnswer("drops-the-rest", asked=asked, sizes=sizes, count=len(batch) - sum(sizes))
    if sum(sizes) > len(batch):
        raise WrongAnswer("samples-twice", asked=asked, sizes=sizes, count=sum(sizes) - len(batch))
    together = torch.cat(list(shards))
    if sorted(together.flatten().tolist()) != sorted(batch.flatten().tolist()):
        raise WrongAnswer("wrong-samples", asked=asked)
    if not torch.equal(together, batch):
        raise WrongAnswer("order-is-lost", asked=asked)
    if len(sizes) < p:
        raise WrongAnswer("a-device-goes-without", asked=asked, count=len(sizes), sizes=sizes)
    if len(sizes) > p:
        raise WrongAnswer("too-many-shards", asked=asked, count=len(sizes), sizes=sizes)
    if max(sizes) - min(sizes) > 1:
        raise WrongAnswer("uneven", asked=asked, sizes=sizes, wanted=wanted)
    if len(batch) < p and sizes != wanted:
        raise WrongAnswer("first-device-goes-without", asked=asked, sizes=sizes)
    places = [shard.untyped_storage().data_ptr() for shard in shards if len(shard)]
    if batch.untyped_storage().data_ptr() in places:
        raise WrongAnswer("a-view-is-no-copy", asked=asked)
    if len(set(places)) < len(places):
        raise WrongAnswer("views-of-one-copy", asked=asked)


# ---- one loss ---------------------------------------------------------------------------------


def judge_mean_loss(mean_loss: Callable) -> str:
    shards = ([9.0], [1.0, 1.0, 1.0])
    _judge_loss(mean_loss, shards, "sizes 1 and 3")
    _judge_loss(mean_loss, ([4.0, 8.0], [2.0, 2.0]), "sizes 2 and 2")
    _judge_loss(mean_loss, ([1.0] * 3, [2.0] * 3, [6.0] * 2), "sizes 3, 3 and 2")
    _judge_loss(mean_loss, ([5.0, 3.0], [7.0, 1.0], []), "sizes 2, 2 and 0")
    _judge_loss(mean_loss, ([-1.0, -3.0], [0.0], [12.0]), "means -2, 0, 12 of sizes 2, 1, 1")
    _judge_loss(mean_loss, ([6.0], [], [2.0, 4.0, 4.0]), "sizes 1, 0 and 3")
    _judge_loss(mean_loss, ([], [2.0, 4.0]), "sizes 0 and 2")
    _judge_loss(mean_loss, ([2.0**30 + 1.0], [1.0, 1.0, 1.0]), "sizes 1 and 3, a large loss")
    _judge_loss(mean_loss, ([3.0], [6.0, 9.0]), "sizes 1 and 2")
    _judge_loss(mean_loss, ([2.0, 4.0],), "one device")
    diverged = mean_loss([torch.tensor(torch.nan), torch.tensor(3.0)], [2, 2])
    if not isinstance(diverged, Real | torch.Tensor) or torch.as_tensor(diverged).numel() != 1:
        raise WrongAnswer("not-one-loss", asked="a loss that is nan", given=repr(diverged))
    if not torch.as_tensor(diverged).isnan():
        raise WrongAnswer("hides-a-nan", found=float(diverged))
    return "It is the mean over all samples, and its gradient is that of the full batch."


def _judge_loss(mean_loss: Callable, shards, asked: str) -> None:
    samples = [torch.tensor(shard, dtype=torch.float64, requires_grad=True) for shard in shards]
    losses = [sample.mean() for sample in samples]
    sizes = [len(sample) for sample in samples]
    before = [loss.item() for loss in losses]
    given = mean_loss(losses, sizes)
    if len(losses) != len(before) or sizes != [len(sample) for sample in samples]:
        raise WrongAnswer("changes-its-input: a list", asked=asked)
    if any(loss.item() != b and b == b for loss, b in zip(losses, before, strict=True)):
        raise WrongAnswer("changes-its-input", asked=asked)
    if any(sample.grad is not None for sample in samples):
        raise WrongAnswer("goes-back-itself", asked=asked)
    values = [value for shard in shards for value in shard]
    means = [sum(shard) / len(shard) for shard in shards if shard]
    if isinstance(given, (int, float)):
        raise WrongAnswer("no-gradient", asked=asked, given=given)
    if not isinstance(given, torch.Tensor) or given.numel() != 1:
        raise WrongAnswer("not-one-loss", asked=asked, given=repr(given))
    found = given.item()
    wanted = sum(values) / len(values)
    if found != found and 0 in sizes:
        raise WrongAnswer("an-empty-shard-spoils-it", asked=asked)
    off = abs(found - wanted)
    right = off <= 1e-14 * abs(wanted)  # a few roundings of float64
    if not right and off < 1e-6 * abs(wanted):
        raise WrongAnswer("loses-digits", asked=asked, found=found, wanted=wanted)
    if not right:
        _name_the_loss(found, wanted, values, means, losses, asked)
    if not given.requires_grad:
        raise WrongAnswer("no-gradient: of a tensor", asked=asked, found=found)
    try:
        given.backward()
    except RuntimeError as error:
        raise WrongAnswer(
            "no-gradient: with an exception", asked=asked, found=found, error=in_one_line(error)
        ) from error
    if any(len(sample) and sample.grad is None for sample in samples):
        raise WrongAnswer(
            "no-gradient: of some losses",
            asked=asked,
            found=found,
            count=len(losses),
            without=sum(s.grad is None for s in samples if len(s)),
        )
    for sample in samples:
        share = torch.full_like(sample, 1 / len(values))
        # A few roundings of float64, which are 1e-16 each.
        if len(sample) and not torch.allclose(sample.grad, share, rtol=0, atol=1e-14):
            raise WrongAnswer(
                "wrong-gradient", asked=asked, given=sample.grad.tolist(), count=len(values)
            )


def _name_the_loss(found, wanted, values, means, losses, asked: str) -> None:
    names = {
        "mean-of-means": sum(means) / len(losses),
        "sum-of-means": sum(means),
        "a-sum-not-a-mean": sum(values),
        "divided-by-devices": sum(values) / len(losses),
        "first-shard-only": means[0],
    }
    told = {"asked": asked, "found": found, "wanted": wanted}
    name_the_mistake(names, lambda value: abs(found - value) < 1e-9, **told)
    raise WrongAnswer("wrong-value", asked=asked, found=found, wanted=wanted)


# ---- the master is updated --------------------------------------------------------------------


class _Toy(nn.Module):
    """Two parameters that are trained and one that is frozen; one is used on some devices only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([8.0, 16.0]))
        self.sometimes = nn.Parameter(torch.tensor([4.0]))
        self.frozen = nn.Parameter(torch.tensor([2.0]), requires_grad=False)


class _Seen(NamedTuple):
    """The number of optimizer steps, and whether a replica other than the master's has moved."""

    steps: int
    replicas_moved: bool


def _toy_step(update: Callable, model: _Toy, optimizer, devices: int, first: int) -> _Seen:
    """Let ``update`` do one step; device 0 has no gradient for `sometimes`.

    Replica r has the gradient ``first * 2**r``: the sum shows which ones are in it.
    """
    replicas = [model, *(_Toy() for _ in range(devices - 1))]
    for r, replica in enumerate(replicas):
        with torch.no_grad():
            for own, other in zip(replica.parameters(), model.parameters(), strict=True):
                own.copy_(other)
        replica.weight.grad = torch.tensor([1.0, 2.0]) * first * 2**r
        replica.sometimes.grad = None if r == 0 else torch.tensor([1.0 + r])
    start = model.weight.detach().clone()
    made: list[None] = []
    counting = optimizer.register_step_post_hook(lambda *_: made.append(None))
    try:
        update(model, replicas, optimizer)
    finally:
        counting.remove()
    moved = any(not replica.weight.detach().equal(start) for replica in replicas[1:])
    return _Seen(len(made), moved)


def judge_update(update: Callable) -> str:
    for devices in (4, 2, 1):
        model = _Toy()
        # Weight decay moves every parameter that has a gradient, even one of zeros, and no other.
        groups = [
            {"params": [model.weight, model.sometimes]},
            {"params": [model.frozen], "weight_decay": 0.5},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.25, momentum=0.5)
        velocity = [torch.zeros(2), torch.zeros(1)]
        expected = [model.weight.detach().clone(), model.sometimes.detach().clone()]
        for step, first in enumerate((1, 3), 1):
            optimizer.zero_grad()
            before = [parameter.detach().clone() for parameter in model.parameters()]
            seen = _toy_step(update, model, optimizer, devices, first)
            total = first * (2**devices - 1)
            sums = [torch.tensor([1.0, 2.0]) * total]
            sums.append(torch.tensor([sum(1.0 + r for r in range(1, devices))]))
            velocity = [0.5 * v + s for v, s in zip(velocity, sums, strict=True)]
            expected = [e - 0.25 * v for e, v in zip(expected, velocity, strict=True)]
            if devices == 1:  # no replica has a gradient for it
                expected[1] = before[1]
            _judge_master(model, before, expected, sums, velocity, devices, first, step, seen)
            if not model.training:
                raise WrongAnswer("leaves-training-mode", asked=f"{devices} devices, step {step}")
    return "The master has moved by the sum of all gradients, with the optimizer's momentum."


def _judge_master(model, before, expected, sums, velocity, devices, first, step, seen) -> None:
    asked = f"{devices} devices, step {step}"
    weight, moved = model.weight.detach(), before[0] - model.weight.detach()
    if not torch.equal(model.frozen.detach(), before[2]):
        if model.frozen.grad is not None:
            raise WrongAnswer("frozen-moved: by a gradient of zeros", asked=asked)
        raise WrongAnswer("frozen-moved", asked=asked)
    if seen.steps > 1:
        raise WrongAnswer("a-step-for-each", asked=asked, steps=seen.steps)
    right = torch.equal(weight, expected[0])
    if right and torch.equal(model.sometimes.detach(), expected[1]):
        return
    if right:
        raise WrongAnswer("gradient-of-none", asked=asked)
    if not moved.any() and model.weight.grad is not None and model.weight.grad.equal(sums[0]):
        raise WrongAnswer("forgets-the-step", asked=asked)
    if not moved.any() and seen.replicas_moved:
        raise WrongAnswer("updates-the-replicas", asked=asked)
    if not moved.any() and seen.steps:
        raise WrongAnswer("clears-before-the-step", asked=asked)
    if not moved.any():
        raise WrongAnswer("forgets-the-step: and the sum", asked=asked)
    own = torch.tensor([1.0, 2.0]) * first
    names = {
        "own-gradient-only": own,
        "clears-first": sums[0] - own,
        "mean-not-sum": sums[0] / devices,
        "counts-the-master-twice": sums[0] + own,
        "averages-parameters": own / devices,
    }
    if step == 2 and torch.allclose(moved, 0.25 * sums[0]):
        raise WrongAnswer("goes-round-the-optimizer", asked=asked)
    history = velocity[0] - sums[0]  # the momentum of the steps before

    def moves_so(gradient: torch.Tensor) -> bool:
        return torch.allclose(moved, 0.25 * (history + gradient))

    name_the_mistake(names, moves_so, asked=asked)
    if torch.allclose(moved, -0.25 * velocity[0]):
        raise WrongAnswer("uphill", asked=asked)
    part = (moved / 0.25 - history)[0].item() / first
    if part in range(1, 2**devices):
        found = [r for r in range(devices) if int(part) >> r & 1]
        raise WrongAnswer(
            "gradients-missing",
            asked=asked,
            count=len(found),
            devices=devices,
            found=", ".join(map(str, found)),
        )
    raise WrongAnswer("wrong-value", asked=asked, moved=moved.tolist(), wanted=sums[0].tolist())


# ---- bytes through the master -----------------------------------------------------------------


def judge_master_bytes(master_bytes: Callable) -> str:
    linear, four, eight = nn.Linear(6, 5), torch.float32, torch.float64  # bytes a number
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    model[0].bias.requires_grad_(False)
    masked = nn.Linear(6, 5)
    masked.register_buffer("mean", torch.zeros(3))
    masked.register_buffer("mask", torch.ones(7), persistent=False)  # in no `state_dict`
    cases = [(linear, four, 4, 5), (linear, four, 8, 5), (linear, four, 1, 5)]
    counting = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))  # its count is an int64
    cases += [(model, eight, 4, 3), (model, eight, 2, 3), (masked, four, 4, 5)]
    cases += [(counting, four, 4, 5)]
    for net, dtype, p, classes in cases:
        inputs, outputs = torch.zeros(24, 6, dtype=dtype), torch.zeros(24, classes, dtype=dtype)
        given = plain(master_bytes(copy.deepcopy(net), inputs, outputs, p))
        _judge_bytes(given, net, inputs, outputs, p)
    return "Both numbers are right to the byte, even with buffers, frozen parameters and float64."


def _judge_bytes(given, net: nn.Module, inputs, outputs, p: int) -> None:
    asked = f"p = {p}, {next(net.parameters()).dtype}".replace("torch.", "")
    pair = isinstance(given, (tuple, list)) and len(given) == 2
    if not pair or not all(isinstance(number, Real) for number in given):
        raise WrongAnswer("not-two-numbers", given=repr(given))
    wanted = _wanted_bytes(net, inputs, outputs, p)
    out, into = given
    if (out, into) == wanted:
        if not all(isinstance(number, Integral) for number in given):
            raise WrongAnswer("not-two-numbers: not whole", given=repr(given))
        return
    if (into, out) == wanted:
        raise WrongAnswer("out-and-in-swapped", asked=asked)
    ring = 2 * (p - 1) * sum(t.nbytes for t in net.parameters()) // p
    if (out, into) == (ring, ring):
        raise WrongAnswer("that-of-a-ring", asked=asked)
    mistakes = _mistakes((out, into), net, inputs, outputs, p)
    if mistakes:
        wrong = WrongAnswer(mistakes[0], asked=f"{asked}: ")
        wrong.further = [WrongAnswer(name, asked="") for name in mistakes[1:]]
        raise wrong
    if out == wanted[0] or into == wanted[1]:
        which, number = ("in", into) if out == wanted[0] else ("out", out)
        raise WrongAnswer("one-of-two-is-wrong", asked=asked, number=number, which=which)
    if p != 4:
        raise WrongAnswer("wrong-for-other-p", asked=asked, given=given, wanted=wanted)
    raise WrongAnswer("wrong-value", asked=asked, given=given, wanted=wanted)


def _wanted_bytes(net: nn.Module, inputs, outputs, p: int) -> tuple[int, int]:
    weights = sum(t.nbytes for t in [*net.parameters(), *net.buffers()])
    trained = sum(t.nbytes for t in net.parameters() if t.requires_grad)
    x, y = (t.nbytes * (p - 1) // p for t in (inputs, outputs))
    return (p - 1) * weights + x + y, y + (p - 1) * trained


# The possible values of one part of a sum, in bytes, each with the mistakes that lead to it.
_Options = list[tuple[int, tuple[str, ...]]]


def _mistakes(given: tuple, net: nn.Module, inputs, outputs, p: int) -> list[str]:
    """Return the fewest mistakes that together give both numbers; none if no mistakes do."""
    parameters = sum(t.nbytes for t in net.parameters())
    trained = sum(t.nbytes for t in net.parameters() if t.requires_grad)
    buffers = sum(t.nbytes for t in net.buffers())
    saved = sum(t.nbytes for t in net.state_dict().values())
    size, others = inputs.element_size(), p - 1
    alike = sum(size * t.numel() for t in net.buffers())

    def shards(tensor: torch.Tensor, forgotten: str) -> _Options:
        whole = tensor.nbytes
        return [
            (whole * others // p, ()),
            (0, (forgotten,)),
            (whole, ("counts-itself",)),
            (whole * others, ("whole-batch-to-everyone",)),
            (whole // p, ("one-shard",)),
        ]

    weights: _Options = [
        (others * (parameters + buffers), ()),
        (others * parameters, ("forgets-the-buffers",)),
        (others * saved, ("only-what-is-saved",)),
        (others * (parameters + alike), ("one-size-for-all",)),
        (others * (trained + buffers), ("forgets-the-frozen",)),
        (others * trained, ("forgets-the-buffers", "forgets-the-frozen")),
        (p * (parameters + buffers), ("counts-itself",)),
        (parameters + buffers, ("one-replica",)),
        (0, ("forgets-the-replicas",)),
    ]
    gradients: _Options = [
        (others * trained, ()),
        (others * parameters, ("gradient-of-the-frozen",)),
        (others * (trained + buffers), ("gradients-of-buffers",)),
        (others * (parameters + buffers), ("gradient-of-the-frozen", "gradients-of-buffers")),
        (p * trained, ("counts-itself",)),
        (trained, ("one-replica",)),
        (0, ("forgets-the-gradients",)),
    ]
    out = [weights, shards(inputs, "forgets-the-inputs"), shards(outputs, "forgets-the-way-back")]
    back: _Options = [(0, ()), (inputs.nbytes * others // p, ("inputs-come-back",))]
    into = [shards(outputs, "forgets-the-outputs"), gradients, back]
    units = [(1, ()), (size, ("numbers-not-bytes",))]
    units += [(2, ("always-four-bytes",))] if size == 8 else []
    found = [
        list(dict.fromkeys([*unit, *left, *arrived]))
        for factor, unit in units
        for left in _ways(factor * given[0], out)
        for arrived in _ways(factor * given[1], into)
    ]
    return min(found, key=len, default=[])


def _ways(total: float, parts: list[_Options]) -> Iterator[list[str]]:
    """Yield the mistakes of each way to reach ``total`` with one option for each part."""
    for options in itertools.product(*parts):
        if sum(number for number, _ in options) == total:
            yield [mistake for _, mistakes in options for mistake in mistakes]
