"""A row-parallel layer is judged by its output, and by what it sent for it.

The judge behind the check of lesson 10b about the layer that is cut along its inputs. All numbers
are whole, so that sums are exact in any order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import need_group, need_one_all_reduce
from course_lib.teaching.judges.rank_groups import Findings, judge_findings

_SAMPLES, _OUTPUTS, _PART = 3, 5, 2


def layer_of(p: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs (3, 2p), weight (5, 2p) and bias (5), of small whole numbers in float64."""
    inputs = torch.arange(_SAMPLES * _PART * p) % 7 - 2
    weight = torch.arange(_OUTPUTS * _PART * p) % 5 - 1
    bias = 100 * torch.arange(1, _OUTPUTS + 1)
    return (
        inputs.view(_SAMPLES, -1).double(),
        weight.view(_OUTPUTS, -1).double(),
        bias.double(),
    )


def try_row_linear(row_linear, group: dist.ProcessGroup) -> dict[str, Any]:
    """Call the learner's function with this rank's parts and note what it returned and called."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    inputs, weight, bias = layer_of(p)
    own = [tensor.chunk(p, 1)[rank].contiguous() for tensor in (inputs, weight)]
    before = [tensor.clone() for tensor in (*own, bias)]
    with recorded(group) as calls:
        result = row_linear(*own, bias, group)
    changed = any(not torch.equal(*pair) for pair in zip(before, (*own, bias), strict=True))
    return {"calls": calls, "result": result, "changed": changed}


def judge_row_linear(everyone: Findings, p: int) -> None:
    """Raise WrongAnswer unless all ranks have the whole output, by one all-reduce of it."""
    judge_findings(everyone)
    inputs, weight, bias = layer_of(p)
    whole = inputs @ weight.T + bias
    for rank, found in enumerate(everyone[:p]):
        result, calls = found["result"], found["calls"]
        need_group(calls)
        if not all(call.waited for call in calls):
            raise WrongAnswer(
                "does-not-wait",
                f"rank {rank} never waits for its `{calls[0].call}`: until `wait()` has returned, "
                "the sum may not be there",
            )
        if not isinstance(result, torch.Tensor):
            raise WrongAnswer(
                "no-tensor", f"rank {rank} returned {type(result).__name__}. Is there a `return`?"
            )
        if result.shape != whole.shape:
            raise WrongAnswer(
                "wrong-shape",
                f"rank {rank} returned the shape {tuple(result.shape)}; {_SAMPLES} samples with "
                f"{_OUTPUTS} outputs have {tuple(whole.shape)}",
            )
        if not calls and _equal(result, whole):
            raise WrongAnswer(
                "not-by-dist",
                "the output is right, but no call of `dist` was seen. Use `dist` directly, so that "
                "the check can count what you send",
            )
        if not calls:
            raise WrongAnswer(
                "no-communication",
                f"rank {rank} returned the product of its own parts: one term of the sum. The "
                "others' terms are on the others",
            )
    right = [_equal(found["result"], whole) for found in everyone[:p]]
    if any(right) and not all(right):
        raise WrongAnswer(
            "not-on-every-rank",
            f"rank {right.index(True)} has the whole output, but rank {right.index(False)} has "
            "not, and its next layer needs it",
        )
    for rank, found in enumerate(everyone[:p]):
        calls = found["calls"]
        _judge_numbers(rank, found["result"], whole, bias, p)
        if found["changed"]:
            raise WrongAnswer(
                "changes-its-inputs",
                f"the output is right, but rank {rank}'s inputs, weight or bias are not what they "
                "were; backward, and the next step, need them unchanged",
            )
        need_one_all_reduce(
            calls,
            "brings every rank more than the sum: all ranks' terms, or the layer that was cut on "
            "purpose",
        )
        if calls[0].nbytes < whole.nbytes:
            raise WrongAnswer(
                "loses-digits",
                f"the output is right, as it has few digits here, but the sum is made of "
                f"{calls[0].nbytes} bytes, half of them or fewer. In float64 it has "
                f"{whole.nbytes}; rounded terms would train another model than the uncut layer",
            )


def _judge_numbers(
    rank: int, result: torch.Tensor, whole: torch.Tensor, bias: torch.Tensor, p: int
) -> None:
    if _equal(result, whole):
        return
    mistakes = (
        (
            "bias-on-every-rank",
            whole + (p - 1) * bias,
            f"every output has its bias {p} times: each of {p} ranks added it before the sum",
        ),
        ("forgets-the-bias", whole - bias, "the bias is missing"),
        (
            "mean-not-sum",
            (whole - bias) / p + bias,
            f"the product is a {p}th of what it should be. The parts are terms of a sum: there "
            "is nothing to average",
        ),
    )
    for name, wrong, text in mistakes:
        if p > 1 and _equal(result, wrong):
            raise WrongAnswer(name, f"on rank {rank} {text}")
    raise WrongAnswer(
        "wrong-value",
        f"rank {rank}'s first sample is {result[0].tolist()}, in one piece it is "
        f"{whole[0].tolist()}",
    )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.double(), other, rtol=0, atol=1e-9)
