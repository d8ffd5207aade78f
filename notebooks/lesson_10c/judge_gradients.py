"""The judge of lesson 10c for averaged gradients: they are compared with those of one process.

All numbers are whole, and the groups have 1 to 4 ranks. A rank's team and its place in the team
determine which experts it has.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.rank_groups import TIMEOUT, Findings, judge_findings

# Sizes of teams to try, by number of ranks. A team of one rank has all experts; if all ranks form
# one team, each rank has different experts.
_TEAMS = {4: (2, 4), 3: (1, 3), 2: (2, 1), 1: (1,)}
_DTYPES = (torch.float64, torch.float32)


def gradients_of(rank: int, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the shared and the experts' gradients with which a rank begins."""
    scale = 12.0 * (3 ** (rank + 1) + rank % 2)  # no sum is a simple multiple of another
    shared = [scale * torch.arange(1, 4), scale * torch.ones(2, 2)]
    experts = [scale * torch.arange(5, 7) + rank, (scale + 60) * torch.ones(1, 3)]
    return [one.to(dtype) for one in shared], [one.to(dtype) for one in experts]


def try_gradients(average_gradients, everyone: dist.ProcessGroup) -> dict[str, Any]:
    """Call the learner's function for each size of teams; note gradients and calls."""
    rank, p = dist.get_rank(everyone), dist.get_world_size(everyone)
    world_ranks = dist.get_process_group_ranks(everyone)
    trials = []
    for team, dtype in zip(_TEAMS.get(p, (1,)), _DTYPES, strict=False):
        members = [world_ranks[r] for r in range(rank % team, p, team)]
        replicas: Any = dist.new_group(members, timeout=TIMEOUT, use_local_synchronization=True)
        shared, experts = gradients_of(rank, dtype)
        lists = [*shared], [*experts]
        try:
            with recorded(everyone) as calls, recorded(replicas) as others:
                average_gradients(*lists, everyone, replicas)
        finally:
            dist.destroy_process_group(replicas)
        strangers = [
            one.call
            for one, other in zip(calls, others, strict=True)
            if not (one.on_group or other.on_group)
        ]
        trials.append(
            {
                "team": team,
                "dtype": dtype,
                "shared": shared,
                "experts": experts,
                "strangers": strangers,
                "late": [one.call for one in others if not one.waited],
                "replaced": any(
                    one is not other
                    for before, after in ((shared, lists[0]), (experts, lists[1]))
                    for one, other in zip(before, after, strict=False)
                ),
                "resized": [len(one) for one in lists] != [len(shared), len(experts)],
            }
        )
    return {"trials": trials}


def judge_gradients(everyone: Findings) -> None:
    """Raise WrongAnswer unless all ranks have the gradients of the mean loss."""
    judge_findings(everyone)
    members = [found for found in everyone if found and "trials" in found]
    for number, first in enumerate(members[0]["trials"]):
        of_ranks = [found["trials"][number] for found in members]
        for rank, found in enumerate(of_ranks):
            if found["strangers"]:
                raise WrongAnswer("forgets-the-group: by dist", call=found["strangers"][0])
            if found["late"]:
                raise WrongAnswer("does-not-wait", rank=rank, call=found["late"][0])
        p, team, dtype = len(members), first["team"], first["dtype"]
        for rank, found in enumerate(of_ranks):
            _judge_rank(rank, found, p, team, dtype)


def _judge_rank(rank: int, found: dict[str, Any], p: int, team: int, dtype: torch.dtype) -> None:
    begun = [gradients_of(other, dtype) for other in range(p)]
    same_experts = list(range(rank % team, p, team))
    setting = f"{p} rank(s), {len(same_experts)} of them with the same experts"
    fields: dict[str, Any] = {
        "rank": rank,
        "p": p,
        "replicas": len(same_experts),
        "setting": setting,
    }

    def total(kind: int, ranks: list[int]) -> list[torch.Tensor]:
        return [
            sum((begun[r][kind][i] for r in ranks[1:]), begun[ranks[0]][kind][i].clone())
            for i in range(len(begun[0][kind]))
        ]

    def is_given(kind: str, wrong: list[torch.Tensor]) -> bool:
        return all(_close(*pair) for pair in zip(found[kind], wrong, strict=True))

    everyone = list(range(p))
    right = [one / p for one in total(0, everyone)]
    right_experts = [one / p for one in total(1, same_experts)]
    if found["replaced"] and not (is_given("shared", right) and is_given("experts", right_experts)):
        raise WrongAnswer("not-in-place", **fields)
    if is_given("shared", begun[rank][0]) and is_given("experts", begun[rank][1]) and p > 1:
        raise WrongAnswer("nothing-changed", **fields)
    if not is_given("shared", right):
        _explain_shared(rank, begun, total, same_experts, everyone, is_given, fields)
    if not is_given("experts", right_experts):
        _explain_experts(rank, begun, total, same_experts, everyone, is_given, fields)
    if found["resized"]:
        raise WrongAnswer("changes-the-lists", **fields)


def _explain_shared(rank, begun, total, same_experts, everyone, is_given, fields) -> None:
    p, own = len(everyone), begun[rank][0]
    mistakes = (
        ("sum-not-mean", total(0, everyone)),
        ("shared-not-averaged", own),
        ("shared-not-averaged", [one / p for one in own]),
        ("shared-over-replicas", [one / len(same_experts) for one in total(0, same_experts)]),
        ("shared-over-replicas", [one / p for one in total(0, same_experts)]),
        ("shared-divided-twice", [one / p / len(same_experts) for one in total(0, everyone)]),
        ("shared-divided-twice", [one / p / p for one in total(0, everyone)]),
    )
    for name, wrong in mistakes:
        if is_given("shared", wrong):
            raise WrongAnswer(name, **fields)
    raise WrongAnswer("wrong-shared", **fields)


def _explain_experts(rank, begun, total, same_experts, everyone, is_given, fields) -> None:
    p, k, own = len(everyone), len(same_experts), begun[rank][1]
    mistakes = (
        ("experts-over-everyone", [one / p for one in total(1, everyone)]),
        ("experts-by-replicas", [one / k for one in total(1, same_experts)]),
        ("experts-not-divided", total(1, same_experts)),
        ("experts-not-averaged", own),
        ("experts-not-averaged", [one / p for one in own]),
        ("divided-twice", [one / p / k for one in total(1, same_experts)]),
        ("divided-twice", [one / p / p for one in total(1, same_experts)]),
    )
    for name, wrong in mistakes:
        if is_given("experts", wrong):
            raise WrongAnswer(name, **fields)
    raise WrongAnswer("wrong-experts", **fields)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-5)
