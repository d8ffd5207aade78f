"""Judge overlap by the order of calls, not by a clock.

The judge of lesson 06's buckets. Gradients are whole numbers, and each way to fill the buckets
gives messages of different sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import WrongAnswer, as_mistake
from course_lib.teaching.judges.rank_groups import Findings, judge_findings
from course_lib.teaching.message_log import LoggedCall

__all__ = ["BUCKET_BYTES", "judge_buckets", "judge_wide_buckets", "try_buckets"]

# The parameters in the order of forward. Backward reaches them from the last: 10 elements
# (40 bytes), 6 + 4 (40 bytes), and 8 + 1 (36 bytes), which nothing but `finish` can send.
SHAPES = ((1,), (2, 4), (4,), (3, 2), (5, 2))
ELEMENTS = [torch.Size(shape).numel() for shape in SHAPES]
BUCKET_BYTES = 40
BUCKETS = [40, 40, 36]
FORWARD_BUCKETS = [52, 64]
WIDE_BUCKETS = [80, 48, 96, 8]  # of the same parameters in float64, which fill no bucket exactly
EARLY_BUCKETS = [80, 48, 32, 64, 8]  # if a bucket leaves before it would hold too much
STEPS = 2


def gradients_of(rank: int, step: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return whole numbers; no rank's own is a mean, or a maximum over p."""
    scale = 12.0 * (2 * rank + 5) * (step + 1)
    return [
        scale * (torch.arange(n, dtype=dtype) % 3 + 1 + i).view(shape)
        for i, (n, shape) in enumerate(zip(ELEMENTS, SHAPES, strict=True))
    ]


def try_buckets(
    bucketed_sync: Any, group: dist.ProcessGroup, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Run two backward passes with the learner's hooks, and note what was sent and when."""
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]
    phase, found = "start", []
    rank = dist.get_rank(group)
    with recorded(group, lambda: phase, ("all_reduce",)) as calls:
        finish = bucketed_sync(parameters, BUCKET_BYTES, group)
        if not callable(finish):
            return {"calls": [], "found": [], "returned": repr(finish)}
        for step in range(STEPS):
            total = torch.zeros((), dtype=dtype)
            for parameter, gradient in zip(
                parameters, gradients_of(rank, step, dtype), strict=True
            ):
                parameter.grad = torch.zeros_like(parameter)
                total = total + (parameter * gradient).sum()
            phase = ("backward", step)
            bucketed_sync.call(total.backward)
            phase = ("finish", step)
            bucketed_sync.call(finish)
            phase = "after"
            found.append([parameter.grad.clone() for parameter in parameters])
    return {"calls": calls, "found": found, "returned": ""}


def judge_buckets(everyone: Findings, p: int) -> None:
    judge_findings(everyone)
    found = everyone[0]
    if found["returned"]:
        raise WrongAnswer("returns-no-function", returned=found["returned"])
    calls = found["calls"]
    if not calls:
        raise WrongAnswer("no-communication")
    if not all(call.on_group for call in calls):
        raise WrongAnswer("forgets-the-group")
    first = [call for call in calls if call.sent[1] == 0]
    if not first:
        raise WrongAnswer("hooks-too-late")
    _judge_messages(first)
    _judge_waiting(first)
    _judge_values([found["found"][0] for found in everyone[:p]], p)
    _judge_second_step(everyone, calls, first, p)


