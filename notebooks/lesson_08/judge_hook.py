"""The judge of lesson 08's exercise on a communication hook in bfloat16.

A hook is judged by the tensor in its future, and by whether it waits for the all-reduce. Gradients,
their sums and means are whole numbers that bfloat16 represents exactly.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import need_group
from course_lib.teaching.judges.formulas import name_the_mistake
from course_lib.teaching.judges.rank_groups import Findings, judge_findings
from course_lib.teaching.message_log import portable


class _Parameters(nn.Module):
    """Two parameters whose gradients are whole numbers of your choice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.zeros(8)) for _ in range(2))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.one * gradient).sum() + (self.two * gradient).sum()


def gradient_of(rank: int) -> torch.Tensor:
    """Return multiples of 12, so that sums, and means over 2, 3 or 4, are exact in bfloat16.

    They are also far above 65,504, the largest number of float16.
    """
    return 12.0 * 2**20 * (rank + 1) * (torch.arange(8) % 3 + 1)


def try_hook(hook, group: dist.ProcessGroup) -> dict[str, Any]:
    """Run one backward pass with the learner's ``hook`` and note what it did."""
    values, errors, phase = [], [], "backward"
    ddp = DistributedDataParallel(_Parameters(), process_group=group)

    def watched(group, bucket):
        nonlocal phase
        buffer, phase = bucket.buffer(), "hook"
        try:
            future = hook(group, bucket)
            phase = "check"  # which has to wait, unlike the hook
            values.append(_outcome(hook, future, buffer))
        except Exception as error:  # an error inside DDP's backward would end the reducer
            errors.append(portable(error))
        done = torch.futures.Future()
        done.set_result(buffer.clone().float())
        return done

    ddp.register_comm_hook(group, watched)
    rank = dist.get_rank(group)
    with recorded(group, lambda: phase) as calls:
        ddp(gradient_of(rank)).backward()
    return {
        "calls": calls,
        "waited": any(call.call == "all_reduce" and call.waits[:1] == ["hook"] for call in calls),
        "values": values,
        "error": errors[0] if errors else None,
    }


def try_two_buckets(hook, group: dist.ProcessGroup) -> dict[str, Any]:
    """Run a backward pass with two buckets in flight; note what was sent, and from where."""
    ddp = DistributedDataParallel(_Parameters(), process_group=group, bucket_cap_mb=1e-5)
    ddp.register_comm_hook(group, lambda group, bucket: hook(group, bucket))
    sent: list[torch.Tensor] = []  # kept, so that no memory is reused by chance
    all_reduce = dist.all_reduce

    def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor)
        return all_reduce(tensor, *args, **kwargs)

    with patch.object(dist, "all_reduce", noted):
        for _ in range(2):  # after the first pass DDP knows the order, and cuts the buckets
            sent.clear()
            ddp(gradient_of(dist.get_rank(group))).backward()
    places = {tensor.untyped_storage().data_ptr() for tensor in sent}
    return {"buckets": len(sent), "places": len(places)}


def judge_two_buckets(everyone: Findings) -> None:
    judge_findings(everyone)
    for found in everyone:
        if found and found["places"] < found["buckets"]:
            raise WrongAnswer("one-tensor-for-all-buckets")


def _outcome(hook: Any, future: object, buffer: torch.Tensor) -> object:
    """Return what the hook's future holds: dtype and numbers, or its kind if it is no tensor."""
    if future is None:
        return "None instead of a future. Is there a `return`?"
    if not isinstance(future, torch.Future):
        if hasattr(future, "get_future"):
            return "the handle of the all-reduce instead of its future, `get_future()`"
        return f"a {type(future).__name__} instead of a future"
    value = hook.call(future.wait)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(value, torch.Tensor):
        kind = "None" if value is None else f"a {type(value).__name__}"
        return f"a future of {kind}"
    return value.dtype, tuple(value.shape) == tuple(buffer.shape), value.detach().clone()


def judge_hook(everyone: Findings, p: int) -> None:
    judge_findings(everyone)
    mean = sum(gradient_of(rank) for rank in range(p)) / p
    for rank, found in enumerate(everyone[:p]):
        calls = found["calls"]
        if not calls:
            raise WrongAnswer("no-communication")
        need_group(calls)
        for value in found["values"]:
            _judge_hook_value(rank, value, mean, p)
        if len(calls) > 1 and sum(call.nbytes for call in calls) == 2 * 16:
            raise WrongAnswer("too-many-collectives", count=len(calls))
        if calls[0].nbytes != 2 * 16 or len(calls) != 1:
            names = ", ".join(f"{event.call} of {event.nbytes} bytes" for event in calls)
            raise WrongAnswer("not-compressed", names=names)
        if found["waited"]:
            raise WrongAnswer("waits-in-the-hook")


def _judge_hook_value(rank: int, value: object, mean: torch.Tensor, p: int) -> None:
    if isinstance(value, str):
        raise WrongAnswer("no-future", value=value)
    dtype, fits, numbers = value
    if not fits:
        raise WrongAnswer("wrong-shape")
    numbers, expected = numbers.float(), torch.cat([mean, mean])
    if not numbers.isfinite().all():
        raise WrongAnswer(
            "overflows", rank=rank, given=numbers[:3].tolist(), wanted=expected[:3].tolist()
        )
    if p > 1:
        mistakes = {"sum-not-mean": p * expected, "divides-twice": expected / p}
        name_the_mistake(
            mistakes, lambda wrong: torch.allclose(numbers, wrong, rtol=0.02), rank=rank
        )
    if dtype != torch.float32:
        raise WrongAnswer("stays-compressed", dtype=str(dtype).removeprefix("torch."))
    if not _close(numbers, expected):
        own = torch.cat([gradient_of(rank)] * 2)
        if any(_close(numbers, gradient) for gradient in (own, own / p)):
            raise WrongAnswer("own-gradient", rank=rank)
        place = int((numbers - expected).abs().argmax())
        raise WrongAnswer(
            "wrong-value",
            rank=rank,
            place=place,
            given=numbers[place].item(),
            wanted=expected[place].item(),
        )


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    # What travels is exact in bfloat16. The last bit of float32 may differ: multiplying by 1/3
    # instead of dividing by 3 is right, too.
    return torch.allclose(one, other, rtol=1e-6, atol=0)
