"""Halve what is exchanged at every doubling, and retrace the steps to gather it.

Reduce-scatter by recursive halving: partners at distance 1, 2, 4, ... split the part that they
share, and each keeps, and combines, one half. All-gather by recursive doubling: the same
partners, in reverse order, swap what they hold. So the data is the ring's and the number of
steps logarithmic: 2 lg p alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma seconds for a power of
two (Rabenseifner's algorithm in Thakur, Rabenseifner and Gropp 2005, section 4). Other world
sizes are folded to one, for up to 2 (alpha + n beta) + n gamma more.

It combines in the same pairs of pairs as recursive doubling, so both give the same bits.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from .run import run
from .steps import Counts, Fold, Step, floor_log2, offset_of_chunk, part

__all__ = ["all_reduce_rabenseifner", "rabenseifner_counts", "rabenseifner_schedule"]

Range = tuple[int, int]


def all_reduce_rabenseifner(
    tensor: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All-reduce ``tensor`` in place by halving and doubling; see :func:`.run.run`."""
    return run(rabenseifner_schedule, tensor, op, group)


def rabenseifner_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Return the steps of ``rank``: lg p of reduce-scatter, lg p of all-gather."""
    fold = Fold(rank, world_size, numel)
    levels = floor_log2(fold.ranks)
    if fold.new_rank is None:
        return [*fold.before, *[Step()] * (2 * levels), *fold.after]
    halving, doubling = [], []
    for level, (keep, give) in enumerate(_halves(fold.new_rank, fold.ranks, numel)):
        partner = fold.old_rank(fold.new_rank ^ 2**level)
        kept, given = part(partner, *keep), part(partner, *give)
        halving.append(Step(send=given, receive=kept, combine=True))
        doubling.append(Step(send=kept, receive=given))
    return fold.before + halving + doubling[::-1] + fold.after


def _halves(new_rank: int, ranks: int, numel: int) -> list[tuple[Range, Range]]:
    """Return for each level which elements are kept, and which are given to the partner."""
    first, last = 0, ranks  # chunks
    halves = []
    for level in range(floor_log2(ranks)):
        middle = (first + last) // 2
        lower, upper = (first, middle), (middle, last)
        keep, give = (upper, lower) if new_rank & 2**level else (lower, upper)
        halves.append((_elements(keep, ranks, numel), _elements(give, ranks, numel)))
        first, last = keep
    return halves


def _elements(chunks: Range, ranks: int, numel: int) -> Range:
    first, last = chunks
    return offset_of_chunk(first, ranks, numel), offset_of_chunk(last, ranks, numel)


def rabenseifner_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return 2 floor(lg p) steps and messages each way, of n/2, n/4, ..., n/q and back.

    Here q is p, or the power of two below it, and q divides n; then 2 (q - 1)/q n elements go
    each way and (q - 1)/q n are combined. Folding costs what it costs in recursive doubling.
    Where q does not divide n, chunks differ by one: the rank in the end holds chunk b, its
    new number with the bits reversed, gives n - c(b) and keeps K, the sizes of all halves that
    it kept; both travel each way, and K is combined.
    """
    levels = floor_log2(world_size)
    q = 2**levels
    extra = world_size - q
    steps = 2 * levels + (2 if extra else 0)
    folded = rank < 2 * extra
    whole = int(folded and numel > 0)  # messages of n
    if folded and rank % 2 == 0:
        return Counts(steps, whole, whole, whole * numel, whole * numel, 0)
    new_rank = rank // 2 if folded else rank - extra
    b = sum(2 ** (levels - 1 - bit) for bit in range(levels) if new_rank & 2**bit)
    blocks = [q >> level for level in range(1, levels + 1)]  # chunks in a half of each level
    kept = [_size(b // block, block, q, numel) for block in blocks]
    given = [_size((b // block) ^ 1, block, q, numel) for block in blocks]
    messages = whole + sum(size > 0 for size in kept + given)
    elements = whole * numel + sum(kept) + numel - _size(b, 1, q, numel)
    combined = whole * numel + sum(kept)
    return Counts(steps, messages, messages, elements, elements, combined)


def _size(index: int, block: int, chunks: int, numel: int) -> int:
    """Return the elements in block ``index`` of ``block`` chunks each."""
    larger = min(max(numel % chunks - index * block, 0), block)
    return block * (numel // chunks) + larger
