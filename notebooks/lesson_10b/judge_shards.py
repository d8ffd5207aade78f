"""The judge of lesson 10b's exercise on an optimizer with sharded state.

The learner's step is judged by weights and state after two steps, and by the bytes that each sends.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import need_group
from course_lib.teaching.judges.rank_groups import Findings, judge_findings

PARTS = (4, 3)  # numbers in each rank's part, in one trial and another
STEPS = 2  # only the second depends on the velocity
RATE, MOMENTUM = 0.1, 0.9
_REDUCE_SCATTERS = ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single")
# Each rank gets all ranks' gradients of its part and adds them up: as many bytes.
_EXCHANGES = ("all_to_all", "all_to_all_single")


def gradient_of(rank: int, step: int, n: int) -> torch.Tensor:
    """Return the gradient of one rank in one step, (n,) float64."""
    return (rank + 1.0) * (torch.arange(n) % 5 + 1 + step).double()


def serial_steps(p: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and velocity of one process after all steps with the mean gradients."""
    weights = torch.arange(n).double()
    velocity = torch.zeros_like(weights)
    for step in range(STEPS):
        mean = sum(gradient_of(rank, step, n) for rank in range(p)) / p
        velocity = MOMENTUM * velocity + mean
        weights = weights - RATE * velocity
    return weights, velocity


def try_sharded_step(sharded_step, part: int, group: dist.ProcessGroup) -> dict[str, Any]:
    """Take two steps with the learner's function; return weights, velocity and calls."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)

    changed: list[int] = []

    def steps() -> tuple[torch.Tensor, torch.Tensor]:
        weights, velocity = torch.arange(part * p).double(), torch.zeros(part).double()
        for step in range(STEPS):
            gradient = gradient_of(rank, step, part * p)
            sharded_step(weights, gradient, velocity, group)
            changed.extend([step] * (not torch.equal(gradient, gradient_of(rank, step, part * p))))
        return weights, velocity

    with recorded(group) as calls:
        weights, velocity = steps()
    again, _ = steps()
    found = {"calls": calls, "weights": weights, "velocity": velocity, "again": again}
    return found | {"changed": bool(changed)}


def judge_sharded_step(everyone: Findings, p: int, part: int) -> None:
    """Raise WrongAnswer unless all ranks get the serial weights for the bytes of one all-reduce."""
    judge_findings(everyone)
    members = everyone[:p]
    weights, velocity = serial_steps(p, part * p)
    for rank, found in enumerate(members):
        need_group(found["calls"])
        late = [call.call for call in found["calls"] if not call.waited]
        if late:
            raise WrongAnswer("does-not-wait", rank=rank, late=late[0])
    if not all(found["calls"] for found in members):
        raise WrongAnswer("no-communication")
    # Rank r may hold the r-th piece, or every p-th number from r on.
    strided = all(_close(found["velocity"], velocity[r::p]) for r, found in enumerate(members))
    for rank, found in enumerate(members if not strided else ()):
        _judge_velocity(rank, found["velocity"], velocity.chunk(p)[rank], p)
    for rank, found in enumerate(members):
        if not _close(found["weights"], weights):
            _explain_weights(rank, found["weights"], weights, p)
    for found in members:
        _judge_calls(found["calls"], p, part)
    for rank, found in enumerate(members):
        if not _close(found["again"], weights):
            raise WrongAnswer("velocity-elsewhere", rank=rank)
        if found["changed"]:
            raise WrongAnswer("changes-its-input", rank=rank)


def _judge_velocity(rank: int, found: torch.Tensor, expected: torch.Tensor, p: int) -> None:
    if _close(found, expected):
        return
    if not found.any():
        raise WrongAnswer("velocity-not-kept", rank=rank)
    if _close(found, p * expected):
        raise WrongAnswer("sum-not-mean", rank=rank, p=p)
    n = p * len(expected)
    last = sum(gradient_of(other, STEPS - 1, n) for other in range(p)) / p
    if _close(found, last.chunk(p)[rank]):
        raise WrongAnswer("no-momentum", rank=rank)
    own = torch.zeros_like(expected)
    for step in range(STEPS):
        own = MOMENTUM * own + gradient_of(rank, step, n).chunk(p)[rank]
    if _close(found, own):
        raise WrongAnswer("own-gradient", rank=rank)
    raise WrongAnswer(
        "wrong-velocity", rank=rank, given=found[:2].tolist(), wanted=expected[:2].tolist()
    )


def _explain_weights(rank: int, found: torch.Tensor, expected: torch.Tensor, p: int) -> None:
    n, part = len(expected), len(expected) // p
    before = torch.arange(n).double()
    if _close(found, before):
        raise WrongAnswer("weights-not-changed", rank=rank)
    own = slice(part * rank, part * (rank + 1))
    others = torch.ones(n, dtype=torch.bool)
    others[own] = False
    if _close(found[own], expected[own]) and _close(found[others], before[others]):
        raise WrongAnswer("does-not-gather", rank=rank)
    if _close(found - before, before - expected):
        raise WrongAnswer("uphill")
    right = [_close(*pair) for pair in zip(found.chunk(p), expected.chunk(p), strict=True)]
    if any(right):
        wrong = right.index(False)
        raise WrongAnswer(
            "wrong-part",
            wrong=wrong,
            rank=rank,
            wanted=expected.chunk(p)[wrong][:2].tolist(),
            given=found.chunk(p)[wrong][:2].tolist(),
        )
    raise WrongAnswer(
        "wrong-weights", rank=rank, given=found[:2].tolist(), wanted=expected[:2].tolist()
    )


def _judge_calls(calls: list, p: int, part: int) -> None:
    names = [call.call for call in calls]
    if "all_reduce" in names and any(name in _REDUCE_SCATTERS for name in names):
        raise WrongAnswer("all-reduces-weights")
    if "all_reduce" in names:
        raise WrongAnswer("all-reduces")
    sums = [call for call in calls if call.call in (*_REDUCE_SCATTERS, *_EXCHANGES)]
    gathers = [call for call in calls if call.call.startswith("all_gather")]
    if len(calls) != 2 * STEPS or len(sums) != STEPS or len(gathers) != STEPS:
        raise WrongAnswer("too-many-collectives", steps=STEPS, calls=", ".join(names))
    if any(call.nbytes != 8 * part for call in gathers):
        raise WrongAnswer("gathers-too-much", nbytes=gathers[0].nbytes, part_bytes=8 * part)
    if any(call.nbytes < 8 * part * p for call in sums):
        raise WrongAnswer("loses-digits", nbytes=sums[0].nbytes, all_bytes=8 * part * p)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-9)
