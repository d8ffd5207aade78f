"""The judge of lesson 12 for standardising rows by the mean and spread of all ranks' rows.

It finds out what is wrong from how an answer differs from the right one, column by column: by a
factor, by a shift, or from rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from course_lib.teaching.exercise import WrongAnswer

__all__ = ["DEALT", "judge_standardising", "standardised"]

DEALT = [(4, 4, 4, 1), (5, 0, 3, 1)]
"""How many rows each of four ranks has, in each trial."""


def standardised(rows: torch.Tensor) -> torch.Tensor:
    """Return rows with mean 0 and standard deviation 1 in each column, as one process would."""
    return (rows - rows.mean(0)) / rows.std(0)


def judge_standardising(standardise: Callable) -> None:
    """Call the answer on all ranks, and raise :class:`WrongAnswer` on all if it is wrong on one."""
    from torch_mpi4py import world

    comm = world()
    for trial, counts in enumerate(DEALT):
        share = [counts[rank % len(counts)] for rank in range(comm.size)]
        generator = torch.Generator().manual_seed(12 + trial)
        scale = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
        rows = torch.rand(sum(share), 3, generator=generator, dtype=torch.float64) * scale
        rows += torch.arange(len(rows))[:, None] * scale / 4  # so the shares' means differ
        mine = rows.split(share)[comm.rank]
        kept = mine.clone()
        given = standardise(comm, mine)
        found = comm.allgather((given, torch.equal(kept, mine)))
        if not all(same for _, same in found):
            raise WrongAnswer("changes-its-rows")
        _compare([one for one, _ in found], rows, share)


def _compare(given: Sequence[object], rows: torch.Tensor, share: list[int]) -> None:
    right = standardised(rows)
    for rank, (one, count) in enumerate(zip(given, share, strict=True)):
        if not isinstance(one, torch.Tensor) or one.shape != (count, 3):
            shape = list(one.shape) if isinstance(one, torch.Tensor) else type(one).__name__
            raise WrongAnswer("not-its-rows", rank=rank, shape=shape, count=count)
    tensors = [one.double() for one in given]  # type: ignore[attr-defined]
    found = torch.cat(tensors)
    if torch.allclose(found, right, rtol=1e-5, atol=1e-5):
        return
    _require_numbers(tensors, share)
    factor = (found * right).sum(0) / right.square().sum(0)
    shift = found.mean(0)
    if not torch.allclose(found, factor * right + shift, rtol=1e-4, atol=1e-4):
        raise WrongAnswer("wrong-value")
    if not torch.allclose(shift, torch.zeros(3, dtype=torch.float64), atol=1e-4):
        raise WrongAnswer("mean-of-means", mean=float(shift[0]))
    every_row = (len(rows) / (len(rows) - 1)) ** 0.5
    if torch.allclose(factor, torch.full_like(factor, every_row), rtol=1e-4):
        raise WrongAnswer("divides-by-n", count=len(rows), less=len(rows) - 1)
    raise WrongAnswer("spread-of-shares", spread=float(found.std(0)[0]))


def _require_numbers(tensors: Sequence[torch.Tensor], share: list[int]) -> None:
    """Raise WrongAnswer for nan or infinity, and for ranks that use only their own rows."""
    odd = [rank for rank, one in enumerate(tensors) if not one.isfinite().all()]
    if odd:
        told = {"rank": odd[0], "count": share[odd[0]]}
        numbers = [one for rank, one in enumerate(tensors) if rank not in odd]
        if 0 in share:
            raise WrongAnswer("not-finite: an empty share", **told)
        if numbers and all(map(_is_centred, numbers)):
            raise WrongAnswer("own-share", **told)
        raise WrongAnswer("not-finite", **told)
    if all(map(_is_centred, tensors)):
        raise WrongAnswer("hides-it")


def _is_centred(rows: torch.Tensor) -> bool:
    zero = torch.zeros(3, dtype=rows.dtype)
    return len(rows) == 0 or torch.allclose(rows.mean(0), zero, atol=1e-6)
