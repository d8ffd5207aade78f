"""Shards cover the data, in order, without overlap, for every length and number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from rank_by_rank.lesson_05.shards import shard, shard_indices
from torch.utils.data import DistributedSampler, IterableDataset, Subset, TensorDataset

from course_lib.training.data import DataSet

LENGTHS = range(21)
SIZES = range(1, 9)
EVERY = [(length, size) for length in LENGTHS for size in SIZES]


def parts(length: int, size: int, uneven: str) -> list[list[int]]:
    return [shard_indices(length, rank, size, uneven).tolist() for rank in range(size)]


def joined(lists: list[list[int]]) -> list[int]:
    return [index for part in lists for index in part]


@pytest.mark.parametrize(("length", "size"), EVERY)
def test_shards_of_every_length_and_rank_count(length: int, size: int) -> None:
    kept = parts(length, size, "keep")
    assert joined(kept) == list(range(length))
    counts = [len(part) for part in kept]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)

    dropped = parts(length, size, "drop")
    assert {len(part) for part in dropped} == {length // size}
    assert joined(dropped) == list(range(length - length % size))

    padded = parts(length, size, "pad")
    assert {len(part) for part in padded} == {-(-length // size)}
    seen = joined(padded)
    assert seen[:length] == list(range(length))
    assert seen[length:] == [index % length for index in range(length, len(seen))]

    if length % size:
        with pytest.raises(ValueError, match=r'"drop", "pad" or "keep"'):
            parts(length, size, "raise")
    else:
        assert parts(length, size, "raise") == kept == dropped == padded


@pytest.mark.parametrize(("length", "size"), [(20, 8), (7, 3), (3, 8)])
def test_padding_equals_the_distributed_sampler(length: int, size: int) -> None:
    data = range(length)
    sampled = [list(DistributedSampler(data, size, rank, shuffle=False)) for rank in range(size)]
    assert sorted(joined(sampled)) == sorted(joined(parts(length, size, "pad")))


def test_empty_indices_are_int64() -> None:
    for uneven in ("raise", "drop", "pad", "keep"):
        indices = shard_indices(0, 1, 2, uneven)
        assert indices.dtype == torch.int64
        assert indices.shape == (0,)


def test_shard_keeps_the_type_of_the_data() -> None:
    assert shard(7, 1, 2, "keep").tolist() == [4, 5, 6]
    assert torch.equal(shard(torch.arange(12.0).view(6, 2), 2, 3), torch.arange(8.0, 12).view(2, 2))
    assert shard(["a", "b", "c"], 0, 2, "keep") == ["a", "b"]
    assert shard((1, 2, 3, 4), 1, 2) == (3, 4)
    assert shard("abcd", 1, 2) == "cd"
    assert shard(range(6), 1, 2) == range(3, 6)
    data = DataSet(torch.arange(8.0).view(4, 1, 1, 2), torch.arange(4))
    part = shard(data, 1, 2)
    assert isinstance(part, DataSet)
    assert part.labels.tolist() == [2, 3]
    assert torch.equal(part.images, data.images[2:])
    pairs = TensorDataset(torch.arange(4), torch.arange(4) * 2)
    part = shard(pairs, 1, 2)
    assert isinstance(part, TensorDataset)
    assert [tuple(map(int, pair)) for pair in part] == [(2, 4), (3, 6)]


class Squares:
    """A data set that gives one sample for one number, as a user's own may."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if type(index) is not int:
            raise IndexError("one number at a time")
        return index * index


class Stream(IterableDataset):
    """Its length is known, but it gives samples in its own order only."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


def test_other_data_sets_become_subsets() -> None:
    part = shard(Squares(), 1, 2, "pad")
    assert isinstance(part, Subset)
    assert list(part) == [9, 16, 0]
    assert list(shard(part, 1, 2, "keep")) == [0]  # of a subset, too
    assert list(shard(Subset(torch.arange(9), [8, 6, 4, 2]), 1, 2)) == [4, 2]
    assert list(shard(Subset(torch.arange(9), []), 1, 2)) == []


def test_arguments_out_of_range_are_rejected() -> None:
    for arguments in ((4, 2, 2), (4, -1, 2), (4, 0, 0), (-1, 0, 1)):
        with pytest.raises(ValueError, match="must be"):
            shard_indices(*arguments)
    with pytest.raises(ValueError, match="'even'"):
        shard_indices(4, 0, 2, "even")
    with pytest.raises(TypeError, match="none of the kinds"):
        shard(3.5, 0, 2)
    for data in ({0: 1, 1: 2}, torch.tensor(3), Stream(), {1, 2}, iter([1, 2])):
        with pytest.raises(TypeError, match="none of the kinds"):
            shard(data, 0, 2)
    for arguments in ((5.0, 0, 2, "keep"), (5, 0.0, 2, "keep"), (5, 0, 2.0, "keep")):
        with pytest.raises(TypeError, match="must be a whole number"):
            shard_indices(*arguments)
