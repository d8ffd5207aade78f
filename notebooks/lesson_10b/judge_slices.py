"""The judge of lesson 10b's exercise on a layer that is cut by rows.

The layer is judged by its output and by what it sends. All numbers are whole, so that sums are
exact in any order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import need_group, need_one_all_reduce
from course_lib.teaching.judges.formulas import name_the_mistake
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
    kept = result.clone() if isinstance(result, torch.Tensor) else result
    row_linear(2 * own[0], own[1], bias, group)  # the next batch
    overwritten = isinstance(result, torch.Tensor) and not torch.equal(result, kept)
    changed = any(not torch.equal(*pair) for pair in zip(before, (*own, bias), strict=True))
    single = None
    with recorded(group) as in_single:
        if not overwritten:  # otherwise the reused tensor may have another dtype
            single = row_linear(own[0].float(), own[1].float(), bias.float(), group)
    return {
        "calls": calls,
        "result": kept,
        "changed": changed,
        "overwritten": overwritten,
        "single": sum(call.nbytes or 0 for call in in_single),
        "single_dtype": getattr(single, "dtype", None),
    }


def judge_row_linear(everyone: Findings, p: int) -> None:
    """Raise WrongAnswer unless all ranks have the whole output after one all-reduce of its size."""
    judge_findings(everyone)
    inputs, weight, bias = layer_of(p)
    whole = inputs @ weight.T + bias
    for rank, found in enumerate(everyone[:p]):
        result, calls = found["result"], found["calls"]
        need_group(calls)
        if not all(call.waited for call in calls):
            raise WrongAnswer("does-not-wait", rank=rank, call=calls[0].call)
        if not isinstance(result, torch.Tensor):
            raise WrongAnswer("no-tensor", rank=rank, kind=type(result).__name__)
        if result.shape != whole.shape:
            raise WrongAnswer(
                "wrong-shape",
                rank=rank,
                shape=tuple(result.shape),
                samples=_SAMPLES,
                outputs=_OUTPUTS,
                wanted=tuple(whole.shape),
            )
        if not calls and _equal(result, whole):
            raise WrongAnswer("not-by-dist")
        if not calls:
            raise WrongAnswer("no-communication", rank=rank)
    right = [_equal(found["result"], whole) for found in everyone[:p]]
    if any(right) and not all(right):
        raise WrongAnswer("not-on-every-rank", rank=right.index(True), other=right.index(False))
    for rank, found in enumerate(everyone[:p]):
        calls = found["calls"]
        _judge_numbers(rank, found["result"], whole, bias, p)
        if found["changed"]:
            raise WrongAnswer("changes-its-inputs", rank=rank)
        if found["overwritten"]:
            raise WrongAnswer("overwrites-its-result", rank=rank)
        need_one_all_reduce(calls)
        if calls[0].nbytes < whole.nbytes:
            raise WrongAnswer("loses-digits", nbytes=calls[0].nbytes, needed=whole.nbytes)
        for dtype, sent in ((torch.float64, calls[0].nbytes), (torch.float32, found["single"])):
            needed = whole.to(dtype).nbytes
            if sent > needed:
                raise WrongAnswer(
                    "sends-too-much", rank=rank, nbytes=sent, needed=needed, dtype=dtype
                )
        given = {torch.float64: found["result"].dtype, torch.float32: found["single_dtype"]}
        for wanted, dtype in given.items():
            if dtype != wanted:
                raise WrongAnswer("another-type", rank=rank, dtype=dtype, wanted=wanted)


def _judge_numbers(
    rank: int, result: torch.Tensor, whole: torch.Tensor, bias: torch.Tensor, p: int
) -> None:
    if _equal(result, whole):
        return
    mistakes = (
        ("bias-on-every-rank", whole + (p - 1) * bias),
        ("forgets-the-bias", whole - bias),
        ("mean-not-sum", (whole - bias) / p + bias),
    )
    if p > 1:
        name_the_mistake(mistakes, lambda wrong: _equal(result, wrong), rank=rank, p=p)
    raise WrongAnswer("wrong-value", rank=rank, given=result[0].tolist(), wanted=whole[0].tolist())


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.double(), other, rtol=0, atol=1e-9)
