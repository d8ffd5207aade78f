"""The judge of lesson 08's exercise on ``set_epoch``.

Each epoch must have every sample once, in a different order. The judge needs no ranks, because a
``DistributedSampler`` is told which rank it is for. So it imports nothing that starts MPI.
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, DistributedSampler

from course_lib.teaching.exercise import WrongAnswer

REPLICAS, SAMPLES, BATCH, EPOCHS = 4, 24, 2, 6


class _Sampler(DistributedSampler):
    """A sampler that counts how many loops over it have begun."""

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
            raise WrongAnswer("not-a-batch", batch=repr(batch))
        seen.extend(batch.tolist())

    train_epochs(loader, sampler, EPOCHS, step)
    per_rank = SAMPLES // REPLICAS
    if len(seen) != EPOCHS * per_rank:
        raise WrongAnswer(
            "not-every-batch", epochs=EPOCHS, wanted=EPOCHS * per_rank, given=len(seen)
        )
    if sampler.begun < EPOCHS:
        raise WrongAnswer("goes-through-once", epochs=EPOCHS, begun=sampler.begun)
    return [seen[i : i + per_rank] for i in range(0, len(seen), per_rank)]


def judge_epochs(everyone: list[list[list[int]]]) -> None:
    for epoch in range(EPOCHS):
        together = sorted(sample for seen in everyone for sample in seen[epoch])
        if together != list(range(SAMPLES)):
            twice = len(together) - len(set(together))
            raise WrongAnswer("ranks-shuffle-apart", epoch=epoch, twice=twice)
    if all(len({frozenset(epoch) for epoch in seen}) == 1 for seen in everyone) and any(
        len({*map(tuple, seen)}) > 1 for seen in everyone
    ):
        raise WrongAnswer("keeps-its-share")
    orders = [tuple(epoch) for epoch in everyone[0]]
    different = len(set(orders))
    if different == 1:
        raise WrongAnswer("same-order-every-epoch")
    if orders[0] == orders[1]:
        raise WrongAnswer("set-epoch-too-late")
    if different < EPOCHS:
        raise WrongAnswer("orders-repeat", epochs=EPOCHS, different=different)
