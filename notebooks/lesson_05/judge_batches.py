"""Judge the plan of batches itself: ranks that take different numbers of steps would hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from course_lib.teaching.exercise import WrongAnswer


def _small_cases() -> Iterator[tuple[int, int, int]]:
    for world_size, batch_size, samples in product(range(2, 5), range(1, 5), range(2, 30)):
        steps = -(-samples // (batch_size * world_size))
        if samples >= steps * world_size:  # enough for no batch to be empty
            yield samples, batch_size, world_size


# (samples, batch_size, world_size)
CASES = (
    *((8, 2, 4), (1437, 32, 4), (10, 2, 4), (23, 3, 2), (7, 7, 1), (9, 4, 3)),
    *_small_cases(),
)


def judge_batches(given: list, again: list, samples: int, batch_size: int) -> None:
    """``given``: each rank's list of batches; ``again``: the same from a second call."""
    world_size = len(given)
    asked = f"{samples} samples, batches of at most {batch_size}, {world_size} ranks"
    for rank, batches in enumerate(given):
        if not isinstance(batches, list) or not all(isinstance(b, (list, range)) for b in batches):
            if _has_arrays(batches):
                raise WrongAnswer(
                    "not-a-list-of-lists: but of arrays",
                    asked=asked,
                    rank=rank,
                    batches=repr(batches),
                )
            raise WrongAnswer("not-a-list-of-lists", asked=asked, rank=rank, batches=repr(batches))
    if given != again:
        raise WrongAnswer("not-the-same-again", asked=asked)
    _judge_samples(given, samples, asked)
    steps = [len(batches) for batches in given]
    if len(set(steps)) > 1:
        raise WrongAnswer("steps-differ", asked=asked, steps=steps, step=min(steps) + 1)
    sizes = [[len(batch) for batch in batches] for batches in given]
    largest = max(size for own in sizes for size in own)
    if largest > batch_size:
        raise WrongAnswer("batch-too-large", asked=asked, largest=largest)
    for step, together in enumerate(zip(*sizes, strict=True)):
        if 0 in together:
            raise WrongAnswer("empty-batch", asked=asked, step=step + 1, together=list(together))
    needed = -(-samples // (batch_size * world_size))
    if steps[0] > needed:
        raise WrongAnswer("too-many-steps", asked=asked, count=steps[0], needed=needed)
    for step, together in enumerate(zip(*sizes, strict=True)):
        if max(together) - min(together) > 1:
            raise WrongAnswer("uneven", asked=asked, step=step + 1, together=list(together))


def _judge_samples(given: list, samples: int, asked: str) -> None:
    dealt = Counter(number for batches in given for batch in batches for number in batch)
    strange = sorted(set(dealt) - set(range(samples)))
    if strange:
        raise WrongAnswer("no-such-sample", asked=asked, sample=strange[-1])
    twice = sorted(number for number, times in dealt.items() if times > 1)
    if twice:
        raise WrongAnswer("given-twice", asked=asked, sample=twice[0], count=dealt[twice[0]])
    missing = sorted(set(range(samples)) - set(dealt))
    if missing:
        raise WrongAnswer("drops-the-rest", asked=asked, count=len(missing), first=missing[0])


def _has_arrays(batches: object) -> bool:
    return isinstance(batches, list) and any(hasattr(batch, "tolist") for batch in batches)
