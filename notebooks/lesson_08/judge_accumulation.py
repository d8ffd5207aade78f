"""The judge of lesson 08's exercise on gradient accumulation.

Gradients of several micro-batches must add up on each rank, and be all-reduced once. They are whole
numbers, so that a right answer differs from a wrong one by more than rounding.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_mpi4py import Traffic
from torch_mpi4py.tools.traffic_matrix import Count

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import need_training_mode
from course_lib.teaching.judges.rank_groups import Findings, judge_findings

MICRO_BATCHES, SAMPLES = 4, 2
SECOND = 6  # micro-batches of the second step


def micro_batches(rank: int, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return four or six micro-batches of two samples, small whole numbers in float64."""
    found = []
    for index in range(SECOND if step else MICRO_BATCHES):
        base = 1.0 + rank + 2 * index + step
        inputs = torch.tensor([[base, 1.0], [2.0, base]], dtype=torch.float64)
        found.append((inputs, torch.tensor([[base], [1.0]], dtype=torch.float64)))
    return found


def loss_function(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean of (target times output), whose gradient does not depend on the weights."""
    return (outputs * targets).mean()


def _gradient(batches) -> torch.Tensor:
    """Return the gradient of the weights and, last, of the bias."""
    of_each = (
        torch.cat([(targets * inputs).mean(dim=0), targets.mean(dim=0)])
        for inputs, targets in batches
    )
    return sum(of_each) / len(batches)


def try_accumulation(accumulate, group: dist.ProcessGroup) -> dict[str, Any]:
    """Run two optimizer steps of the learner's ``accumulate`` and note what they took."""
    rank = dist.get_rank(group)
    linear = nn.Linear(2, 1, dtype=torch.float64)  # two parameters, one bucket
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    ddp = DistributedDataParallel(linear, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    counts = {
        "no_sync": 0,
        "entered": 0,
        "steps": 0,
        "largest": 0,
        "graphs": 0,
        "open": 0,
        "taken": 0,
        "changed": False,
    }
    linear.register_forward_hook(functools.partial(_note_forward, counts))
    _count_no_sync(ddp, counts)
    optimizer.register_step_post_hook(functools.partial(_count_step, counts))
    rounds, own, weights = [], [], []
    for step in range(2):
        given = micro_batches(rank, step)
        # The meter counts all groups: the learner may all-reduce over the world, not DDP's group.
        with Traffic() as traffic, recorded(group, names=("all_reduce",)) as all_reduces:
            accumulate(ddp, optimizer, loss_function, batches := list(given))
        counts["taken"] = max(counts["taken"], len(given) - len(batches))
        counts["changed"] |= [*map(id, batches)] != [*map(id, given)]
        counts["changed"] |= not _equal_batches(given, micro_batches(rank, step))
        rounds.append(traffic.collectives.get("all_reduce", Count()).messages)
        own.append(len(all_reduces))
        weights.append(torch.cat([p.detach().flatten() for p in linear.parameters()]))
    found = {"rounds": rounds, "own": own, "weights": weights, "training": ddp.training}
    return found | counts


def _equal_batches(one: list, other: list) -> bool:
    pairs = zip(itertools.chain(*one), itertools.chain(*other), strict=True)
    return all(torch.equal(tensor, before) for tensor, before in pairs)


def _note_forward(counts: dict, module: nn.Module, inputs: tuple, outputs: torch.Tensor) -> None:
    """Note how many samples come at a time, and how many graphs still await their backward."""

    def gone_back(gradient: torch.Tensor) -> None:
        counts["open"] -= 1

    counts["largest"] = max(counts["largest"], len(inputs[0]))
    if outputs.requires_grad:
        counts["open"] += 1
        counts["graphs"] = max(counts["graphs"], counts["open"])
        outputs.register_hook(gone_back)


def _count_step(counts: dict, *_: object) -> None:
    counts["steps"] += 1


def _count_no_sync(ddp: DistributedDataParallel, counts: dict) -> None:
    """Count how often ``no_sync()`` is called, and how often a ``with`` enters it."""
    original = ddp.no_sync

    @contextmanager
    def entered() -> Iterator[None]:
        counts["entered"] += 1
        with original():
            yield

    def no_sync() -> AbstractContextManager:
        counts["no_sync"] += 1
        return entered()

    ddp.no_sync = no_sync


def judge_accumulation(everyone: Findings, p: int) -> None:
    judge_findings(everyone)
    found = everyone[0]
    steps, rounds = found["steps"], found["rounds"]
    if steps != 2:
        if steps > 2:
            raise WrongAnswer("steps-each-time", steps=steps / 2)
        raise WrongAnswer("never-steps", steps=steps / 2)
    if rounds[0] == 0:
        raise WrongAnswer("never-synchronises")
    if rounds[0] > 1 and found["own"][0]:
        raise WrongAnswer("own-all-reduces", count=found["own"][0])
    if rounds[0] > 1 and found["no_sync"] and not found["entered"]:
        raise WrongAnswer("no-sync-not-entered", rounds=rounds[0], micro_batches=MICRO_BATCHES)
    if 1 < rounds[0] < MICRO_BATCHES and found["entered"]:
        raise WrongAnswer("leaves-no-sync-early", rounds=rounds[0], micro_batches=MICRO_BATCHES)
    if rounds[0] > 1 and found["no_sync"]:
        raise WrongAnswer("forward-outside-no-sync", rounds=rounds[0], micro_batches=MICRO_BATCHES)
    if rounds[0] > 1:
        raise WrongAnswer("a-round-per-micro-batch", rounds=rounds[0], micro_batches=MICRO_BATCHES)
    if found["largest"] > SAMPLES:
        raise WrongAnswer("all-at-once", largest=found["largest"], samples=SAMPLES)
    weights = [f["weights"] for f in everyone]
    if any(not torch.equal(w[0], weights[0][0]) for w in weights):
        raise WrongAnswer("synchronises-too-early")
    gradient = sum(_gradient(micro_batches(rank, 0)) for rank in range(p)) / p
    got = -weights[0][0]
    second = sum(_gradient(micro_batches(rank, 1)) for rank in range(p)) / p
    second_got = weights[0][0] - weights[0][1]
    if p > 1 and _equal(got, p * gradient) and _equal(second_got, p * second):
        raise WrongAnswer("not-divided-by-ranks", p=p)
    if _equal(got, MICRO_BATCHES * gradient):
        raise WrongAnswer("gradient-too-large", micro_batches=MICRO_BATCHES)
    last = sum(_gradient(micro_batches(rank, 0)[-1:]) for rank in range(p)) / p
    if _equal(got, last) or _equal(got, last / MICRO_BATCHES):
        raise WrongAnswer("zeroes-each-time")
    if not _equal(got, gradient):
        _name_the_step(got, gradient, p)
        raise WrongAnswer("wrong-value", given=got.tolist(), wanted=gradient.tolist())
    told = {"first": MICRO_BATCHES, "second": SECOND, "rounds": rounds[1]}
    if rounds[1] != 1:
        raise WrongAnswer("count-is-fixed: by rounds", **told)
    if _equal(second_got * MICRO_BATCHES, second * SECOND):
        raise WrongAnswer("count-is-fixed", **told)
    if not _equal(second_got, second):
        raise WrongAnswer("never-zeroes")
    if found["taken"]:
        raise WrongAnswer("changes-its-input", taken=found["taken"])
    if any(f["changed"] for f in everyone):
        raise WrongAnswer("changes-its-input: what is in it")
    need_training_mode(found["training"])
    if found["graphs"] > 1:
        raise WrongAnswer("keeps-all-graphs", graphs=found["graphs"])


def _name_the_step(got: torch.Tensor, gradient: torch.Tensor, p: int) -> None:
    """Raise the mistake that explains the step ``got``, if it is one of these."""
    of_each = [
        sum(_gradient(micro_batches(rank, 0)[index : index + 1]) for rank in range(p)) / p
        for index in range(MICRO_BATCHES)
    ]
    if _equal(got, gradient / p):
        raise WrongAnswer("divides-by-the-ranks", p=p)
    if _equal(got, gradient + of_each[-1] * (1 - 1 / MICRO_BATCHES)):
        raise WrongAnswer("last-not-divided", micro_batches=MICRO_BATCHES)
    if _equal(got, MICRO_BATCHES * gradient - of_each[-1] * (1 - 1 / MICRO_BATCHES)):
        raise WrongAnswer("only-the-last-divided", micro_batches=MICRO_BATCHES)
    for many in range(1, MICRO_BATCHES):
        for chosen in itertools.combinations(range(MICRO_BATCHES), many):
            if _equal(got, sum(of_each[index] for index in chosen) / MICRO_BATCHES):
                numbers = ", ".join(str(index + 1) for index in chosen)
                raise WrongAnswer(
                    "micro-batches-missing", micro_batches=MICRO_BATCHES, numbers=numbers
                )
    factor = (got[0] / gradient[0]).item()
    if _equal(got, factor * gradient):
        raise WrongAnswer("wrong-length", factor=factor, micro_batches=MICRO_BATCHES)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    # Whole numbers over 2 * 4 * p: exact for p = 2 and 4, a few rounding errors for other p.
    return torch.allclose(one, other, rtol=1e-12, atol=1e-12)
