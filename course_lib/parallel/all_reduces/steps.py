"""In each step a rank sends at most one part of its tensor and receives one.

Steps have the same index on all ranks: what one rank sends in step k, another receives in its
step k. All ranks' step k therefore ends as soon as all have begun it, whatever they wait for
first, and no schedule made of such steps can deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Counts", "Fold", "Part", "Step", "count", "floor_log2", "offset_of_chunk", "part"]


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
    """What one rank does in one step; both are None where it has nothing to do.

    Attributes:
        send: what goes out, as it was before this step.
        receive: what comes in.
        combine: whether what comes in is combined with what is there, or replaces it.
    """

    send: Part | None = None
    receive: Part | None = None
    combine: bool = False


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


def part(peer: int, start: int, stop: int) -> Part | None:
    """Return the part, or None if it is empty: nobody sends an empty message."""
    return Part(peer, start, stop) if start < stop else None


def offset_of_chunk(index: int, chunks: int, numel: int) -> int:
    """Return where chunk ``index`` of ``chunks`` begins; sizes differ by at most one."""
    size, larger = divmod(numel, chunks)
    return index * size + min(index, larger)


def floor_log2(number: int) -> int:
    """Return the largest k with 2**k <= ``number``."""
    return number.bit_length() - 1


class Fold:
    """Makes a power of two of any world size p = q + e, where q is one and e < q.

    Of the first 2e ranks each even one gives its tensor to its neighbour before, and gets the
    result from it after. The q ranks that remain have new numbers from 0 to q - 1. This is
    what MPICH does (Thakur, Rabenseifner and Gropp 2005, section 4).

    Attributes:
        ranks: q.
        extra: e.
        new_rank: this rank's new number, None if it stands aside.
        before, after: this rank's steps before and after the others'.
    """

    def __init__(self, rank: int, world_size: int, numel: int) -> None:
        self.ranks = 2 ** floor_log2(world_size)
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
