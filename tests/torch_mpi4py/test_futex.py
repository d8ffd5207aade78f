"""A thread sleeps in the kernel until a word changes, and no memory stays behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy
import pytest
from torch_mpi4py.core import futex

MOST_KEPT = 64


@pytest.fixture
def address() -> Iterator[int]:
    """Return the address of a word that is 0."""
    words = numpy.zeros(1, numpy.uint64)
    yield words.ctypes.data
    del words  # it has to outlive the address


def test_wait_on_a_changed_word_returns_at_once(address: int) -> None:
    began = time.perf_counter()
    futex.sleep(address, 1, 60.0)
    assert time.perf_counter() - began < 30.0


def test_sleeps_of_many_lengths_use_little_memory(address: int) -> None:
    for number in range(1000):
        futex.sleep(address, 1, 1.0 + number * 1e-6)
    assert futex._timespec.cache_info().currsize <= MOST_KEPT
