"""The schedules of five all-reduces: the sends and receives of each rank in every step.

In each step a rank sends at most one part of its tensor and receives one. Steps have the same
index on all ranks: what one rank sends in step k, another receives in its step k. All ranks'
step k therefore ends as soon as all have begun it, whatever they wait for first, and no schedule
made of such steps can deadlock.

Each ``..._schedule(rank, world_size, numel)`` lists a rank's steps. Times are given for p ranks
and n elements (or bytes, as the units have it) in the alpha-beta-gamma model: a message of m
elements takes alpha + m beta seconds, combining m elements m gamma, and a rank sends one message
and receives one at the same time. The source of most is Thakur, Rabenseifner and Gropp 2005,
"Optimization of Collective Communication Operations in MPICH", section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ROOT = 0
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """Elements ``start`` to ``stop`` (not included) of the flat tensor, and the other rank."""

    peer: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank; both parts are None if it has nothing to do.

    Attributes:
        send: the outgoing part, as it was before this step.
        receive: the incoming part.
        combine: whether the incoming part is combined with the present one, or replaces it.
    """

    send: Part | None = None
    receive: Part | None = None
    combine: bool = False


def part(peer: int, start: int, stop: int) -> Part | None:
    """Return the part, or None if it is empty: no rank sends an empty message."""
    return Part(peer, start, stop) if start < stop else None


def _offset_of_chunk(index: int, chunks: int, numel: int) -> int:
    """Return where chunk ``index`` of ``chunks`` begins; sizes differ by at most one."""
    size, larger = divmod(numel, chunks)
    return index * size + min(index, larger)


def _floor_log2(number: int) -> int:
    """Return the largest k with 2**k <= ``number``."""
    return number.bit_length() - 1


class _Fold:
    """Makes a power of two of any world size p = q + e, where q is one and e < q.

    Of the first 2e ranks each even one gives its tensor to its neighbour before, and gets the
    result from it after. The q ranks that remain have new numbers from 0 to q - 1. This is
    what MPICH does (Thakur, Rabenseifner and Gropp 2005, section 4).

    Attributes:
        ranks: q.
        extra: e.
        new_rank: this rank's new number, None if it gives its tensor to its neighbour.
        before, after: this rank's steps before and after the others'.
    """

    def __init__(self, rank: int, world_size: int, numel: int) -> None:
        self.ranks = 2 ** _floor_log2(world_size)
        self.extra = world_size - self.ranks
        self.new_rank: int | None = rank - self.extra
        self.before: list[Step] = [Step()] if self.extra else []
        self.after: list[Step] = self.before
        if rank >= 2 * self.extra:
            return
        if rank % 2 == 0:
            self.new_rank = None
            neighbour = part(rank + 1, 0, numel)
            self.before, self.after = [Step(send=neighbour)], [Step(receive=neighbour)]
        else:
            self.new_rank = rank // 2
            neighbour = part(rank - 1, 0, numel)
            self.before = [Step(receive=neighbour, combine=True)]
            self.after = [Step(send=neighbour)]

    def old_rank(self, new_rank: int) -> int:
        """Return the rank in the group that has this new number."""
        return 2 * new_rank + 1 if new_rank < self.extra else new_rank + self.extra


Schedule = Callable[[int, int, int], list[Step]]


# --- naive --------------------------------------------------------------------------------------


def naive_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Send everyone's tensor to rank 0, and the result to everyone.

    In step k rank k has its turn, first in, then out. One rank's link carries everything:
    2 (p - 1) (alpha + n beta) + (p - 1) n gamma seconds. The operation is carried out in the
    order of the ranks, as a loop over them would.
    """
    others = range(1, world_size)
    if rank == ROOT:
        collect = [Step(receive=part(peer, 0, numel), combine=True) for peer in others]
        return collect + [Step(send=part(peer, 0, numel)) for peer in others]
    root = part(ROOT, 0, numel)
    collect = [Step(send=root) if peer == rank else Step() for peer in others]
    return collect + [Step(receive=root) if peer == rank else Step() for peer in others]


# --- tree ---------------------------------------------------------------------------------------


def tree_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Add up along a binary tree whose root is rank 0, and send the result back the same way.

    Ranks 1, 3, 5, ... send to their left neighbours, of those that received every second one
    sends to the one before, and so on: distances 1, 2, 4, ... up, and the same reversed down.
    That takes 2 ceil(lg p) (alpha + n beta) + ceil(lg p) n gamma seconds (a reduce and a
    broadcast by binomial trees). The root still carries lg p whole tensors each way.
    """
    up, down = [], []
    for level in range((world_size - 1).bit_length()):
        distance = 2**level
        upwards = downwards = Step()
        if rank % (2 * distance) == distance:
            parent = part(rank - distance, 0, numel)
            upwards, downwards = Step(send=parent), Step(receive=parent)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            child = part(rank + distance, 0, numel)
            upwards, downwards = Step(receive=child, combine=True), Step(send=child)
        up.append(upwards)
        down.append(downwards)
    return up + down[::-1]