def judge_wide_buckets(everyone: Findings, p: int) -> None:
    """The same in float64, where each number has 8 bytes."""
    with as_mistake("four-bytes-each"):
        judge_findings(everyone)
    first = [call for call in everyone[0]["calls"] if call.sent[1] == 0]
    sizes = [call.nbytes for call in first]
    told = {"sizes": sizes, "bucket_bytes": BUCKET_BYTES, "buckets": WIDE_BUCKETS}
    if sizes == EARLY_BUCKETS:
        raise WrongAnswer("leaves-before-it-is-full", **told)
    if sizes == [nbytes // 2 for nbytes in WIDE_BUCKETS]:
        raise WrongAnswer("loses-digits")
    with as_mistake("four-bytes-each"):
        if sizes != WIDE_BUCKETS:
            raise WrongAnswer("wrong-buckets", **told)
        _judge_wide_values(everyone, p)


def _judge_wide_values(everyone: Findings, p: int) -> None:
    mean = [
        sum(column) / p
        for column in zip(*(gradients_of(r, 0, torch.float64) for r in range(p)), strict=True)
    ]
    for rank, found in enumerate(everyone[:p]):
        for number, (given, wanted) in enumerate(zip(found["found"][0], mean, strict=True)):
            if not _same([given], [wanted]):
                begins = {"given": _begins(given), "wanted": _begins(wanted)}
                raise WrongAnswer("wrong-value", rank=rank, wrong=number, **begins)


def _judge_messages(first: list[LoggedCall]) -> None:
    sizes = [call.nbytes for call in first]
    early = [call for call in first if call.sent[0] == "backward"]
    if not early:
        raise WrongAnswer("sends-after-backward", count=len(first))
    if sizes == [4 * n for n in reversed(ELEMENTS)]:
        raise WrongAnswer(
            "a-message-per-parameter",
            given=len(sizes),
            wanted=len(ELEMENTS),
            bucket_bytes=BUCKET_BYTES,
        )
    if len(sizes) == 1:
        raise WrongAnswer("one-bucket", nbytes=sizes[0], bucket_bytes=BUCKET_BYTES)
    if sizes == BUCKETS[:-1]:
        raise WrongAnswer("last-bucket-lost", bucket=BUCKETS[-1])
    if sizes == FORWARD_BUCKETS:
        raise WrongAnswer("forward-order")
    if sum(sizes) > sum(BUCKETS):
        raise WrongAnswer("sends-again", sizes=sizes, total=sum(BUCKETS))
    if sizes != BUCKETS:
        raise WrongAnswer("wrong-buckets", sizes=sizes, bucket_bytes=BUCKET_BYTES, buckets=BUCKETS)


def _judge_waiting(first: list[LoggedCall]) -> None:
    if any(call.waits and call.waits[0][0] == "backward" for call in first):
        raise WrongAnswer("waits-in-the-hook")
    if not all(call.waited for call in first):
        raise WrongAnswer("never-waits")


def _judge_values(found: list[list[torch.Tensor]], p: int, step: int = 0) -> None:
    shares = [gradients_of(r, step) for r in range(p)]
    total = [sum(column) for column in zip(*shares, strict=True)]
    mean = [t / p for t in total]
    if all(_same(f, mean) for f in found):
        return
    if all(_same(f, total) for f in found):
        raise WrongAnswer("sum-not-mean")
    if all(_same(f, [m / p for m in mean]) for f in found):
        raise WrongAnswer("divides-twice")
    if all(_same(f, own) for f, own in zip(found, shares, strict=True)):
        raise WrongAnswer("gradients-not-replaced")
    rank = next(r for r, f in enumerate(found) if not _same(f, mean))
    wrong = next(i for i, f in enumerate(found[rank]) if not _same([f], [mean[i]]))
    if not found[rank][wrong].any():
        raise WrongAnswer("sent-before-complete", rank=rank, wrong=wrong)
    raise WrongAnswer(
        "wrong-value",
        rank=rank,
        wrong=wrong,
        given=_begins(found[rank][wrong]),
        wanted=_begins(mean[wrong]),
    )


def _same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    # The last bit may differ: multiplying by 1/3 instead of dividing by 3 is right, too.
    pairs = zip(found, wanted, strict=True)
    return all(f.shape == w.shape and torch.allclose(f, w, rtol=1e-6, atol=0) for f, w in pairs)


def _begins(tensor: torch.Tensor) -> list[float]:
    return tensor.flatten()[:3].tolist()


def _judge_second_step(everyone: Findings, calls, first, p: int) -> None:
    sizes = [call.nbytes for call in calls if call.sent[1] == 1]
    if sizes != [call.nbytes for call in first]:
        raise WrongAnswer("works-once: by the size of messages", sizes=sizes)
    with as_mistake("works-once"):
        _judge_values([found["found"][1] for found in everyone[:p]], p, step=1)
    if any(("finish", 1) in call.waits for call in first):
        raise WrongAnswer("never-forgets-handles")
