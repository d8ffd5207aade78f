"""Lets ranks exchange values and outcomes, and fail together if one fails.

Without that, a rank whose own argument is wrong raises alone, and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


def communication_device(group: dist.ProcessGroup | None) -> torch.device:
    """Return the device on which the group's backend takes tensors: CUDA for nccl only."""
    if "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def rank_and_size(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """Return this rank's number in the group, and the group's size.

    A process without any group is rank 0 of 1.

    Raises:
        ValueError: if this rank is not in the group.
    """
    known = dist.group.WORLD if group is None else group
    if isinstance(known, dist.ProcessGroup):  # a tenth of the time that torch's functions take
        return known.rank(), known.size()
    if known is None:
        return 0, 1
    raise ValueError(
        f"rank {dist.get_rank()} is not in this group, so it cannot take part: only the group's "
        "ranks may make this call"
    )


def exchange(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return every rank's ``value``, pickled on the way, in order of ranks.

    Raises:
        ValueError: if this rank is not in the group.
    """
    values = [value] * rank_and_size(group)[1]
    if dist.is_initialized():
        dist.all_gather_object(values, value, group=group)
    return values


class Outcome(NamedTuple):
    """A function's outcome on one rank: its result, or the error it raised.

    The class and the message travel, not the error itself, which may not be picklable.
    """

    value: Any
    error: tuple[type[Exception], str] | None


def outcomes(
    function: Callable[[], Any], group: dist.ProcessGroup | None = None
) -> tuple[list[Outcome], Exception | None]:
    """Call ``function``; return its outcome on every rank, and this rank's own error.

    An error that is no TypeError, ValueError or AssertionError is reported as a RuntimeError, with
    its class in the message.

    Raises:
        ValueError: if this rank is not in the group.
    """
    rank_and_size(group)  # before it is called: another rank's mistake is not about its result
    own: Exception | None = None
    value = None
    told: tuple[type[Exception], str] | None = None
    try:
        value = function()
    except Exception as error:
        own = error
        told = (RuntimeError, f"{type(error).__name__}: {error}")
        if isinstance(error, TypeError | ValueError | AssertionError):
            told = (type(error), str(error))
    return exchange(Outcome(value, told), group), own


def agree(function: Callable[[], Any], group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the results of ``function`` on every rank; if it raised on one, raise on all.

    Raises:
        TypeError, ValueError, AssertionError: of the same class and message on every rank, as
            the lowest rank that raised did; another class becomes RuntimeError.
    """
    everyone, own = outcomes(function, group)
    failed = [(rank, outcome.error) for rank, outcome in enumerate(everyone) if outcome.error]
    if not failed:
        return [outcome.value for outcome in everyone]
    rank, (kind, text) = failed[0]
    same = len(failed) == len(everyone) and len({error[1] for _, error in failed}) == 1
    raise kind(text if same else f"on rank {rank}: {text}") from own