# --- recursive doubling -------------------------------------------------------------------------


def recursive_doubling_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Exchange whole tensors with the rank at distance 1, 2, 4, ..., so that no rank is idle.

    After step k a rank knows the result of its 2**k nearest, so p ranks need lg p steps instead
    of the tree's 2 lg p: lg p (alpha + n beta + n gamma) seconds for a power of two. Other world
    sizes are folded to one, for up to 2 (alpha + n beta) + n gamma more. Few steps, but whole
    tensors: for short ones.
    """
    fold = _Fold(rank, world_size, numel)
    steps = []
    for level in range(_floor_log2(fold.ranks)):
        if fold.new_rank is None:
            steps.append(Step())
            continue
        partner = part(fold.old_rank(fold.new_rank ^ 2**level), 0, numel)
        steps.append(Step(send=partner, receive=partner, combine=True))
    return fold.before + steps + fold.after


# --- ring ---------------------------------------------------------------------------------------


def ring_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Cut the tensor in p chunks, so that all links carry a chunk all the time.

    Reduce-scatter: in each of p - 1 steps a rank passes to its right neighbour the chunk that it
    has just added to. In step k it sends chunk rank - k and adds to chunk rank - k - 1; at the
    end it holds chunk rank + 1 of the result. All-gather: p - 1 more steps pass the results
    round. A rank sends 2 (p - 1) / p n elements, and no algorithm can do with fewer (Patarasuk
    and Yuan 2009): 2 (p - 1) alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma seconds. Many steps,
    but the least data: for long tensors.
    """
    left, right = (rank - 1) % world_size, (rank + 1) % world_size

    def chunk(peer: int, index: int) -> Part | None:
        index %= world_size
        start = _offset_of_chunk(index, world_size, numel)
        return part(peer, start, _offset_of_chunk(index + 1, world_size, numel))

    turns = range(world_size - 1)
    reduce_scatter = [
        Step(chunk(right, rank - turn), chunk(left, rank - turn - 1), combine=True)
        for turn in turns
    ]
    all_gather = [Step(chunk(right, rank + 1 - turn), chunk(left, rank - turn)) for turn in turns]
    return reduce_scatter + all_gather


# --- Rabenseifner -------------------------------------------------------------------------------


def rabenseifner_schedule(rank: int, world_size: int, numel: int) -> list[Step]:
    """Halve what is exchanged in every step of doubling, and retrace the steps to gather it.

    Reduce-scatter by recursive halving: partners at distance 1, 2, 4, ... split the part that
    they share, and each keeps, and combines, one half. All-gather by recursive doubling: the
    same partners, in reverse order, swap what they hold. So the data is the ring's and the
    number of steps logarithmic: 2 lg p alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma seconds
    for a power of two. Other world sizes are folded to one, for up to 2 (alpha + n beta) + n
    gamma more. It combines in the same pairs of pairs as recursive doubling, so both give the
    same bits.
    """
    fold = _Fold(rank, world_size, numel)
    levels = _floor_log2(fold.ranks)
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
    for level in range(_floor_log2(ranks)):
        middle = (first + last) // 2
        lower, upper = (first, middle), (middle, last)
        keep, give = (upper, lower) if new_rank & 2**level else (lower, upper)
        halves.append((_elements(keep, ranks, numel), _elements(give, ranks, numel)))
        first, last = keep
    return halves


def _elements(chunks: Range, ranks: int, numel: int) -> Range:
    first, last = chunks
    return _offset_of_chunk(first, ranks, numel), _offset_of_chunk(last, ranks, numel)
