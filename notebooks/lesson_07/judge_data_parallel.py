"""A wrong step of data parallelism gives a number, and the number says which mistake.

Used by :mod:`notebooks.lesson_07.exercises`. Numbers are small integers or multiples of
1/4, so that every sum is exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import in_one_line

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
    for shard in shards:
        if shard.shape[1:] != batch.shape[1:]:
            raise WrongAnswer(
                "another-shape",
                f"{asked}: a shard has the shape {list(shard.shape)}, the batch {list(batch.shape)}"
                ". Cut along the first dimension only; an empty shard keeps the others, too",
            )
        if shard.dtype != batch.dtype:
            raise WrongAnswer(
                "another-type",
                f"{asked}: a shard is of {shard.dtype}, the batch of {batch.dtype}".replace(
                    "torch.", ""
                ),
            )
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
    if sum(sizes) > len(batch):
        raise WrongAnswer(
            "samples-twice",
            f"{asked}: the shards have {sizes} samples, {sum(sizes) - len(batch)} too many: some "
            "samples are in two of them, and would count twice",
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
    if len(sizes) > p:
        raise WrongAnswer(
            "too-many-shards", f"{asked}: there are {len(sizes)} shards, of {sizes} samples"
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
    _judge_loss(mean_loss, ([-1.0, -3.0], [0.0], [12.0]), "means -2, 0, 12 of sizes 2, 1, 1")
    return "It is the mean over all samples, and its gradient is that of the full batch."


def _judge_loss(mean_loss: Callable, shards, asked: str) -> None:
    samples = [torch.tensor(shard, dtype=torch.float64, requires_grad=True) for shard in shards]
    losses = [sample.mean() for sample in samples]
    sizes = [len(sample) for sample in samples]
    before = [loss.item() for loss in losses]
    given = mean_loss(losses, sizes)
    if any(loss.item() != b and b == b for loss, b in zip(losses, before, strict=True)):
        raise WrongAnswer(
            "changes-its-input",
            f"{asked}: one of `losses` was changed in place. Does the sum begin as `losses[0]` "
            "itself, and is then added to by `+=`?",
        )
    if any(sample.grad is not None for sample in samples):
        raise WrongAnswer(
            "goes-back-itself", f"{asked}: it calls `backward()`. Its caller does: only return"
        )
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
    try:
        given.backward()
    except RuntimeError as error:
        raise WrongAnswer(
            "no-gradient",
            f"{asked}: {found:g} is right, but nothing can go back from it: {in_one_line(error)}",
        ) from error
    if any(len(sample) and sample.grad is None for sample in samples):
        raise WrongAnswer(
            "no-gradient",
            f"{asked}: {found:g} is right, but of {len(losses)} losses "
            f"{sum(s.grad is None for s in samples if len(s))} get no gradient from it: they have "
            "left the graph, or were left out",
        )
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
    raise WrongAnswer(
        "wrong-value",
        f"{asked}: it returned {found:g}, not {wanted:g}. Each mean counts as often as its shard "
        "has samples, whatever it is",
    )


# ---- the master is updated --------------------------------------------------------------------


class _Toy(nn.Module):
    """Two parameters that are trained and one that is frozen; one is used on some devices only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([8.0, 16.0]))
        self.sometimes = nn.Parameter(torch.tensor([4.0]))
        self.frozen = nn.Parameter(torch.tensor([2.0]), requires_grad=False)


class _Seen(NamedTuple):
    """How often the optimizer made a step, and whether a replica but the master's has moved."""

    steps: int
    replicas_moved: bool


