"""Weights after a few steps of a wrapped optimizer tell what the wrapping left out."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import judge_collectives
from course_lib.teaching.judges.failures import judge_errors
from course_lib.teaching.judges.messages import all_waited
from course_lib.teaching.message_log import Observation

__all__ = ["judge_wrapping", "observe_wrapping"]

_STEPS, _RATE, _EACH = 3, 0.5, 2
_NOTHING = "no optimizer"


def _data(p: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = _EACH * p
    inputs = torch.arange(3.0 * count, dtype=torch.float64).view(count, 3).sin()
    return inputs, inputs.flip(1)[:, :2] + 1


def _model() -> nn.Module:
    """Small, in float64, the same on all ranks; its first bias is frozen."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    for index, parameter in enumerate(model.parameters()):
        places = torch.arange(parameter.numel(), dtype=torch.float64).view_as(parameter)
        parameter.data.copy_((places + index).cos() / 2)
    model[0].bias.requires_grad_(False)
    return model


def _train(model: nn.Module, optimizer, inputs, targets, of: Callable | None = None) -> list:
    found = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        if of is not None:
            of(model)
        optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return found


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=_RATE, momentum=0.9)


def observe_wrapping(distributed: Callable, ranks: list[int] | None) -> Observation:
    def call(group):
        r, p = dist.get_rank(group), dist.get_world_size(group)
        inputs, targets = (tensor[r::p] for tensor in _data(p))
        model = _model()
        wrapped = distributed(_optimizer(model), group)
        if wrapped is None or not hasattr(wrapped, "step"):
            return _NOTHING
        return _train(model, wrapped, inputs, targets)

    return observe_distributed(call, ranks=ranks)


def _close(one: list, other: list) -> bool:
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(one, other, strict=True))


def judge_wrapping(seen: Observation, p: int) -> None:
    """Raise what is wrong with the weights, or with how they came about."""
    judge_errors(seen.errors)
    given = seen.results[:p]
    if _NOTHING in given:
        raise WrongAnswer(
            "returns-nothing", "it has to return an optimizer: something with a method `step`"
        )
    judge_collectives(seen)
    all_waited(seen)
    inputs, targets = _data(p)
    model = _model()
    serial = _train(model, _optimizer(model), inputs, targets)
    if all(_close(result, serial) for result in given):
        return
    _explain(given, serial, inputs, targets, p)


def _explain(given: list, serial: list, inputs, targets, p: int) -> None:
    alone = []
    for rank in range(p):
        model = _model()
        alone.append(_train(model, _optimizer(model), inputs[rank::p], targets[rank::p]))
    if all(_close(result, own) for result, own in zip(given, alone, strict=True)):
        raise WrongAnswer(
            "trains-alone",
            "every rank trains on its own samples only, as if nothing had been wrapped: is the "
            "average made, and made *before* the step?",
        )
    summed = _model()

    def times_p(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= p

    if all(
        _close(r, _train(summed, _optimizer(summed), inputs, targets, times_p)) for r in given[:1]
    ):
        raise WrongAnswer("sum-not-mean", f"it adds the gradients up: divide by {p}")
    if all(_close(result[:1], serial[:1]) for result in given):
        raise WrongAnswer(
            "first-step-only", "the first step is right, and the next ones are not: average anew "
            "each time",
        )  # fmt: skip
    spread = max(float((result[-1] - given[0][-1]).abs().max()) for result in given)
    if spread > 1e-9:
        raise WrongAnswer(
            "replicas-differ",
            "after three steps the ranks have different weights. With momentum it is not enough "
            "to average some of the gradients, or to average on some ranks",
        )
    raise WrongAnswer(
        "not-the-serial-step",
        "the ranks agree, but not on the weights of one process with the whole batch. With "
        "momentum, averaging *weights* after the step is another algorithm: average gradients "
        "before it",
    )
