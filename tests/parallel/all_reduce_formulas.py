"""The published formulas for what each all-reduce costs, against which its schedule is checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from course_lib.parallel.all_reduces import Step

ROOT = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """What one rank does in a whole all-reduce.

    Attributes:
        steps: steps of the schedule, the same on all ranks, those without work included.
        messages_sent, messages_received: messages that are not empty.
        elements_sent, elements_received: elements in them; bytes are these times the size of
            an element on the wire (4 bytes for float16 and other types narrower than float32).
        elements_combined: additions (or other operations).
    """

    steps: int
    messages_sent: int
    messages_received: int
    elements_sent: int
    elements_received: int
    elements_combined: int


def count(steps: Iterable[Step]) -> Counts:
    """Return what the steps of one rank add up to."""
    steps = list(steps)
    sent = [len(step.send) for step in steps if step.send]
    received = [len(step.receive) for step in steps if step.receive]
    combined = sum(len(step.receive) for step in steps if step.receive and step.combine)
    return Counts(len(steps), len(sent), len(received), sum(sent), sum(received), combined)


def floor_log2(number: int) -> int:
    """Return the largest k with 2**k <= ``number``."""
    return number.bit_length() - 1


def ceil_log2(number: int) -> int:
    """Return the smallest k with 2**k >= ``number``."""
    return (number - 1).bit_length()


def naive_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return 2 (p - 1) steps; the root has p - 1 messages of n each way, the others one."""
    messages = (world_size - 1 if rank == ROOT else 1) if numel else 0
    combined = (world_size - 1) * numel if rank == ROOT else 0
    elements = messages * numel
    return Counts(2 * (world_size - 1), messages, messages, elements, elements, combined)


def tree_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return 2 ceil(lg p) steps; a message of n each way for every child and for the parent.

    Rank r > 0 has as many children as r has factors of 2, or fewer where ranks end: at most
    ceil(lg (p - r)); rank 0 has ceil(lg p).
    """
    children = ceil_log2(world_size - rank)
    if rank:
        factors_of_two = (rank & -rank).bit_length() - 1
        children = min(children, factors_of_two)
    messages = children + (rank > 0) if numel else 0
    steps = 2 * ceil_log2(world_size)
    elements = messages * numel
    return Counts(steps, messages, messages, elements, elements, children * numel)


def recursive_doubling_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return floor(lg p) steps and as many messages of n each way; with folding, see the code.

    If p is no power of two, there are two more steps. A rank that stands aside has one message
    each way, its neighbour one more than the others.
    """
    exchanges = floor_log2(world_size)
    extra = world_size - 2**exchanges
    steps = exchanges + (2 if extra else 0)
    folded = rank < 2 * extra
    aside = folded and rank % 2 == 0
    messages = 1 if aside else exchanges + folded
    combined = 0 if aside else messages * numel
    messages = messages if numel else 0
    elements = messages * numel
    return Counts(steps, messages, messages, elements, elements, combined)


def ring_counts(rank: int, world_size: int, numel: int) -> Counts:
    """Return 2 (p - 1) steps with a message of n / p each way, exactly so where p divides n.

    With c(i) elements in chunk i: sent are twice all chunks but c(rank + 1) once and
    c(rank + 2) once, received twice all but c(rank) and c(rank + 1), added all but c(rank).
    Empty chunks, of which there are p - n if n < p, need no message.
    """
    p = world_size
    sizes = [numel // p + (i % p < numel % p) for i in range(rank, rank + 3)]
    filled = [size > 0 for size in sizes]
    messages = 2 * min(numel, p)
    return Counts(
        steps=2 * (p - 1),
        messages_sent=messages - filled[1] - filled[2],
        messages_received=messages - filled[0] - filled[1],
        elements_sent=2 * numel - sizes[1] - sizes[2],
        elements_received=2 * numel - sizes[0] - sizes[1],
        elements_combined=numel - sizes[0],
    )


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


FORMULAS = {
    "naive": naive_counts,
    "tree": tree_counts,
    "recursive doubling": recursive_doubling_counts,
    "ring": ring_counts,
    "rabenseifner": rabenseifner_counts,
}
