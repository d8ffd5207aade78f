"""Ranks that make different numbers of steps hang, so the plan itself is judged."""

from __future__ import annotations

from collections import Counter

from course_lib.teaching.exercise import WrongAnswer

# (samples, batch_size, world_size)
CASES = ((8, 2, 4), (1437, 32, 4), (10, 2, 4), (23, 3, 2), (7, 7, 1), (9, 4, 3))


def judge_batches(given: list, again: list, samples: int, batch_size: int) -> None:
    """``given``: from a rank to its list of batches; ``again``: the same of a second call."""
    world_size = len(given)
    asked = f"{samples} samples, batches of at most {batch_size}, {world_size} ranks"
    for rank, batches in enumerate(given):
        if not isinstance(batches, list) or not all(isinstance(b, (list, range)) for b in batches):
            raise WrongAnswer(
                "not-a-list-of-lists",
                f"{asked}: rank {rank} got {batches!r}, not a list of lists"
                + (". `tolist()` makes a list of an array" * _has_arrays(batches)),
            )
    if given != again:
        raise WrongAnswer(
            "not-the-same-again",
            f"{asked}: asked twice, it deals the samples out in two ways. Each rank asks for "
            "itself, so they would not fit together: whoever shuffles needs the same seed on "
            "every rank",
        )
    _judge_samples(given, samples, asked)
    steps = [len(batches) for batches in given]
    if len(set(steps)) > 1:
        raise WrongAnswer(
            "steps-differ",
            f"{asked}: the ranks make {steps} steps. In step {min(steps) + 1} some would wait in "
            "an all-reduce for ever, because others have finished",
        )
    sizes = [[len(batch) for batch in batches] for batches in given]
    largest = max(size for own in sizes for size in own)
    if largest > batch_size:
        raise WrongAnswer("batch-too-large", f"{asked}: there is a batch of {largest} samples")
    for step, together in enumerate(zip(*sizes, strict=True)):
        if 0 in together:
            raise WrongAnswer(
                "empty-batch",
                f"{asked}: in step {step + 1} the ranks have {list(together)} samples. The mean "
                "loss of no samples is not a number, and one such rank spoils the gradient of all",
            )
    needed = -(-samples // (batch_size * world_size))
    if steps[0] > needed:
        raise WrongAnswer("too-many-steps", f"{asked}: {steps[0]} steps, where {needed} are enough")
    for step, together in enumerate(zip(*sizes, strict=True)):
        if max(together) - min(together) > 1:
            raise WrongAnswer(
                "uneven",
                f"{asked}: in step {step + 1} the ranks have {list(together)} samples. The ranks "
                "with few wait for those with many",
            )


def _judge_samples(given: list, samples: int, asked: str) -> None:
    dealt = Counter(number for batches in given for batch in batches for number in batch)
    strange = sorted(set(dealt) - set(range(samples)))
    if strange:
        raise WrongAnswer("no-such-sample", f"{asked}: there is no sample {strange[-1]}")
    twice = sorted(number for number, times in dealt.items() if times > 1)
    if twice:
        raise WrongAnswer(
            "given-twice",
            f"{asked}: sample {twice[0]} comes {dealt[twice[0]]} times. It would count more than "
            "the others",
        )
    missing = sorted(set(range(samples)) - set(dealt))
    if missing:
        raise WrongAnswer(
            "drops-the-rest",
            f"{asked}: {len(missing)} samples belong to nobody, the first is {missing[0]}",
        )


def _has_arrays(batches: object) -> bool:
    return isinstance(batches, list) and any(hasattr(batch, "tolist") for batch in batches)
