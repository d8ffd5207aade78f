"""A wrong step of data parallelism gives a number, and the number says which mistake.

Used by :mod:`notebooks.lesson_07.exercises`. Numbers are small integers or multiples of
1/4, so that every sum is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from course_lib.teaching.exercise import WrongAnswer

# ---- scatter ----------------------------------------------------------------------------------


def judge_scatter(scatter: Callable) -> str:
    for samples, p in ((8, 4), (9, 4), (10, 4), (250, 4), (7, 3), (2, 4), (3, 4), (5, 1)):
        batch = torch.arange(2 * samples).reshape(samples, 2)
        _judge_shards(scatter(batch, p), batch, p)
    return "Every sample has its device, in order, and no device has two more than another."


def _judge_shards(shards, batch: torch.Tensor, p: int) -> None:
    asked = f"{len(batch)} samples on {p} devices"
    if not isinstance(shards, (list, tuple)) or not all(
        isinstance(shard, torch.Tensor) for shard in shards
    ):
        raise WrongAnswer("not-tensors", f"{asked}: it has to return a list of {p} tensors")
    wanted = [len(batch) // p + (i < len(batch) % p) for i in range(p)]
    sizes = [len(shard) for shard in shards]
    if sizes == [len(batch)] * p and p > 1:
        raise WrongAnswer("everyone-gets-all", f"{asked}: every device gets the whole batch")
    if sum(sizes) < len(batch):
        raise WrongAnswer(
            "drops-the-rest",
            f"{asked}: the shards have {sizes} samples, {len(batch) - sum(sizes)} too few. What "
            "the division leaves over belongs to somebody too",
        )
    together = torch.cat(list(shards))
    if sorted(together.flatten().tolist()) != sorted(batch.flatten().tolist()):
        raise WrongAnswer("wrong-samples", f"{asked}: the shards are not the batch's samples")
    if not torch.equal(together, batch):
        raise WrongAnswer(
            "order-is-lost",
            f"{asked}: all samples are there, but not in order: after the gather, output i would "
            "not be that of sample i, while the labels stay where they are",
        )
    if len(sizes) < p:
        raise WrongAnswer(
            "a-device-goes-without",
            f"{asked}: there are {len(sizes)} shards of {sizes}. `torch.chunk` does so, and "
            "DataParallel with it. Give each device a shard, if need be an empty one",
        )
    if max(sizes) - min(sizes) > 1:
        raise WrongAnswer(
            "uneven",
            f"{asked}: the shards have {sizes} samples. All are there, but the others wait for "
            f"the largest one. It can be done with {wanted}",
        )
    if len(batch) < p and sizes != wanted:
        raise WrongAnswer(
            "first-device-goes-without",
            f"{asked}: the shards have {sizes} samples. If there are fewer samples than devices, "
            "the *last* shards are empty: the first device is the master, and works anyhow",
        )
    places = [shard.untyped_storage().data_ptr() for shard in shards if len(shard)]
    if batch.untyped_storage().data_ptr() in places:
        raise WrongAnswer(
            "a-view-is-no-copy",
            f"{asked}: the shards are right, but they are views: they look into the memory of the "
            "batch. On another device they need memory of their own",
        )
    if len(set(places)) < len(places):
        raise WrongAnswer(
            "views-of-one-copy",
            f"{asked}: the shards are right, but they are views of one copy of the batch. Each "
            "needs memory of its own: clone every piece",
        )


# ---- one loss ---------------------------------------------------------------------------------


def judge_mean_loss(mean_loss: Callable) -> str:
    shards = ([9.0], [1.0, 1.0, 1.0])
    _judge_loss(mean_loss, shards, "sizes 1 and 3")
    _judge_loss(mean_loss, ([4.0, 8.0], [2.0, 2.0]), "sizes 2 and 2")
    _judge_loss(mean_loss, ([1.0] * 3, [2.0] * 3, [6.0] * 2), "sizes 3, 3 and 2")
    _judge_loss(mean_loss, ([5.0, 3.0], [7.0, 1.0], []), "sizes 2, 2 and 0")
    return "It is the mean over all samples, and its gradient is that of the full batch."


def _judge_loss(mean_loss: Callable, shards, asked: str) -> None:
    samples = [torch.tensor(shard, dtype=torch.float64, requires_grad=True) for shard in shards]
    losses = [sample.mean() for sample in samples]
    sizes = [len(sample) for sample in samples]
    given = mean_loss(losses, sizes)
    values = [value for shard in shards for value in shard]
    means = [sum(shard) / len(shard) for shard in shards if shard]
    if isinstance(given, (int, float)):
        raise WrongAnswer(
            "no-gradient",
            f"{asked}: it returned the number {given:g}, not a tensor. Nothing can go back from a "
            "number: `item()` leaves the graph",
        )
    if not isinstance(given, torch.Tensor) or given.numel() != 1:
        raise WrongAnswer("not-one-loss", f"{asked}: it returned {given!r}, not one loss")
    found = given.item()
    wanted = sum(values) / len(values)
    if found != found and 0 in sizes:
        raise WrongAnswer(
            "an-empty-shard-spoils-it",
            f"{asked}: it returned nan. The mean over no samples is 0/0 = nan, and 0 times nan is "
            "nan. Leave such a shard out",
        )
    if found != wanted:
        _name_the_loss(found, wanted, values, means, losses, asked)
    if not given.requires_grad:
        raise WrongAnswer(
            "no-gradient",
            f"{asked}: {found:g} is right, but nothing can go back from it: it has left the graph",
        )
    given.backward()
    for sample in samples:
        share = torch.full_like(sample, 1 / len(values))
        # A few roundings of float64, which are 1e-16 each.
        if len(sample) and not torch.allclose(sample.grad, share, rtol=0, atol=1e-14):
            raise WrongAnswer(
                "wrong-gradient",
                f"{asked}: the value is right, but the gradient is {sample.grad.tolist()} instead "
                f"of 1/{len(values)} for every sample",
            )


def _name_the_loss(found, wanted, values, means, losses, asked: str) -> None:
    names = {
        "mean-of-means": (
            sum(means) / len(losses),
            "This is the mean of the shards' means: a sample of a small shard counts more than one "
            "of a large shard",
        ),
        "sum-of-means": (sum(means), "This is the sum of the shards' means"),
        "a-sum-not-a-mean": (sum(values), "This is the sum over all samples, not the mean"),
        "divided-by-devices": (
            sum(values) / len(losses),
            "This is the sum over all samples, divided by the number of devices",
        ),
        "first-shard-only": (means[0], "This is the loss of the first shard alone"),
    }
    for name, (value, explanation) in names.items():
        if abs(found - value) < 1e-9:
            raise WrongAnswer(
                name, f"{asked}: it returned {found:g}, not {wanted:g}. {explanation}"
            )
    raise WrongAnswer("wrong-value", f"{asked}: it returned {found:g}, not {wanted:g}")


# ---- the master is updated --------------------------------------------------------------------


class _Toy(nn.Module):
    """Two parameters that are trained and one that is frozen; one is used on some devices only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([8.0, 16.0]))
        self.sometimes = nn.Parameter(torch.tensor([4.0]))
        self.frozen = nn.Parameter(torch.tensor([2.0]), requires_grad=False)


