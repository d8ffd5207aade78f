"""Whoever uses DDP well is known by the collectives that it then makes.

The judges behind the checks of lesson 08. Gradients are whole numbers, so that a right answer is
right to the last bit. Each judge is given what happened on every rank, the same on every rank.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_mpi4py import DeadlineError, MismatchError, RevokedError, Traffic, world
from torch_mpi4py.traffic_matrix import Count

from ..distributed_log import recorded
from ..exercise import WrongAnswer
from ..message_log import _portable

TIMEOUT = timedelta(seconds=6)
_WAITING = (DeadlineError, RevokedError)

Findings = list[dict[str, Any] | None]


def on_each_rank(try_it, ranks: list[int] | None = None) -> Findings:
    """Call ``try_it(group)`` on ``ranks``, in a group of their own; tell all ranks what it found.

    ``try_it`` returns a dict. What it raises comes back under the key ``error``.
    """
    group = dist.new_group(ranks, timeout=TIMEOUT)
    found = None
    if ranks is None or dist.get_rank() in ranks:
        try:
            found = try_it(group)
        except Exception as error:  # told to every rank below, and judged there
            found = {"error": _portable(error)}
        dist.destroy_process_group(group)
    return world().allgather(found)


def no_errors(everyone: Findings) -> None:
    """Raise what the learner's function raised, or say that it hung."""
    errors = [(r, f["error"]) for r, f in enumerate(everyone) if f and f.get("error") is not None]
    for _, error in errors:
        if isinstance(error, NotImplementedError):
            raise error
    for _, error in errors:
        if isinstance(error, MismatchError):
            calls = [line.strip() for line in str(error).splitlines() if " rank " in line]
            raise WrongAnswer(
                "ranks-disagree", f"the ranks' calls do not fit together: {'; '.join(calls)}"
            )
    own = [(rank, error) for rank, error in errors if not isinstance(error, _WAITING)]
    if own:
        rank, error = own[0]
        text = (str(error).splitlines() or [""])[0]
        raise WrongAnswer("it-raises", f"rank {rank} raised {type(error).__name__}: {text}")
    if errors:
        raise WrongAnswer("it-hangs", "not every rank of the group made the same collective call")


# ---- a communication hook ---------------------------------------------------------------------


class _Parameters(nn.Module):
    """Two parameters whose gradients are whole numbers of your choice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.zeros(8)) for _ in range(2))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.one * gradient).sum() + (self.two * gradient).sum()


def gradient_of(rank: int) -> torch.Tensor:
    """Return multiples of 12, so that sums, and means over 2, 3 or 4, are exact in bfloat16."""
    return 12.0 * (rank + 1) * (torch.arange(8) % 3 + 1)


class _WatchedWork:
    """A collective under way that notes whether somebody waits for it."""

    def __init__(self, work, note: dict) -> None:
        self._work, self._note = work, note

    def wait(self, *args):
        self._note["waited"] = True
        return self._work.wait(*args)

    def __getattr__(self, name: str):
        return getattr(self._work, name)


def try_hook(hook, group: dist.ProcessGroup) -> dict[str, Any]:
    """Run one backward pass with the learner's ``hook`` and note what it did."""
    note: dict[str, Any] = {"waited": False, "values": [], "calls": [], "error": None}
    ddp = DistributedDataParallel(_Parameters(), process_group=group)

    def watched(group, bucket):
        buffer = bucket.buffer()
        try:
            note["values"].append(_outcome(hook(group, bucket), buffer))
        except Exception as error:  # an error inside DDP's backward would end the reducer
            note["error"] = _portable(error)
        done = torch.futures.Future()
        done.set_result(buffer.clone().float())
        return done

    ddp.register_comm_hook(group, watched)
    rank = dist.get_rank(group)
    with recorded(group) as log, _watching_work(note):
        ddp(gradient_of(rank)).backward()
    note["calls"] = [(event.call, event.nbytes, event.on_group) for event in log]
    return note