def _toy_step(update: Callable, model: _Toy, optimizer, devices: int, first: int) -> _Seen:
    """Let ``update`` do one step; device 0 has no gradient for `sometimes`.

    Replica r has the gradient ``first * 2**r``: the sum tells which ones are in it.
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
        # Weight decay moves what has a gradient, of zeros too, and leaves alone what has none.
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
            if devices == 1:  # nobody has a gradient for it
                expected[1] = before[1]
            _judge_master(model, before, expected, sums, velocity, devices, first, step, seen)
    return "The master has moved by the sum of all gradients, with the optimizer's momentum."


def _judge_master(model, before, expected, sums, velocity, devices, first, step, seen) -> None:
    asked = f"{devices} devices, step {step}"
    weight, moved = model.weight.detach(), before[0] - model.weight.detach()
    if not torch.equal(model.frozen.detach(), before[2]):
        zeros = ": it was given a gradient. None is not the same as zeros, which weight decay moves"
        raise WrongAnswer(
            "frozen-moved",
            f"{asked}: a frozen parameter has changed{'' if model.frozen.grad is None else zeros}",
        )
    if seen.steps > 1:
        raise WrongAnswer(
            "a-step-for-each",
            f"{asked}: `optimizer.step()` was called {seen.steps} times. It is one step: first add "
            "up the gradients of all replicas, then call it once",
        )
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
            "not moved: call `optimizer.step()` at the end",
        )
    if not moved.any() and seen.replicas_moved:
        raise WrongAnswer(
            "updates-the-replicas",
            f"{asked}: the master's parameters have not moved at all. Whatever happens to a "
            "replica is lost: the next step makes new replicas, from the master",
        )
    if not moved.any() and seen.steps:
        raise WrongAnswer(
            "clears-before-the-step",
            f"{asked}: `optimizer.step()` was called, but found no gradients: `zero_grad()` after "
            "they were added up throws them away",
        )
    if not moved.any():
        raise WrongAnswer(
            "forgets-the-step",
            f"{asked}: the master's parameters have not moved. Add the replicas' gradients to its "
            "own, and call `optimizer.step()` at the end",
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
        "averages-parameters": (
            own / devices,
            "it moved by its own gradient, divided by the number of devices, as if the parameters "
            "had been averaged after the step. It is the gradients that are to be added up",
        ),
    }
    if step == 2 and torch.allclose(moved, 0.25 * sums[0]):
        raise WrongAnswer(
            "goes-round-the-optimizer",
            f"{asked}: the first step was right, the second one lacks the momentum. Let "
            "`optimizer.step()` change the parameters",
        )
    history = velocity[0] - sums[0]  # the momentum of the steps before
    for name, (gradient, explanation) in names.items():
        if torch.allclose(moved, 0.25 * (history + gradient)):
            raise WrongAnswer(name, f"{asked}: the master moved, but {explanation}")
    if torch.allclose(moved, -0.25 * velocity[0]):
        raise WrongAnswer("uphill", f"{asked}: the step has the wrong sign")
    part = (moved / 0.25 - history)[0].item() / first
    if part in range(1, 2**devices):
        found = [r for r in range(devices) if int(part) >> r & 1]
        raise WrongAnswer(
            "gradients-missing",
            f"{asked}: the master moved by the gradients of {len(found)} of {devices} replicas, "
            f"those of number {', '.join(map(str, found))}. Add up all of them; to assign to "
            "`grad` replaces what is there",
        )
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
    wanted = _wanted_bytes(net, inputs, outputs, p)
    out, into = given
    if (out, into) == wanted:
        return
    if (into, out) == wanted:
        raise WrongAnswer("out-and-in-swapped", f"{asked}: the bytes that leave come first")
    ring = 2 * (p - 1) * sum(t.nbytes for t in net.parameters()) // p
    if (out, into) == (ring, ring):
        raise WrongAnswer(
            "that-of-a-ring",
            f"{asked}: this is the ring all-reduce of the gradients. There is no ring here: "
            "everything passes through the master",
        )
    mistakes = _mistakes((out, into), net, inputs, outputs, p)
    if mistakes:
        told = "; and ".join(_BYTES_MISTAKES[name] for name in mistakes)
        raise WrongAnswer(mistakes[0], f"{asked}: {told}")
    if out == wanted[0] or into == wanted[1]:
        which, number = ("in", into) if out == wanted[0] else ("out", out)
        raise WrongAnswer(
            "one-of-two-is-wrong",
            f"{asked}: {number} bytes that go {which} are wrong, the other number is right",
        )
    if p != 4:
        raise WrongAnswer("wrong-for-other-p", f"{asked}: {given} is not {wanted}; use `p`")
    raise WrongAnswer("wrong-value", f"{asked}: it returned {given}, not {wanted}")


def _wanted_bytes(net: nn.Module, inputs, outputs, p: int) -> tuple[int, int]:
    weights = sum(t.nbytes for t in [*net.parameters(), *net.buffers()])
    trained = sum(t.nbytes for t in net.parameters() if t.requires_grad)
    x, y = (t.nbytes * (p - 1) // p for t in (inputs, outputs))
    return (p - 1) * weights + x + y, y + (p - 1) * trained


_BYTES_MISTAKES = {
    "always-four-bytes": "a number has 4 bytes in float32 and 8 in float64; `tensor.nbytes` knows",
    "numbers-not-bytes": "this is how many numbers travel. Each has 4 bytes in float32 and 8 in "
    "float64",
    "counts-itself": "the master is counted too. It is one of the p devices, and sends nothing to "
    "itself",
    "one-replica": "only one replica is counted. There are p - 1 beside the master",
    "one-shard": "only one shard is counted. The others have p - 1 of p",
    "whole-batch-to-everyone": "every device is sent the whole batch. It needs its shard only",
    "forgets-the-buffers": "the buffers are missing, here those of the batch normalisation: a "
    "replica needs them",
    "forgets-the-frozen": "the frozen parameters are missing on their way out: a replica needs "
    "them, too",
    "forgets-the-replicas": "the parameters are missing: every step copies them to all replicas",
    "forgets-the-inputs": "the other devices' shards of the inputs are missing",
    "forgets-the-way-back": "the gradient of the outputs is missing: it is worked out on the "
    "master, and every device needs its part of it to go back through its replica",
    "forgets-the-outputs": "the outputs of the other devices are missing: they reach the master",
    "forgets-the-gradients": "the replicas' gradients are missing: they reach the master",
    "gradient-of-the-frozen": "a frozen parameter has no gradient, so none arrives",
    "gradients-of-buffers": "buffers have no gradients",
    "inputs-come-back": "the inputs are counted on the way back. Only their shards go out",
}

# What a part of a sum may be: so many bytes, and the mistakes that make it so.
_Options = list[tuple[int, tuple[str, ...]]]


def _mistakes(given: tuple, net: nn.Module, inputs, outputs, p: int) -> list[str]:
    """Return the fewest mistakes that together give both numbers; none if no mistakes do."""
    parameters = sum(t.nbytes for t in net.parameters())
    trained = sum(t.nbytes for t in net.parameters() if t.requires_grad)
    buffers = sum(t.nbytes for t in net.buffers())
    others = p - 1

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
    size = inputs.element_size()
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
    """Yield the mistakes of each way to make ``total`` of one option a part."""
    for options in itertools.product(*parts):
        if sum(number for number, _ in options) == total:
            yield [mistake for _, mistakes in options for mistake in mistakes]