def _toy_step(update: Callable, model: _Toy, optimizer, devices: int, first: int) -> None:
    """Let ``update`` do one step; replica r has gradient first + r, and device 0 no `sometimes`."""
    replicas = [model, *(_Toy() for _ in range(devices - 1))]
    for r, replica in enumerate(replicas):
        with torch.no_grad():
            for own, other in zip(replica.parameters(), model.parameters(), strict=True):
                own.copy_(other)
        replica.weight.grad = torch.tensor([first + r, 2.0 * (first + r)])
        replica.sometimes.grad = None if r == 0 else torch.tensor([1.0 + r])
    update(model, replicas, optimizer)


def judge_update(update: Callable) -> str:
    for devices in (4, 2, 1):
        model = _Toy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
        velocity = [torch.zeros(2), torch.zeros(1)]
        expected = [model.weight.detach().clone(), model.sometimes.detach().clone()]
        for step, first in enumerate((1, 5), 1):
            optimizer.zero_grad()
            before = [parameter.detach().clone() for parameter in model.parameters()]
            _toy_step(update, model, optimizer, devices, first)
            total = sum(first + r for r in range(devices))
            sums = [torch.tensor([1.0, 2.0]) * total]
            sums.append(torch.tensor([sum(1.0 + r for r in range(1, devices))]))
            velocity = [0.5 * v + s for v, s in zip(velocity, sums, strict=True)]
            expected = [e - 0.25 * v for e, v in zip(expected, velocity, strict=True)]
            if devices == 1:  # nobody has a gradient for it
                expected[1] = before[1]
            _judge_master(model, before, expected, sums, velocity, devices, first, step)
    return "The master has moved by the sum of all gradients, with the optimizer's momentum."