def _outcome(future: object, buffer: torch.Tensor) -> object:
    """Return what the hook's future holds: dtype and numbers, or its kind if it is no tensor."""
    if not isinstance(future, torch.futures.Future):
        return f"{type(future).__name__} instead of a future"
    value = future.wait()
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(value, torch.Tensor):
        return f"future of a {type(value).__name__}"
    return value.dtype, tuple(value.shape) == tuple(buffer.shape), value.detach().clone()


def _watching_work(note: dict):
    from unittest import mock

    original = dist.all_reduce

    def all_reduce(*args, **kwargs):
        work = original(*args, **kwargs)
        if work is None:
            note["waited"] = True
            return None
        return _WatchedWork(work, note)

    return mock.patch.object(dist, "all_reduce", all_reduce)


def judge_hook(everyone: Findings, p: int) -> None:
    no_errors(everyone)
    mean = sum(gradient_of(rank) for rank in range(p)) / p
    for rank, found in enumerate(everyone[:p]):
        calls = found["calls"]
        if not calls:
            raise WrongAnswer("no-communication", "the hook calls nothing of `dist`")
        if not all(on_group for _, _, on_group in calls):
            raise WrongAnswer(
                "forgets-the-group",
                f"`dist.{calls[0][0]}` is called without `group=group`, so it works on the whole "
                "world, whatever group this DDP is for",
            )
        for value in found["values"]:
            _judge_hook_value(rank, value, mean, p)
        if calls[0][1] != 2 * 16 or len(calls) != 1:
            names = ", ".join(f"{name} of {nbytes} bytes" for name, nbytes, _ in calls)
            raise WrongAnswer(
                "not-compressed",
                f"the mean is right, but a bucket of 16 numbers took {names}. In bfloat16 it is "
                "one all_reduce of 32 bytes",
            )
        if found["waited"]:
            raise WrongAnswer(
                "waits-in-the-hook",
                "the mean is right, but the hook waits for the all-reduce. Backward stands still "
                "until it is done, and nothing overlaps. Use `async_op=True` and return a future",
            )


def _judge_hook_value(rank: int, value: object, mean: torch.Tensor, p: int) -> None:
    if isinstance(value, str):
        raise WrongAnswer(
            "no-future", f"the hook has to return a future of one tensor; it returned a {value}"
        )
    dtype, fits, numbers = value
    if not fits:
        raise WrongAnswer("wrong-shape", "the future's tensor has not the shape of the bucket")
    numbers, expected = numbers.float(), torch.cat([mean, mean])
    for name, factor, text in (
        ("sum-not-mean", p, "the sum over the ranks. Who divides by the number of ranks?"),
        ("divides-twice", 1 / p, "the mean divided by the number of ranks once more"),
    ):
        if torch.allclose(numbers, factor * expected, rtol=0.02) and p > 1:
            raise WrongAnswer(name, f"the gradient on rank {rank} is {text}")
    if dtype != torch.float32:
        raise WrongAnswer(
            "stays-compressed",
            f"the future's tensor is {str(dtype).removeprefix('torch.')}. DDP puts it into float32 "
            "gradients: turn it back at the end",
        )
    if not torch.equal(numbers, expected):
        raise WrongAnswer(
            "wrong-value",
            f"rank {rank}'s gradient begins {numbers[:3].tolist()}, the mean is "
            f"{expected[:3].tolist()}",
        )


# ---- accumulation -----------------------------------------------------------------------------

MICRO_BATCHES = 4


