"""Judges a wrapped optimizer by the weights after a few steps, which show what it left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import judge_collectives
from course_lib.teaching.judges.failures import judge_errors
from course_lib.teaching.judges.formulas import name_the_mistake
from course_lib.teaching.judges.messages import all_waited
from course_lib.teaching.message_log import Observation

__all__ = ["judge_wrapping", "observe_wrapping"]

_STEPS, _EACH = 3, 2
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


def _train(
    optimizer_of: Callable,
    inputs,
    targets,
    *,
    factor: float = 1.0,
    steps_each: int = 1,
    zeros: bool = False,
) -> list:
    """Return the weights after each step of one process; the gradient is multiplied by factor.

    ``zeros``: whether parameters without a gradient get one of zeros.
    """
    model = _model()
    optimizer, found = optimizer_of(model), []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        (factor * F.mse_loss(model(inputs), targets)).backward()
        for parameter in model.parameters() if zeros else ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for _ in range(steps_each):
            optimizer.step()
        found.append(_weights(model))
    return found


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _groups(model: nn.Module) -> list[dict]:
    """Two groups of parameters, to catch code that only looks at ``param_groups[0]``."""
    return [{"params": layer.parameters()} for layer in (model[0], model[2])]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    # With weight decay, a gradient of zeros moves a weight, and a missing gradient does not.
    return torch.optim.SGD(_groups(model), lr=0.5, momentum=0.9, weight_decay=0.1)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    # Averaging weights after the step is right with SGD, which is linear in the gradient.
    return torch.optim.Adam(_groups(model), lr=0.1)


_OPTIMIZERS = (_sgd, _adam)


def observe_wrapping(distributed: Callable, ranks: list[int] | None) -> Observation:
    # The object that it returns, and the hooks that it leaves behind, run the learner's code too.
    own = getattr(distributed, "call", lambda function, *arguments: function(*arguments))

    def train(model: nn.Module, wrapped: Any, group) -> list:
        r, p = dist.get_rank(group), dist.get_world_size(group)
        inputs, targets = (tensor[r::p] for tensor in _data(p))
        found = []
        for _ in range(_STEPS):
            own(wrapped.zero_grad)
            own(F.mse_loss(model(inputs), targets).backward)
            own(wrapped.step)
            found.append(_weights(model))
        return found

    def wrapped_and_trained(first, second, models: list[nn.Module], group) -> list:
        stepped: list[bool] = []
        second.register_step_post_hook(lambda *_: stepped.append(True))
        # Both are wrapped before one of them steps: each has to keep a state of its own.
        wrapped = [distributed(optimizer, group) for optimizer in (first, second)]
        if not all(hasattr(one, "step") for one in wrapped):
            return [_NOTHING]
        found = [train(models[0], wrapped[0], group)]
        if stepped:
            raise WrongAnswer("steps-another")
        return [*found, train(models[1], wrapped[1], group)]

    def train_both(group) -> list:
        models = [_model() for _ in _OPTIMIZERS]
        first, second = (of(model) for of, model in zip(_OPTIMIZERS, models, strict=True))
        with _own_steps(type(first), type(second)):
            return wrapped_and_trained(first, second, models, group)

    return observe_distributed(train_both, ranks=ranks)


@contextmanager
def _own_steps(*kinds: type[torch.optim.Optimizer]) -> Iterator[None]:
    """Restore the classes' own ``step``, and raise if it was replaced."""
    before = [kind.step for kind in kinds]
    try:
        yield
    finally:
        replaced = [k for k, step in zip(kinds, before, strict=True) if k.step is not step]
        for kind, step in zip(kinds, before, strict=True):
            kind.step = step
    if replaced:
        raise WrongAnswer("changes-the-class", name=replaced[0].__name__)


def _close(one: list, other: list) -> bool:
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(one, other, strict=True))


def judge_wrapping(seen: Observation, p: int) -> None:
    """Raise the mistake that the weights, or the calls that led to them, show."""
    judge_errors(seen.errors)
    given = seen.results[:p]
    if any(found and _NOTHING in found for found in given):
        raise WrongAnswer("returns-nothing")
    judge_collectives(seen)
    all_waited(seen)
    for number, optimizer_of in enumerate(_OPTIMIZERS):
        found = [both[number] for both in given]
        serial = _train(optimizer_of, *_data(p))
        if all(_close(result, serial) for result in found):
            continue
        if number == 0:
            _explain(found, serial, p)
        raise WrongAnswer("not-the-gradients")


def _explain(given: list, serial: list, p: int) -> None:
    inputs, targets = _data(p)
    start = _weights(_model())
    if all(torch.equal(weights, start) for result in given for weights in result):
        raise WrongAnswer("never-steps")
    alone = [_train(_sgd, inputs[rank::p], targets[rank::p]) for rank in range(p)]
    if all(_close(result, own) for result, own in zip(given, alone, strict=True)):
        raise WrongAnswer("trains-alone")
    mistakes = (
        ("none-becomes-zeros", _train(_sgd, inputs, targets, zeros=True)),
        ("sum-not-mean", _train(_sgd, inputs, targets, factor=p)),
        ("one-rank-s-gradient", alone[0]),
        ("steps-twice", _train(_sgd, inputs, targets, steps_each=2)),
    )

    def all_give(wrong: list) -> bool:
        return all(_close(result, wrong) for result in given)

    name_the_mistake(mistakes, all_give, p=p)
    if all(_close(result[:1], serial[:1]) for result in given):
        raise WrongAnswer("first-step-only")
    spread = max(float((result[-1] - given[0][-1]).abs().max()) for result in given)
    if spread > 1e-9:
        raise WrongAnswer("replicas-differ")
    raise WrongAnswer("not-the-serial-step")