def _judge_master(model, before, expected, sums, velocity, devices, first, step) -> None:
    asked = f"{devices} devices, step {step}"
    weight, moved = model.weight.detach(), before[0] - model.weight.detach()
    if not torch.equal(model.frozen.detach(), before[2]):
        raise WrongAnswer("frozen-moved", f"{asked}: a frozen parameter has changed")
    right = torch.equal(weight, expected[0])
    if right and torch.equal(model.sometimes.detach(), expected[1]):
        return
    if right:
        raise WrongAnswer(
            "gradient-of-none",
            f"{asked}: one parameter has a gradient on some replicas only, and the master has "
            "none of its own for it. It has to be updated by what the others have",
        )
    if not moved.any() and model.weight.grad is not None and model.weight.grad.equal(sums[0]):
        raise WrongAnswer(
            "forgets-the-step",
            f"{asked}: the master's `grad` is the sum of all gradients, but its parameters have "
            "not moved: call `optimizer.step()` in the end",
        )
    if not moved.any():
        raise WrongAnswer(
            "updates-the-replicas",
            f"{asked}: the master's parameters have not moved at all. Whatever happens to a "
            "replica is lost: the next step makes new replicas, from the master",
        )
    own = torch.tensor([1.0, 2.0]) * first
    names = {
        "own-gradient-only": (
            own,
            "it moved by the gradient of its own shard alone. What the other devices have worked "
            "out never arrives",
        ),
        "clears-first": (
            sums[0] - own,
            "its own gradient is missing. Replica 0 is the master itself, so its gradient is there "
            "already: `zero_grad()` at the beginning throws it away",
        ),
        "mean-not-sum": (
            sums[0] / devices,
            "it moved by the mean of the gradients. The loss was already divided by the whole "
            "batch, so the gradients of the shards are to be added up",
        ),
        "counts-the-master-twice": (
            sums[0] + own,
            "the master's own gradient is counted twice: replica 0 is the master itself",
        ),
    }
    if step == 2 and torch.allclose(moved, 0.25 * sums[0]):
        raise WrongAnswer(
            "goes-round-the-optimizer",
            f"{asked}: the first step was right, the second one lacks the momentum. Let "
            "`optimizer.step()` change the parameters",
        )
    for name, (gradient, explanation) in names.items():
        history = velocity[0] - sums[0]  # the momentum of the steps before
        if torch.allclose(moved, 0.25 * (history + gradient)):
            raise WrongAnswer(name, f"{asked}: the master moved, but {explanation}")
    if torch.allclose(moved, -0.25 * velocity[0]):
        raise WrongAnswer("uphill", f"{asked}: the step has the wrong sign")
    raise WrongAnswer(
        "wrong-value",
        f"{asked}: the weights moved by {moved.tolist()}, the gradients add up to "
        f"{sums[0].tolist()}",
    )


# ---- bytes through the master -----------------------------------------------------------------