def micro_batches(rank: int, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return four micro-batches of two samples, small whole numbers in float64."""
    found = []
    for index in range(MICRO_BATCHES):
        base = 1.0 + rank + 2 * index + step
        inputs = torch.tensor([[base, 1.0], [2.0, base]], dtype=torch.float64)
        found.append((inputs, torch.tensor([[base], [1.0]], dtype=torch.float64)))
    return found


def loss_function(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean of (target times output), whose gradient does not depend on the weights."""
    return (outputs * targets).mean()


def _gradient(batches) -> torch.Tensor:
    return sum((targets * inputs).mean(dim=0) for inputs, targets in batches) / len(batches)


def try_accumulation(accumulate, group: dist.ProcessGroup) -> dict[str, Any]:
    """Run two optimizer steps of the learner's ``accumulate`` and note what they took."""
    rank = dist.get_rank(group)
    linear = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(linear.weight)
    ddp = DistributedDataParallel(linear, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    counts = {"no_sync": 0, "steps": 0}
    _count_calls(ddp, "no_sync", counts, "no_sync")
    _count_calls(optimizer, "step", counts, "steps")
    rounds, weights = [], []
    for step in range(2):
        with Traffic(group) as traffic:
            accumulate(ddp, optimizer, loss_function, micro_batches(rank, step))
        rounds.append(traffic.collectives.get("all_reduce", Count()).messages)
        weights.append(linear.weight.detach().flatten().clone())
    return {"rounds": rounds, "weights": weights, **counts}


def _count_calls(thing: object, name: str, counts: dict, key: str) -> None:
    original = getattr(thing, name)

    def call(*args, **kwargs):
        counts[key] += 1
        return original(*args, **kwargs)

    setattr(thing, name, call)


def judge_accumulation(everyone: Findings, p: int) -> None:
    no_errors(everyone)
    found = everyone[0]
    steps, rounds = found["steps"], found["rounds"]
    if steps != 2:
        raise WrongAnswer(
            "steps-each-time" if steps > 2 else "never-steps",
            f"one call made {steps / 2:g} optimizer steps. It should make one, after the last "
            "micro-batch",
        )
    if rounds[0] == 0:
        raise WrongAnswer(
            "never-synchronises",
            "no all-reduce at all: every backward ran under `no_sync()`. The last one must not",
        )
    if rounds[0] > 1 and found["no_sync"]:
        raise WrongAnswer(
            "forward-outside-no-sync",
            f"{rounds[0]} all-reduces for {MICRO_BATCHES} micro-batches, although `no_sync()` is "
            "used. DDP decides at *forward* whether the next backward will synchronise: put the "
            "forward inside too",
        )
    if rounds[0] > 1:
        raise WrongAnswer(
            "a-round-per-micro-batch",
            f"{rounds[0]} rounds of all-reduce for {MICRO_BATCHES} micro-batches. The budget is "
            "one: the gradients add up on each rank first",
        )
    weights = [f["weights"] for f in everyone]
    if any(not torch.equal(w[0], weights[0][0]) for w in weights):
        raise WrongAnswer(
            "synchronises-too-early",
            "after the step the replicas differ. The all-reduce came before the last micro-batch, "
            "so what was added after it stayed local",
        )
    gradient = sum(_gradient(micro_batches(rank, 0)) for rank in range(p)) / p
    got = -weights[0][0]
    if _equal(got, MICRO_BATCHES * gradient):
        raise WrongAnswer(
            "gradient-too-large",
            f"the step is {MICRO_BATCHES} times too long: `backward()` adds up, and each loss is "
            "already a mean. Divide by the number of micro-batches",
        )
    last = sum(_gradient(micro_batches(rank, 0)[-1:]) for rank in range(p)) / p
    if _equal(got, last) or _equal(got, last / MICRO_BATCHES):
        raise WrongAnswer(
            "zeroes-each-time",
            "only the last micro-batch counts: `zero_grad()` throws away what the others added",
        )
    if not _equal(got, gradient):
        raise WrongAnswer(
            "wrong-value", f"the weights moved by {got.tolist()}, not by {gradient.tolist()}"
        )
    second = sum(_gradient(micro_batches(rank, 1)) for rank in range(p)) / p
    if not _equal(weights[0][0] - weights[0][1], second):
        raise WrongAnswer(
            "never-zeroes",
            "the first call is right, the second is not: the gradients of the step before are "
            "still in it. Call `zero_grad()` once per step",
        )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    # Whole numbers over 2 * 4 * p: exact for p = 2 and 4, a few roundings for other p.
    return torch.allclose(one, other, rtol=1e-12, atol=1e-12)
