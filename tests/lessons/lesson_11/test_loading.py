"""Slow storage gives its samples late and right, and the sampler counts what is asked for."""

import time

import torch
from rank_by_rank.lesson_11.loading import START_METHOD, CountingSampler, SlowStorage
from torch.utils.data import DataLoader


def test_slow_storage_returns_the_index_after_a_delay() -> None:
    storage = SlowStorage(5, 0.01)
    start = time.perf_counter()
    assert torch.equal(storage[3], torch.full((3,), 3.0))
    assert time.perf_counter() - start >= 0.01
    assert len(storage) == 5


def test_workers_load_the_same_batches_and_the_sampler_counts_them() -> None:
    sampler = CountingSampler(20, 8)
    loader = DataLoader(
        SlowStorage(20, 0.0),
        batch_sampler=sampler,
        num_workers=1,
        multiprocessing_context=START_METHOD,
    )
    batches = list(loader)
    assert [batch[:, 0].tolist() for batch in batches] == [
        [float(number) for number in range(first, first + 8)] for first in (0, 8)
    ]
    assert sampler.drawn == len(sampler) == 2