def judge_master_bytes(master_bytes: Callable) -> str:
    plain, four, eight = nn.Linear(6, 5), torch.float32, torch.float64  # bytes a number
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    model[0].bias.requires_grad_(False)
    cases = [(plain, four, 4, 5), (plain, four, 8, 5), (plain, four, 1, 5)]
    cases += [(model, eight, 4, 3), (model, eight, 2, 3)]
    for net, dtype, p, classes in cases:
        inputs, outputs = torch.zeros(24, 6, dtype=dtype), torch.zeros(24, classes, dtype=dtype)
        _judge_bytes(master_bytes(net, inputs, outputs, p), net, inputs, outputs, p)
    return "Out and in are right to the byte, also with buffers, frozen parameters and float64."


def _judge_bytes(given, net: nn.Module, inputs, outputs, p: int) -> None:
    asked = f"p = {p}, {next(net.parameters()).dtype}".replace("torch.", "")
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise WrongAnswer(
            "not-two-numbers", f"it returned {given!r}, not two numbers: `return out, in_`"
        )
    out, into = given
    parameters = sum(t.nbytes for t in net.parameters())
    trained = sum(t.nbytes for t in net.parameters() if t.requires_grad)
    buffers = sum(t.nbytes for t in net.buffers())
    others = p - 1
    x, y = inputs.nbytes * others // p, outputs.nbytes * others // p
    wanted = (others * (parameters + buffers) + x + y, y + others * trained)
    if (out, into) == wanted:
        return
    if (into, out) == wanted:
        raise WrongAnswer("out-and-in-swapped", f"{asked}: the bytes that leave come first")
    numbers = sum(t.numel() for t in net.parameters())
    to_everyone = p * (parameters + buffers) + inputs.nbytes + outputs.nbytes
    ring = 2 * others * parameters // p
    names = {
        "counts-itself": (
            (to_everyone, outputs.nbytes + p * trained),
            "the master is counted too. It is one of the p devices, and sends nothing to itself",
        ),
        "forgets-the-way-back": (
            (others * (parameters + buffers) + x, y + others * trained),
            "the gradient of the outputs is missing: it is worked out on the master, and every "
            "device needs its part of it to go back through its replica",
        ),
        "whole-batch-to-everyone": (
            (others * (parameters + buffers + inputs.nbytes + outputs.nbytes),
             others * (outputs.nbytes + trained)),
            "every device is sent the whole batch. It needs its shard only",
        ),
        "forgets-the-buffers": (
            (others * parameters + x + y, y + others * trained),
            "the buffers are missing, here those of the batch normalisation: a replica needs them",
        ),
        "gradient-of-the-frozen": (
            (wanted[0], y + others * parameters),
            "a frozen parameter has no gradient, so none arrives",
        ),
        "gradients-of-buffers": (
            (wanted[0], y + others * (parameters + buffers)),
            "buffers have no gradients",
        ),
        "numbers-not-bytes": (
            (others * numbers + (inputs.numel() + outputs.numel()) * others // p,
             outputs.numel() * others // p + others * numbers),
            "this is how many numbers travel. Each has 4 bytes in float32 and 8 in float64",
        ),
        "that-of-a-ring": (
            (ring, ring),
            "this is the ring all-reduce of the gradients. There is no ring here: everything "
            "passes through the master",
        ),
        "parameters-only": (
            (others * (parameters + buffers), others * trained),
            "inputs, outputs and the gradients of the outputs travel as well",
        ),
    }  # fmt: skip
    for name, (value, explanation) in names.items():
        if (out, into) == value:
            raise WrongAnswer(name, f"{asked}: {explanation}")
    if (2 * out, 2 * into) == wanted and next(net.parameters()).dtype == torch.float64:
        raise WrongAnswer(
            "always-four-bytes",
            f"{asked}: half of what it should be. A number has 4 bytes in float32 and 8 in "
            "float64; `tensor.nbytes` knows",
        )
    if out == wanted[0] or into == wanted[1]:
        which = "in" if out == wanted[0] else "out"
        raise WrongAnswer("one-of-two-is-wrong", f"{asked}: the bytes that go {which} are wrong")
    if p != 4:
        raise WrongAnswer("wrong-for-other-p", f"{asked}: {given} is not {wanted}; use `p`")
    raise WrongAnswer("wrong-value", f"{asked}: it returned {given}, not {wanted}")
