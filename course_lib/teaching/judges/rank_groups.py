"""Tries a learner's function on all ranks, in a group of their own, and on one rank fewer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch_mpi4py import MPI, GuardedComm, world

from ..deadlock import ended_early
from ..distributed_log import recorded, reorder_to_group_ranks, without_world_collectives
from ..exercise import (
    CALL_SECONDS,
    NEEDS_PROCESS_GROUP,
    CheckImpossibleError,
    WrongAnswer,
    as_mistake,
)
from ..message_log import portable
from .collective_calls import hang
from .failures import judge_errors, was_kept_waiting

TIMEOUT = timedelta(seconds=CALL_SECONDS)

Findings = list[dict[str, Any] | None]


def need_process_group() -> None:
    """Raise CheckImpossibleError if there is no process group."""
    if not dist.is_initialized():
        raise CheckImpossibleError(NEEDS_PROCESS_GROUP)


def on_each_rank(
    try_it: Callable[[dist.ProcessGroup], dict[str, Any]], ranks: list[int] | None = None
) -> Findings:
    """Call ``try_it(group)`` on ``ranks``, in a group of their own; share its findings with all.

    ``try_it`` returns a dict. What it raises comes back under the key ``error``, and the rank in
    the world under ``rank``. What was found is told by rank in the group; ranks outside come last,
    with None.
    """
    need_process_group()
    group = dist.new_group(ranks, timeout=TIMEOUT)
    found: dict[str, Any] | None = None
    calls: list[Any] = []
    if ranks is None or dist.get_rank() in ranks:
        try:
            in_it = dist.get_process_group_ranks(group)
            with recorded(group) as calls, without_world_collectives(), ended_early(in_it):
                found = try_it(group)
        except Exception as error:  # told to every rank below, and judged there
            found = {"error": portable(error), "log": calls}
        found["rank"] = dist.get_rank()
        dist.destroy_process_group(group)
    return reorder_to_group_ranks(world().allgather(found), ranks)


def judge_findings(everyone: Findings) -> None:
    """Raise the exception of the learner's function, or report that it hung."""
    errors = {
        found.get("rank", index): found.get("error")
        for index, found in enumerate(everyone)
        if found
    }
    judge_errors([errors.get(rank) for rank in range(max(errors) + 1)])
    if any(map(was_kept_waiting, errors.values())):
        raise hang([found.get("log", []) if found else [] for found in everyone if found])


def with_smaller_group(judge: Callable[[list[int] | None, int], None]) -> None:
    """Call ``judge(ranks, p)`` for all ranks (None), and for all but rank 0 of more than two."""
    need_process_group()
    p = dist.get_world_size()
    judge(None, p)
    if p > 2:
        with as_mistake("size-is-fixed: of a group", p=p, last=p - 1):
            judge(list(range(1, p)), p - 1)


def with_fewer_ranks(comm: GuardedComm, judge: Callable[[GuardedComm], None]) -> None:
    """Call ``judge(comm)``; of three ranks or more, once more with a ``comm`` of all but rank 0.

    In that ``comm``, no rank has its number in the world. All ranks learn the result: otherwise
    rank 0 would continue with the check, and wait for the others.
    """
    judge(comm)
    if comm.size < 3:  # alone, a rank has no one to send to
        return
    few: Any = comm.Split(color=0 if comm.rank > 0 else MPI.UNDEFINED, key=comm.rank)
    there = {"p": comm.size, "last": comm.size - 1, "last_there": comm.size - 2}
    mistake: Exception | None = None
    if few != MPI.COMM_NULL:
        try:
            with as_mistake("size-is-fixed: of a communicator", **there), _without_process_group():
                judge(few)
        except Exception as error:
            mistake = error
    elsewhere = comm.allgather(portable(mistake))
    mistake = mistake or next(filter(None, elsewhere), None)
    if mistake is not None:
        raise mistake


def _without_process_group() -> AbstractContextManager[Any]:
    """Raise WrongAnswer if a function given a communicator calls all ranks through ``dist``.

    Some of them are not there to answer, and the world's group would be lost.
    """

    def refuse(name: str, *args: Any, **kwargs: Any) -> None:
        raise WrongAnswer("forgets-the-comm: by dist", call=name)

    names = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "barrier")
    refusals: dict[str, Any] = {name: partial(refuse, name) for name in names}
    return patch.multiple(dist, **refusals)
