"""Whether communication overlaps is known by when it was asked for, not by a clock.

The judge of lesson 06's buckets. Gradients are whole numbers, so that a mean is right to the
last bit, and the sizes of the parameters are such that each way to fill buckets gives other
messages.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.rank_groups import Findings, judge_findings

from .watched_all_reduces import AllReduce, watched_all_reduces

__all__ = ["BUCKET_BYTES", "judge_buckets", "try_buckets"]

# Elements of the parameters in the order of forward. Backward reaches them from the last: 10
# (40 bytes), 6 + 4 (40 bytes), and 8 + 1 (36 bytes), which nothing but `finish` can send.
ELEMENTS = (1, 8, 4, 6, 10)
BUCKET_BYTES = 40
BUCKETS = [40, 40, 36]
FORWARD_BUCKETS = [52, 64]
STEPS = 2


def gradients_of(rank: int, step: int) -> list[torch.Tensor]:
    """Return multiples of 12: means over 2, 3 or 4 ranks are exact."""
    scale = 12.0 * (rank + 1) * (step + 1)
    return [scale * (torch.arange(float(n)) % 3 + 1 + i) for i, n in enumerate(ELEMENTS)]


def try_buckets(bucketed_sync, group: dist.ProcessGroup) -> dict[str, Any]:
    """Run two backward passes with the learner's hooks, and note what was sent and when."""
    parameters = [nn.Parameter(torch.zeros(n)) for n in ELEMENTS]
    phase, found = "start", []
    rank = dist.get_rank(group)
    with watched_all_reduces(group, lambda: phase) as calls:
        finish = bucketed_sync(parameters, BUCKET_BYTES, group)
        if not callable(finish):
            return {"calls": [], "found": [], "returned": repr(finish)}
        for step in range(STEPS):
            total = torch.zeros(())
            for parameter, gradient in zip(parameters, gradients_of(rank, step), strict=True):
                parameter.grad = torch.zeros_like(parameter)
                total = total + (parameter * gradient).sum()
            phase = ("backward", step)
            total.backward()
            phase = ("finish", step)
            finish()
            phase = "after"
            found.append([parameter.grad.clone() for parameter in parameters])
    return {"calls": calls, "found": found, "returned": ""}


def judge_buckets(everyone: Findings, p: int) -> None:
    judge_findings(everyone)
    found = everyone[0]
    if found["returned"]:
        raise WrongAnswer(
            "returns-no-function",
            f"it returned {found['returned']}. Return the function `finish`, without calling it",
        )
    calls = found["calls"]
    if not calls:
        raise WrongAnswer(
            "no-communication", "no all-reduce in two backward passes. Are the hooks registered?"
        )
    if not all(call.on_group for call in calls):
        raise WrongAnswer(
            "forgets-the-group", "an all-reduce without `group=group` works on the whole world"
        )
    first = [call for call in calls if call.sent[1] == 0]
    _judge_messages(first)
    _judge_waiting(first)
    for rank in range(p):
        _judge_values(everyone[rank]["found"][0], rank, p)
    _judge_second_step(everyone, calls, first, p)


def _judge_messages(first: list[AllReduce]) -> None:
    sizes = [call.nbytes for call in first]
    early = [call for call in first if call.sent[0] == "backward"]
    if not early:
        raise WrongAnswer(
            "sends-after-backward",
            f"the gradients are sent in {len(first)} message(s), but all of them in `finish`, when "
            "backward has ended: nothing overlaps. Send in the hook, as soon as a bucket is full, "
            "when it holds `bucket_bytes` *bytes*, of which a number in float32 has 4",
        )
    if sizes == [4 * n for n in reversed(ELEMENTS)]:
        raise WrongAnswer(
            "a-message-per-parameter",
            f"{len(sizes)} messages for {len(ELEMENTS)} parameters. Collect gradients until there "
            f"are `bucket_bytes` of them, here {BUCKET_BYTES}",
        )
    if len(sizes) == 1:
        raise WrongAnswer(
            "one-bucket",
            f"one message of {sizes[0]} bytes, after the last gradient: a bucket has to leave as "
            f"soon as it holds {BUCKET_BYTES} bytes",
        )
    if sizes == BUCKETS[:-1]:
        raise WrongAnswer(
            "last-bucket-lost",
            f"what is left at the end, {BUCKETS[-1]} bytes, is never sent: no further hook comes. "
            "`finish` has to send it",
        )
    if sizes == FORWARD_BUCKETS:
        raise WrongAnswer(
            "forward-order",
            "the buckets are filled in the order of the list. Backward makes the *last* gradients "
            "first; take them as the hooks are called",
        )
    if sizes != BUCKETS:
        raise WrongAnswer(
            "wrong-buckets",
            f"messages of {sizes} bytes; with buckets of {BUCKET_BYTES} bytes they are {BUCKETS}",
        )


def _judge_waiting(first: list[AllReduce]) -> None:
    if any(call.waited and call.waited[0] == "backward" for call in first):
        raise WrongAnswer(
            "waits-in-the-hook",
            "the messages leave in time, but the hook waits for them, and backward stands still "
            "so long. Use `async_op=True`, and wait in `finish`",
        )
    if not all(call.waited for call in first):
        raise WrongAnswer(
            "never-waits",
            "`finish` does not wait for all the handles. The sums may not be there yet when it "
            "reads them",
        )


def _judge_values(found: list[torch.Tensor], rank: int, p: int, step: int = 0) -> None:
    shares = [gradients_of(r, step) for r in range(p)]
    total = [sum(column) for column in zip(*shares, strict=True)]
    if all(torch.equal(f, t / p) for f, t in zip(found, total, strict=True)):
        return
    if all(torch.equal(f, t) for f, t in zip(found, total, strict=True)):
        raise WrongAnswer("sum-not-mean", "the gradients are the sums over the ranks: divide")
    if all(torch.equal(f, own) for f, own in zip(found, shares[rank], strict=True)):
        raise WrongAnswer(
            "gradients-not-replaced",
            "the sums are made, but `.grad` is what it was. `torch.cat` makes a copy: its parts "
            "have to go back into the gradients",
        )
    wrong = next(
        i for i, (f, t) in enumerate(zip(found, total, strict=True)) if not torch.equal(f, t / p)
    )
    raise WrongAnswer(
        "wrong-value",
        f"on rank {rank} the gradient of parameter {wrong} begins {found[wrong][:3].tolist()}, "
        f"and the mean is {(total[wrong] / p)[:3].tolist()}",
    )


def _judge_second_step(everyone: Findings, calls, first, p: int) -> None:
    sizes = [call.nbytes for call in calls if call.sent[1] == 1]
    text = "the first step is right, but the second is not. What has to be empty again by then?"
    if sizes != [call.nbytes for call in first]:
        raise WrongAnswer("works-once", f"{text} It sent messages of {sizes} bytes")
    for rank in range(p):
        try:
            _judge_values(everyone[rank]["found"][1], rank, p, step=1)
        except WrongAnswer as wrong:
            raise WrongAnswer("works-once", f"{text} {wrong.explanation}") from wrong.__cause__
    if any(call.waited_last == ("finish", 1) for call in first):
        raise WrongAnswer(
            "never-forgets-handles",
            "the gradients are right, but in the second step `finish` waits again for the messages "
            "of the first one: the list of what was sent grows with each step. Empty it in the end",
        )
