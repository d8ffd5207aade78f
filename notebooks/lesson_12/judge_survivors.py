"""The judge of lesson 12 for going on with the survivors: weights, momentum and step must agree.

No rank dies in it: one stays away, as a dead rank would, and one of the others is a step ahead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import CheckImpossibleError, WrongAnswer, as_mistake
from course_lib.teaching.judges.failures import need_training_mode
from course_lib.teaching.judges.rank_groups import Findings, judge_findings, on_each_rank

DEAD = 1
BEHIND, AHEAD = 3, 4
_GROUP_CALLS = (
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    *("all_reduce", "broadcast", "all_gather", "reduce", "gather", "scatter", "barrier"),
    *("send", "recv", "isend", "irecv", "all_gather_into_tensor"),
)


def check_survivors(go_on) -> None:
    """Judge ``go_on`` with the last survivor ahead, and with another one; every rank calls this."""
    living = [rank for rank in range(dist.get_world_size()) if rank != DEAD]
    if len(living) < 2:
        raise CheckImpossibleError(
            "it needs at least 3 ranks, of which one stays away: run the lesson's cell with "
            "start_cluster(n=4, ...), then the one with dist.init_process_group, and your own"
        )
    _trained(1)  # on all ranks: the first optimizer of a process spends seconds on imports
    last, other = len(living) - 1, len(living) - 2
    judge_survivors(observe_survivors(go_on, living, last), last)
    with as_mistake("one-rank-always", last=last, other=other):
        judge_survivors(observe_survivors(go_on, living, other), other)


def observe_survivors(go_on, living: list[int], ahead: int) -> Findings:
    """Let the survivors go on from states a step apart; rank ``ahead`` of them is ahead."""
    return on_each_rank(functools.partial(_try, go_on, ahead), living)


def _try(go_on, ahead: int, group: dist.ProcessGroup) -> dict[str, Any]:
    done = AHEAD if dist.get_rank(group) == ahead else BEHIND
    model, optimizer = _trained(done)
    with recorded(group) as calls, _only(group) as sources:
        answer = go_on(model, optimizer, done, group)
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise WrongAnswer("not-a-pair", answer=_kind(answer))
    ddp, step = answer
    if not isinstance(ddp, DistributedDataParallel):
        raise WrongAnswer("not-wrapped", ddp=_kind(ddp))
    if ddp.process_group is not group:
        raise _dead_included("DistributedDataParallel(...)")
    if ddp.module is not model:
        raise WrongAnswer("another-model")
    return {
        "step": step,
        "training": all(module.training for module in ddp.modules()),
        "weights": _which(_weights(model)),
        "momentum": _momentum_of(optimizer),
        "buffers": int(model.seen),
        "sources": sources,
        "late": next((call.call for call in calls if not call.waited), ""),
    }


def judge_survivors(everyone: Findings, ahead: int) -> None:
    survivors = [found for found in everyone if found is not None]
    judge_findings(everyone)
    for rank, found in enumerate(survivors):
        if found["late"]:
            raise WrongAnswer("does-not-wait: for a call", rank=rank, call=found["late"])
    weights = [found["weights"] for found in survivors]
    momenta = [found["momentum"] for found in survivors]
    steps = [found["step"] for found in survivors]
    if AHEAD not in weights and any(ahead in found["sources"] for found in survivors):
        raise WrongAnswer("a-rank-of-the-world", last=ahead)
    if set(weights) == {None}:
        raise WrongAnswer("weights-of-no-step")
    if len(set(weights)) > 1:
        raise WrongAnswer("replicas-differ", weights=_told(weights))
    if set(momenta) == {None}:
        raise WrongAnswer("forgets-the-optimizer", weights=weights[0])
    if len(set(momenta)) > 1 or momenta[0] != weights[0]:
        raise WrongAnswer(
            "forgets-the-optimizer: of another step", weights=weights[0], momenta=_told(momenta)
        )
    buffers = [found["buffers"] for found in survivors]
    if any(one != weights[0] for one in buffers):
        raise WrongAnswer("forgets-the-buffers", weights=weights[0], buffers=_told(buffers))
    for step in steps:
        if not isinstance(step, Integral):
            raise WrongAnswer("not-a-step", step=repr(step), kind=_kind(step))
    if len(set(steps)) > 1:
        raise WrongAnswer("steps-differ", steps=_told(steps))
    if steps[0] == AHEAD + 1 and weights[0] == AHEAD:
        raise WrongAnswer("counts-from-one", step=steps[0], ahead=AHEAD)
    if weights[0] > steps[0]:
        raise WrongAnswer("step-and-state-do-not-fit", step=steps[0], weights=weights[0])
    if weights[0] < steps[0]:
        raise WrongAnswer(
            "step-and-state-do-not-fit: with a batch left out", step=steps[0], weights=weights[0]
        )
    if steps[0] == BEHIND:
        raise WrongAnswer("throws-a-step-away", behind=BEHIND, ahead=AHEAD)
    need_training_mode(all(found["training"] for found in survivors))


# ---- what the replicas are --------------------------------------------------------------------


def _trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimizer after ``steps`` steps, the same on every rank."""
    model = nn.Linear(3, 1)
    model.register_buffer("seen", torch.tensor(steps))  # counts steps, as batch norm does
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(1.0, 1 + parameter.numel()).view_as(parameter))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.tensor([[1.0, 2.0, 4.0]]) + step).sum().backward()
        optimizer.step()
    return model, optimizer


def _weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def _which(weights: list[torch.Tensor]) -> int | None:
    """Return after how many steps a model has these weights; None if it never has them."""
    for steps in (AHEAD, BEHIND):
        pairs = zip(weights, _weights(_trained(steps)[0]), strict=True)
        if all(torch.equal(one, other) for one, other in pairs):
            return steps
    return None


def _momentum_of(optimizer: torch.optim.Optimizer) -> int | None:
    state = optimizer.state_dict()["state"]
    for steps in (AHEAD, BEHIND):
        wanted = _trained(steps)[1].state_dict()["state"]
        if state.keys() == wanted.keys() and all(
            torch.equal(state[i]["momentum_buffer"], wanted[i]["momentum_buffer"]) for i in wanted
        ):
            return steps
    return None


# ---- who is asked -----------------------------------------------------------------------------


@contextmanager
def _only(group: dist.ProcessGroup) -> Iterator[list[int]]:
    """Let a call that would wait for the dead rank fail at once; note every ``src``."""
    sources: list[int] = []
    wrap = DistributedDataParallel.__init__

    def checked(self, *args, **kwargs):
        given = inspect.signature(wrap).bind(self, *args, **kwargs).arguments
        if given.get("process_group") is not group:
            raise _dead_included("DistributedDataParallel(...)")
        wrap(self, *args, **kwargs)

    guarded = {name: _guarded(name, getattr(dist, name), group, sources) for name in _GROUP_CALLS}
    with (
        patch.multiple(dist, **guarded),
        patch.object(DistributedDataParallel, "__init__", checked),
    ):
        yield sources


def _guarded(name: str, original, group: dist.ProcessGroup, sources: list[int]):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        if given.get("group") is not group:
            raise _dead_included(f"dist.{name}")
        if isinstance(given.get("src"), int):
            sources.append(given["src"])
        return original(*args, **kwargs)

    return call


def _dead_included(call: str) -> WrongAnswer:
    return WrongAnswer("waits-for-the-dead", call=call, dead=DEAD)


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _told(values: list) -> str:
    return ", ".join("?" if value is None else str(value) for value in values)
