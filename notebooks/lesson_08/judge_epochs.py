"""Every sample once per epoch, and in another order in each epoch.

The judge behind the check of lesson 08 about ``set_epoch``. It needs no ranks: a
``DistributedSampler`` is told which rank it is for. So it imports nothing that starts MPI.
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, DistributedSampler

from course_lib.teaching.exercise import WrongAnswer

REPLICAS, SAMPLES, BATCH, EPOCHS = 4, 24, 2, 3


class _Sampler(DistributedSampler):
    """Counts how often it was gone through, and is told which epoch it is."""

    def __init__(self, rank: int) -> None:
        super().__init__(range(SAMPLES), REPLICAS, rank, shuffle=True, seed=0)
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        return super().__iter__()


def epochs_of(train_epochs, rank: int) -> list[list[int]]:
    """Return the samples that ``rank`` trains on, per epoch, under the learner's function."""
    sampler = _Sampler(rank)
    loader = DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler)
    seen: list[int] = []

    def step(batch: torch.Tensor) -> None:
        if not isinstance(batch, torch.Tensor):
            raise WrongAnswer(
                "not-a-batch",
                f"`step` was given {batch!r}. Give it what comes out of `loader`: batches",
            )
        seen.extend(batch.tolist())

    train_epochs(loader, sampler, EPOCHS, step)
    per_rank = SAMPLES // REPLICAS
    if len(seen) != EPOCHS * per_rank:
        raise WrongAnswer(
            "not-every-batch",
            f"{EPOCHS} epochs have {EPOCHS * per_rank} samples per rank; `step` was given "
            f"{len(seen)}. Call `step(batch)` once for each batch of each epoch",
        )
    if sampler.begun < EPOCHS:
        raise WrongAnswer(
            "goes-through-once",
            f"all {EPOCHS} epochs get the batches of {sampler.begun}: the loader asks its sampler "
            "for an order when a loop over it begins. Begin one in each epoch",
        )
    return [seen[i : i + per_rank] for i in range(0, len(seen), per_rank)]


def judge_epochs(everyone: list[list[list[int]]]) -> None:
    for epoch in range(EPOCHS):
        together = sorted(sample for seen in everyone for sample in seen[epoch])
        if together != list(range(SAMPLES)):
            twice = len(together) - len(set(together))
            raise WrongAnswer(
                "ranks-shuffle-apart",
                f"in epoch {epoch} {twice} samples come twice and as many never. The ranks "
                "must shuffle alike, so all of them give `set_epoch` the same number",
            )
    if all(len({frozenset(epoch) for epoch in seen}) == 1 for seen in everyone) and any(
        len({*map(tuple, seen)}) > 1 for seen in everyone
    ):
        raise WrongAnswer(
            "keeps-its-share",
            "each rank has the same samples in every epoch, only their order changes. "
            "`sampler.set_epoch(epoch)` deals all samples out anew",
        )
    first, second, third = everyone[0]
    if first == second == third:
        raise WrongAnswer(
            "same-order-every-epoch",
            "the order is the same in every epoch. The sampler shuffles by seed + epoch, and only "
            "`sampler.set_epoch(epoch)` tells it which epoch it is",
        )
    if first == second:
        raise WrongAnswer(
            "set-epoch-too-late",
            "epochs 0 and 1 have the same order. `set_epoch` counts from the next `iter(loader)` "
            "on: call it before the loop over the batches, not after it",
        )
    if len({tuple(first), tuple(second), tuple(third)}) < EPOCHS:
        raise WrongAnswer("orders-repeat", "two of the three epochs have the same order")
